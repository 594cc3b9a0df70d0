package netpol

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var (
	testNode = node{
		pods:       netip.MustParsePrefix("10.0.0.0/16"),
		ownPods:    netip.MustParsePrefix("10.0.0.0/24"),
		dnsAddress: "10.0.255.53",
	}
	namespaces = map[string]labels.Set{
		"bench":       {"kubernetes.io/metadata.name": "bench"},
		"kube-system": {"kubernetes.io/metadata.name": "kube-system"},
	}
)

func pod(name, address string, ports ...corev1.ContainerPort) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: name, Labels: labels.Set{"app": name}}}
	p.Spec.Containers = []corev1.Container{{Ports: ports}}
	p.Status.PodIP = address
	return p
}

func policy(app string, kinds ...netv1.PolicyType) *netv1.NetworkPolicy {
	p := &netv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "bench"}}
	p.Spec.PodSelector = metav1.LabelSelector{MatchLabels: labels.Set{"app": app}}
	p.Spec.PolicyTypes = kinds
	return p
}

// chain cuts one chain's rules out of the table.
func chain(t *testing.T, table, name string) string {
	t.Helper()
	_, rest, ok := strings.Cut(table, "chain "+name+" {\n")
	if !ok {
		t.Fatalf("no chain %s in:\n%s", name, table)
	}
	rules, _, _ := strings.Cut(rest, "  }\n")
	return rules
}

func expect(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}

func TestWithoutPoliciesNothingIsDropped(t *testing.T) {
	if got := compile(testNode, []*corev1.Pod{pod("a", "10.0.0.1")}, namespaces, nil); strings.Contains(got, "drop") {
		t.Errorf("a drop in:\n%s", got)
	}
}

func TestIsolationDropsWhatNoPolicyAllows(t *testing.T) {
	pods := []*corev1.Pod{pod("a", "10.0.0.1"), pod("b", "10.0.0.2")}
	got := compile(testNode, pods, namespaces, []*netv1.NetworkPolicy{policy("a", netv1.PolicyTypeIngress)})
	expect(t, chain(t, got, "ingress"), "    ip daddr { 10.0.0.1 } drop\n")
	expect(t, chain(t, got, "egress"), "")
}

func TestNamedPortIsResolvedAtTheReceivingPod(t *testing.T) {
	http := corev1.ContainerPort{Name: "http", Protocol: corev1.ProtocolTCP, ContainerPort: 8080}
	port := intstr.FromString("http")
	p := policy("a", netv1.PolicyTypeEgress)
	p.Spec.Egress = []netv1.NetworkPolicyEgressRule{{
		To:    []netv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: labels.Set{"app": "b"}}}},
		Ports: []netv1.NetworkPolicyPort{{Port: &port}},
	}}
	pods := []*corev1.Pod{pod("a", "10.0.0.1"), pod("b", "10.0.0.2", http)}
	got := compile(testNode, pods, namespaces, []*netv1.NetworkPolicy{p})
	expect(t, chain(t, got, "egress"), "    ip saddr { 10.0.0.1 } ip daddr { 10.0.0.2 } ip daddr 10.0.0.2 tcp dport 8080 return\n"+
		"    ip saddr { 10.0.0.1 } drop\n")
}

func TestDNSIsReachedByItsUsualLabelsAndTheAPIServerByItsAddress(t *testing.T) {
	udp, dns, api := corev1.ProtocolUDP, intstr.FromInt32(53), intstr.FromInt32(6443)
	p := policy("a", netv1.PolicyTypeEgress)
	p.Spec.Egress = []netv1.NetworkPolicyEgressRule{
		{
			To: []netv1.NetworkPolicyPeer{{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: namespaces["kube-system"]},
				PodSelector:       &metav1.LabelSelector{MatchLabels: labels.Set{"k8s-app": "kube-dns"}},
			}},
			Ports: []netv1.NetworkPolicyPort{{Protocol: &udp, Port: &dns}},
		},
		{
			To:    []netv1.NetworkPolicyPeer{{IPBlock: &netv1.IPBlock{CIDR: "172.30.0.2/32"}}},
			Ports: []netv1.NetworkPolicyPort{{Port: &api}},
		},
	}
	got := compile(testNode, []*corev1.Pod{pod("a", "10.0.0.1")}, namespaces, []*netv1.NetworkPolicy{p})
	expect(t, chain(t, got, "egress"), "    ip saddr { 10.0.0.1 } ip daddr 172.30.0.2/32 tcp dport 6443 return\n"+
		"    ip saddr { 10.0.0.1 } ip daddr { 10.0.255.53 } udp dport 53 return\n"+
		"    ip saddr { 10.0.0.1 } drop\n")
	expect(t, chain(t, got, "input"), "    type filter hook input priority filter; policy accept;\n"+
		"    iifname != \"cni0\" accept\n    ct state established,related accept\n"+
		"    ip saddr 10.0.0.0/24 ip saddr != { 10.0.0.1, 10.0.255.53 } udp dport 53 accept\n"+
		"    ip saddr 10.0.0.0/24 ip saddr != { 10.0.0.1, 10.0.255.53 } drop\n    jump egress\n")
}

func TestPodsOfOtherNodesArePeersAndNotEnforcedHere(t *testing.T) {
	a, b := policy("a", netv1.PolicyTypeIngress), policy("b", netv1.PolicyTypeIngress)
	a.Spec.Ingress = []netv1.NetworkPolicyIngressRule{{
		From: []netv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: labels.Set{"app": "b"}}}},
	}}
	pods := []*corev1.Pod{pod("a", "10.0.0.1"), pod("b", "10.0.1.1")}
	got := compile(testNode, pods, namespaces, []*netv1.NetworkPolicy{a, b})
	expect(t, chain(t, got, "ingress"), "    ip daddr { 10.0.0.1 } ip saddr { 10.0.1.1 } return\n"+
		"    ip daddr { 10.0.0.1 } drop\n")
}

func TestUnknownPodsOfThisNodeReachNothingButDNS(t *testing.T) {
	pods := []*corev1.Pod{pod("a", "10.0.0.1")}
	got := compile(testNode, pods, namespaces, []*netv1.NetworkPolicy{policy("a", netv1.PolicyTypeIngress)})
	known := "{ 10.0.0.1, 10.0.255.53 }"
	expect(t, chain(t, got, "forward"), "    type filter hook forward priority filter; policy accept;\n"+
		"    ct state established,related accept\n"+
		"    ip saddr 10.0.0.0/24 ip saddr != "+known+" ip daddr 10.0.255.53 udp dport 53 accept\n"+
		"    ip saddr 10.0.0.0/24 ip saddr != "+known+" drop\n"+
		"    ip daddr 10.0.0.0/24 ip daddr != "+known+" drop\n"+
		"    jump egress\n    jump ingress\n")
}

func TestFakeNodesPodsAndEndedPodsAreIgnored(t *testing.T) {
	ended := pod("a", "10.0.0.3")
	ended.Status.Phase = corev1.PodSucceeded
	pods := []*corev1.Pod{pod("a", "10.1.0.1"), ended}
	got := compile(testNode, pods, namespaces, []*netv1.NetworkPolicy{policy("a", netv1.PolicyTypeIngress)})
	expect(t, chain(t, got, "ingress"), "")
}
