"""Placement of pods: tolerations, affinity, spread over nodes, and additional networks."""

import json

import pulumi_kubernetes as k8s

from aiperf_svc.config.placement import Placement
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import Identity
from aiperf_svc.plan.pods import HOSTNAME, PodPlan, PodSet

core, meta = k8s.core.v1, k8s.meta.v1

SPREAD_KEYS = {"hostname": HOSTNAME, "zone": "topology.kubernetes.io/zone"}


def tolerations(placement: Placement) -> list[core.TolerationArgs] | None:
    """Return the taints that a pod tolerates."""
    return [
        core.TolerationArgs(
            key=t.key or None, operator=t.operator, value=t.value or None, effect=t.effect or None
        )
        for t in placement.tolerations
    ] or None


def affinity(plan: PodPlan, identity: Identity, pods: PodSet) -> core.AffinityArgs | None:
    """Return the affinity of a set's pods: allowed nodes, and pods to be near to or away from."""
    placement, node = plan.placement, None
    if placement.require_nodes or placement.prefer_nodes or pods.node:
        term = _node_term(placement.require_nodes, pods.node)
        is_required = placement.require_nodes or pods.node
        required = core.NodeSelectorArgs(node_selector_terms=[term]) if is_required else None
        preferred = [
            core.PreferredSchedulingTermArgs(weight=50, preference=_node_term({label: values}))
            for label, values in placement.prefer_nodes.items()
        ]
        node = core.NodeAffinityArgs(
            required_during_scheduling_ignored_during_execution=required,
            preferred_during_scheduling_ignored_during_execution=preferred or None,
        )
    apart = [
        core.WeightedPodAffinityTermArgs(
            weight=100,
            pod_affinity_term=core.PodAffinityTermArgs(
                topology_key=SPREAD_KEYS["hostname"],
                label_selector=meta.LabelSelectorArgs(match_labels=identity.selector(name)),
            ),
        )
        for name in placement.away_from
    ]
    each_other = core.PodAffinityTermArgs(
        topology_key=SPREAD_KEYS["hostname"],
        label_selector=meta.LabelSelectorArgs(match_labels=identity.selector(plan.name)),
    )
    is_apart, is_together = (plan.replicas_on == where for where in ("apart", "together"))
    if node is None and not apart and not is_apart and not is_together:
        return None
    away = core.PodAntiAffinityArgs(
        preferred_during_scheduling_ignored_during_execution=apart or None,
        required_during_scheduling_ignored_during_execution=[each_other] if is_apart else None,
    )
    near = core.PodAffinityArgs(required_during_scheduling_ignored_during_execution=[each_other])
    return core.AffinityArgs(
        node_affinity=node,
        pod_anti_affinity=away if apart or is_apart else None,
        pod_affinity=near if is_together else None,
    )


def _node_term(labels: dict[str, tuple[str, ...]], node: str = "") -> core.NodeSelectorTermArgs:
    """Return a term for node labels and for the name of one node."""
    named = core.NodeSelectorRequirementArgs(key="metadata.name", operator="In", values=[node])
    return core.NodeSelectorTermArgs(
        match_expressions=[
            core.NodeSelectorRequirementArgs(key=label, operator="In", values=list(values))
            for label, values in labels.items()
        ]
        or None,
        match_fields=[named] if node else None,
    )


def spread(plan: PodPlan, identity: Identity) -> list[core.TopologySpreadConstraintArgs] | None:
    """Return the constraint that spreads replicas over nodes or zones."""
    if plan.replicas == 1 or plan.sets or plan.placement.spread == "none":
        return None
    return [
        core.TopologySpreadConstraintArgs(
            max_skew=1,
            topology_key=SPREAD_KEYS[plan.placement.spread],
            when_unsatisfiable="ScheduleAnyway",
            label_selector=meta.LabelSelectorArgs(match_labels=identity.selector(plan.name)),
        )
    ]


def networks(placement: Placement) -> dict[str, str]:
    """Return the annotation of Multus. The definition's plugins get `cni-args` as arguments."""
    if not placement.networks:
        return {}
    wanted = []
    for network in placement.networks:
        namespace, _, name = network.name.rpartition("/")
        entry: Json = {"name": name}
        if namespace:
            entry["namespace"] = namespace
        if network.mtu:
            entry["cni-args"] = {"mtu": network.mtu}
        wanted.append(entry)
    return {"k8s.v1.cni.cncf.io/networks": json.dumps(wanted)}
