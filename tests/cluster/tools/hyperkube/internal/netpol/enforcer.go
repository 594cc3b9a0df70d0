// Package netpol enforces NetworkPolicy on a node whose pods hang on a bridge. Each node has an enforcer, for the
// pods of its own: of traffic between nodes the sender's node judges the egress and the receiver's the ingress.
//
// All policies together compile to one nftables table (rules.go), which is replaced whole, in one transaction,
// whenever the text changes. The table filters what the node forwards (pod to pod, in and out of the node) and
// what pods send to the node itself, where on the first node CoreDNS and the API server listen.
package netpol

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// settle is how long the enforcer waits after a change for the next: pods come in bursts.
const settle = 20 * time.Millisecond

// Main enforces until it is killed. Arguments: KUBECONFIG POD_CIDR NODE_POD_CIDR DNS_ADDRESS.
func Main(args []string) error {
	if len(args) != 4 {
		return errors.New("usage: hyperkube netpol KUBECONFIG POD_CIDR NODE_POD_CIDR DNS_ADDRESS")
	}
	cluster, err1 := netip.ParsePrefix(args[1])
	own, err2 := netip.ParsePrefix(args[2])
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", args[0])
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	return enforce(context.Background(), client, node{pods: cluster, ownPods: own, dnsAddress: args[3]})
}

func enforce(ctx context.Context, client kubernetes.Interface, n node) error {
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods()
	namespaces := factory.Core().V1().Namespaces()
	policies := factory.Networking().V1().NetworkPolicies()

	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default: // one pending notice says it all: the listers hold the state
		}
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { notify() }, UpdateFunc: func(any, any) { notify() }, DeleteFunc: func(any) { notify() },
	}
	for _, i := range []cache.SharedIndexInformer{pods.Informer(), namespaces.Informer(), policies.Informer()} {
		if _, err := i.AddEventHandler(handler); err != nil {
			return err
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())

	applied := ""
	for {
		ps, err1 := pods.Lister().List(labels.Everything())
		ns, err2 := namespaces.Lister().List(labels.Everything())
		np, err3 := policies.Lister().List(labels.Everything())
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		if rules := compile(n, ps, labelsByName(ns), np); rules != applied {
			if err := replaceTable(ctx, rules); err != nil {
				log.Printf("netpol: %v; the rules were:\n%s", err, rules)
			} else {
				applied = rules
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			time.Sleep(settle)
		}
	}
}

func labelsByName(namespaces []*corev1.Namespace) map[string]labels.Set {
	out := make(map[string]labels.Set, len(namespaces))
	for _, ns := range namespaces {
		out[ns.Name] = ns.Labels
	}
	return out
}

// replaceTable swaps the table in one transaction; declaring it first lets the delete succeed the first time too.
func replaceTable(ctx context.Context, rules string) error {
	nft := exec.CommandContext(ctx, "nft", "-f", "-")
	nft.Stdin = strings.NewReader("table ip netpol {}\ndelete table ip netpol\n" + rules)
	if out, err := nft.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}
