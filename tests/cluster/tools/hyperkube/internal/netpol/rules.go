package netpol

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// bridge is the interface by which every pod's traffic reaches the node.
const bridge = "cni0"

// node says which addresses the cluster's pods have, which of them are enforced here, and where DNS answers.
type node struct {
	pods, ownPods netip.Prefix
	dnsAddress    string
}

// endpoint is one address that policies select.
type endpoint struct {
	namespace string
	labels    labels.Set
	address   string
	isOwn     bool // a pod of this node
	ports     []corev1.ContainerPort
}

// direction is one of the two sides of a policy. self is the header field that holds the selected pod's address,
// peer the one that holds the other end's.
type direction struct {
	chain, self, peer string
}

var (
	egress  = direction{chain: "egress", self: "saddr", peer: "daddr"}
	ingress = direction{chain: "ingress", self: "daddr", peer: "saddr"}
)

// compile turns the cluster's policies into one nftables table. Each direction is a chain: what some policy allows
// returns, what is left and isolated is dropped.
func compile(n node, pods []*corev1.Pod, nsLabels map[string]labels.Set, policies []*netv1.NetworkPolicy) string {
	t := table{
		node:      n,
		endpoints: endpointsOf(n, pods),
		nsLabels:  nsLabels,
		allowed:   map[direction][]string{},
		isolated:  map[direction][]string{},
	}
	for _, p := range policies {
		t.add(p)
	}
	return t.render(len(policies) > 0)
}

// endpointsOf lists the cluster's pods that have an address in its range, and CoreDNS. That is a process on the first
// node with an address for itself alone, and policies know it by the labels that every distribution gives its DNS
// pods. Pods on the host's network have the node's address, and those of fake nodes one that nobody reaches.
func endpointsOf(n node, pods []*corev1.Pod) []endpoint {
	out := []endpoint{{
		namespace: "kube-system",
		labels:    labels.Set{"k8s-app": "kube-dns"},
		address:   n.dnsAddress,
		ports: []corev1.ContainerPort{
			{Name: "dns", Protocol: corev1.ProtocolUDP, ContainerPort: 53},
			{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, ContainerPort: 53},
		},
	}}
	for _, p := range pods {
		ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		address, err := netip.ParseAddr(p.Status.PodIP) // fails while the pod has none
		if err != nil || !n.pods.Contains(address) || ended {
			continue
		}
		e := endpoint{
			namespace: p.Namespace, labels: p.Labels, address: p.Status.PodIP, isOwn: n.ownPods.Contains(address),
		}
		for _, c := range p.Spec.Containers {
			e.ports = append(e.ports, c.Ports...)
		}
		out = append(out, e)
	}
	return out
}

type table struct {
	node      node
	endpoints []endpoint
	nsLabels  map[string]labels.Set
	allowed   map[direction][]string // rules that end in "return"
	isolated  map[direction][]string // addresses of the node's own pods that some policy selects
}

func (t *table) add(p *netv1.NetworkPolicy) {
	var selected []endpoint
	for _, e := range t.endpoints {
		if e.isOwn && e.namespace == p.Namespace && matches(&p.Spec.PodSelector, e.labels) {
			selected = append(selected, e)
		}
	}
	if len(selected) == 0 {
		return
	}
	for _, kind := range p.Spec.PolicyTypes {
		switch kind {
		case netv1.PolicyTypeIngress:
			t.isolated[ingress] = append(t.isolated[ingress], addresses(selected)...)
			for _, r := range p.Spec.Ingress {
				t.allow(ingress, p.Namespace, selected, r.From, r.Ports)
			}
		case netv1.PolicyTypeEgress:
			t.isolated[egress] = append(t.isolated[egress], addresses(selected)...)
			for _, r := range p.Spec.Egress {
				t.allow(egress, p.Namespace, selected, r.To, r.Ports)
			}
		}
	}
}

// allow adds the rules for one entry of a policy: each kind of peer times each port.
func (t *table) allow(d direction, namespace string, selected []endpoint,
	peers []netv1.NetworkPolicyPeer, ports []netv1.NetworkPolicyPort) {
	peerMatches, peerEndpoints := t.peers(d, namespace, peers)
	holders := selected // of a named port: always the receiving end
	if d == egress {
		holders = peerEndpoints
	}
	self := fmt.Sprintf("ip %s %s", d.self, set(addresses(selected)))
	for _, peer := range peerMatches {
		portMatches := []string{""}
		if len(ports) > 0 {
			portMatches = nil
			for _, p := range ports {
				portMatches = append(portMatches, portRules(p, holders)...)
			}
		}
		for _, port := range portMatches {
			t.allowed[d] = append(t.allowed[d], join(self, peer, port, "return"))
		}
	}
}

