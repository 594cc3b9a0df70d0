"""NetworkPolicies: which pods may connect to which."""

from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as k8s

from aiperf_svc.plan.identity import COMPONENT_LABEL, NAME_LABEL, PRODUCT, Identity
from aiperf_svc.plan.network import (
    LabelledPods,
    NamespacePods,
    Peer,
    Policy,
    Range,
    ReleasePods,
    Rule,
    StackPods,
)
from aiperf_svc.stack.scope import Scope

net, meta = k8s.networking.v1, k8s.meta.v1


@dataclass(frozen=True, kw_only=True)
class NetworkArgs:
    """The policies to create."""

    policies: tuple[Policy, ...]
    scope: Scope


class Network(pulumi.ComponentResource):
    """Creates NetworkPolicies that select only the stack's own pods."""

    def __init__(
        self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("aiperf:stack:Network", name, None, opts)
        for policy in args.policies:
            make_policy(policy, args.scope, self)
        self.register_outputs({})


def make_policy(policy: Policy, scope: Scope, parent: pulumi.Resource) -> net.NetworkPolicy:
    """Create one NetworkPolicy."""
    return net.NetworkPolicy(
        policy.name,
        metadata=scope.metadata(policy.name),
        spec=_spec(policy, scope.identity),
        opts=scope.options(parent),
    )


def _spec(policy: Policy, identity: Identity) -> net.NetworkPolicySpecArgs:
    return net.NetworkPolicySpecArgs(
        pod_selector=_release_pods(policy.of_release, identity)
        if policy.of_release
        else _stack_pods(policy.components, identity),
        # Always list both types, which denies traffic that a policy does not list.
        policy_types=["Ingress", "Egress"],
        ingress=[
            net.NetworkPolicyIngressRuleArgs(from_=_peers(rule, identity), ports=_ports(rule))
            for rule in policy.ingress
        ]
        or None,
        egress=[
            net.NetworkPolicyEgressRuleArgs(to=_peers(rule, identity), ports=_ports(rule))
            for rule in policy.egress
        ]
        or None,
    )


def _stack_pods(components: tuple[str, ...], identity: Identity) -> meta.LabelSelectorArgs:
    if len(components) <= 1:
        return meta.LabelSelectorArgs(match_labels=identity.selector("".join(components)))
    return meta.LabelSelectorArgs(
        match_labels=identity.selector(),
        match_expressions=[
            meta.LabelSelectorRequirementArgs(
                key=COMPONENT_LABEL, operator="In", values=list(components)
            )
        ],
    )


def _release_pods(pods: ReleasePods, identity: Identity) -> meta.LabelSelectorArgs:
    return meta.LabelSelectorArgs(
        match_labels={**pods.labels, **(identity.selector() if pods.is_labelled else {})} or None,
        match_expressions=[
            meta.LabelSelectorRequirementArgs(key=NAME_LABEL, operator="NotIn", values=[PRODUCT])
        ],
    )


def _ports(rule: Rule) -> list[net.NetworkPolicyPortArgs] | None:
    return [
        net.NetworkPolicyPortArgs(port=port, protocol=protocol)
        for port in rule.ports
        for protocol in rule.protocols
    ] or None


def _peers(rule: Rule, identity: Identity) -> list[net.NetworkPolicyPeerArgs] | None:
    return [_peer(peer, identity) for peer in rule.peers] or None


def _peer(peer: Peer, identity: Identity) -> net.NetworkPolicyPeerArgs:
    match peer:
        case StackPods(components):
            return net.NetworkPolicyPeerArgs(pod_selector=_stack_pods(components, identity))
        case ReleasePods():
            return net.NetworkPolicyPeerArgs(pod_selector=_release_pods(peer, identity))
        case NamespacePods(namespace, labels):
            return net.NetworkPolicyPeerArgs(
                pod_selector=meta.LabelSelectorArgs(match_labels=labels or None),
                namespace_selector=meta.LabelSelectorArgs(
                    match_labels={"kubernetes.io/metadata.name": namespace}
                )
                if namespace
                else None,
            )
        case LabelledPods(labels):
            return net.NetworkPolicyPeerArgs(
                pod_selector=meta.LabelSelectorArgs(match_labels=labels),
                namespace_selector=meta.LabelSelectorArgs(),
            )
        case Range(cidr):
            return net.NetworkPolicyPeerArgs(ip_block=net.IPBlockArgs(cidr=cidr))
