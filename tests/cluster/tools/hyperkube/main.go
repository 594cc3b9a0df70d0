// Command hyperkube is a whole Kubernetes in one binary: etcd, the control plane, the node's agents, CoreDNS,
// kubectl, and two small commands of its own that the cluster of this folder needs (pki, netpol).
//
// It acts as the component it is called as: by the name of a link to it (kube-apiserver -> hyperkube), or by
// its first argument (hyperkube kube-apiserver ...).
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	"aiperf-svc/tests/cluster/hyperkube/internal/dns"
	"aiperf-svc/tests/cluster/hyperkube/internal/netpol"
	"aiperf-svc/tests/cluster/hyperkube/internal/pki"
)

// upstream builds the components that come as a cobra command.
var upstream = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"kube-proxy":              proxy.NewProxyCommand,
	"kubectl":                 func() *cobra.Command { return kubectl.NewDefaultKubectlCommand() },
}

func main() {
	name := filepath.Base(os.Args[0])
	if _, known := upstream[name]; !known && name == "hyperkube" && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	if newCommand, ok := upstream[name]; ok {
		os.Exit(cli.Run(newCommand()))
	}
	switch name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "coredns":
		dns.Main()
	case "pki":
		exitOn(pki.Main(os.Args[1:]))
	case "netpol":
		exitOn(netpol.Main(os.Args[1:]))
	default:
		fmt.Fprintf(os.Stderr, "hyperkube: no component %q: expected etcd, kube-apiserver, kube-controller-manager, "+
			"kube-scheduler, kubelet, kube-proxy, coredns, kubectl, pki or netpol\n", name)
		os.Exit(2)
	}
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