// peers gives the matches on the other end's address, "" for anyone, and the endpoints among them.
func (t *table) peers(d direction, namespace string, peers []netv1.NetworkPolicyPeer) ([]string, []endpoint) {
	if len(peers) == 0 {
		return []string{""}, t.endpoints
	}
	var out []string
	var found []endpoint
	for _, p := range peers {
		if p.IPBlock == nil {
			found = append(found, t.selectPeers(namespace, p)...)
		} else if !strings.Contains(p.IPBlock.CIDR, ":") { // the pod network is IPv4
			match := fmt.Sprintf("ip %s %s", d.peer, p.IPBlock.CIDR)
			if len(p.IPBlock.Except) > 0 {
				match += fmt.Sprintf(" ip %s != %s", d.peer, set(p.IPBlock.Except))
			}
			out = append(out, match)
		}
	}
	if len(found) > 0 {
		out = append(out, fmt.Sprintf("ip %s %s", d.peer, set(addresses(found))))
	}
	return out, found
}

func (t *table) selectPeers(namespace string, p netv1.NetworkPolicyPeer) []endpoint {
	var out []endpoint
	for _, e := range t.endpoints {
		inNamespace := e.namespace == namespace
		if p.NamespaceSelector != nil {
			inNamespace = matches(p.NamespaceSelector, t.nsLabels[e.namespace])
		}
		if inNamespace && (p.PodSelector == nil || matches(p.PodSelector, e.labels)) {
			out = append(out, e)
		}
	}
	return out
}

// portRules gives the matches on the destination port. A named one has a number of its own at each holder.
func portRules(p netv1.NetworkPolicyPort, holders []endpoint) []string {
	protocol := "tcp"
	if p.Protocol != nil {
		protocol = strings.ToLower(string(*p.Protocol))
	}
	switch {
	case p.Port == nil:
		return []string{"meta l4proto " + protocol}
	case p.Port.Type == intstr.Int && p.EndPort != nil:
		return []string{fmt.Sprintf("%s dport %d-%d", protocol, p.Port.IntVal, *p.EndPort)}
	case p.Port.Type == intstr.Int:
		return []string{fmt.Sprintf("%s dport %d", protocol, p.Port.IntVal)}
	}
	var out []string
	for _, h := range holders {
		for _, c := range h.ports {
			if c.Name == p.Port.StrVal && strings.EqualFold(string(c.Protocol), protocol) {
				out = append(out, fmt.Sprintf("ip daddr %s %s dport %d", h.address, protocol, c.ContainerPort))
			}
		}
	}
	return out
}

func (t *table) render(anyPolicy bool) string {
	var b strings.Builder
	b.WriteString("table ip netpol {\n")
	for _, d := range []direction{egress, ingress} {
		fmt.Fprintf(&b, "  chain %s {\n", d.chain)
		for _, rule := range sorted(t.allowed[d]) {
			fmt.Fprintf(&b, "    %s\n", rule)
		}
		if len(t.isolated[d]) > 0 {
			fmt.Fprintf(&b, "    ip %s %s drop\n", d.self, set(t.isolated[d]))
		}
		b.WriteString("  }\n")
	}
	// A pod runs before the API server shows its address. Once there is any policy such a pod of this node is cut
	// off, not open. Its DNS queries pass: a lost one would cost its resolver five seconds.
	strangers := map[direction]string{}
	if anyPolicy {
		for _, d := range []direction{egress, ingress} {
			strangers[d] = fmt.Sprintf("ip %s %s ip %s != %s", d.self, t.node.ownPods, d.self, set(addresses(t.endpoints)))
		}
	}
	b.WriteString("  chain forward {\n    type filter hook forward priority filter; policy accept;\n")
	b.WriteString("    ct state established,related accept\n")
	if anyPolicy {
		fmt.Fprintf(&b, "    %s ip daddr %s udp dport 53 accept\n", strangers[egress], t.node.dnsAddress)
		fmt.Fprintf(&b, "    %s drop\n    %s drop\n", strangers[egress], strangers[ingress])
	}
	b.WriteString("    jump egress\n    jump ingress\n  }\n")

	b.WriteString("  chain input {\n    type filter hook input priority filter; policy accept;\n")
	fmt.Fprintf(&b, "    iifname != %q accept\n    ct state established,related accept\n", bridge)
	if anyPolicy {
		fmt.Fprintf(&b, "    %s udp dport 53 accept\n    %s drop\n", strangers[egress], strangers[egress])
	}
	b.WriteString("    jump egress\n  }\n}\n")
	return b.String()
}

func matches(s *metav1.LabelSelector, l labels.Set) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(l)
}

func addresses(endpoints []endpoint) []string {
	out := make([]string, 0, len(endpoints))
	for _, e := range endpoints {
		out = append(out, e.address)
	}
	return out
}

func set(items []string) string { return "{ " + strings.Join(sorted(items), ", ") + " }" }

// sorted copies without duplicates, so that equal states give equal text.
func sorted(items []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(items)))
}

func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), " ")
}
