"""Decides whether a cluster is fit for a benchmark: ready nodes with resources and correct clocks,
GPUs that pods can use and exporters can monitor, and enforced NetworkPolicies."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from aiperf_svc.core.cluster.check import Check
from aiperf_svc.core.cluster.facts import Exporter, GpuPage, NodeFacts, ProbeResult
from aiperf_svc.core.telemetry.sources import MAX_CLOCK_OFFSET_S
from aiperf_svc.domain.number_text import count

SHOWN = 5
"""Maximum number of nodes that a line names."""
PLUGIN, EXPORTERS, XID, POLICIES = (
    "device plugin", "GPU exporters", "Xid errors", "network policies",
)  # fmt: skip


def judge_nodes(nodes: Sequence[NodeFacts]) -> Check:
    """Check that nodes are ready and accept pods."""
    ready = [each for each in nodes if each.is_ready]
    summary = f"{len(ready)} of {len(nodes)} are ready"
    if not ready:
        return Check("nodes", "failed", summary, "look at `kubectl describe nodes`")
    notes = []
    if lost := [each.name for each in nodes if not each.is_ready]:
        notes.append(f"not ready: {some(lost)}")
    if closed := [each.name for each in ready if not each.is_open]:
        notes.append(f"cordoned: {some(closed)}")
    if len(closed) == len(ready):
        return Check("nodes", "failed", "; ".join([summary, *notes]), "kubectl uncordon NODE")
    if notes:
        detail = "; ".join([summary, *notes])
        return Check("nodes", "warning", detail, "a stack uses the others; repair these")
    return Check("nodes", "ok", summary)


def judge_pressure(nodes: Sequence[NodeFacts]) -> Check:
    """Check that no node is short of memory, disk or processes: it would evict pods of a run."""
    short = [f"{each.name} ({', '.join(each.pressures)})" for each in nodes if each.pressures]
    if short:
        remedy = "free these resources, or keep a stack off the nodes (deployment.placement)"
        return Check("pressure", "warning", some(short), remedy)
    return Check("pressure", "ok", "no node is short of memory, disk, processes or network")


def judge_clocks(nodes: Sequence[NodeFacts]) -> Check:
    """Check the clocks of nodes against the API server's, to a second. Services measure their own
    offsets. Times from a server or exporter whose clock is off are not used."""
    known = {each.name: each.clock_ahead_s for each in nodes if each.clock_ahead_s is not None}
    if not known:
        detail = "no ready node has a report with both its own time and the API server's"
        return Check("clocks", "not checked", detail)
    summary = f"{len(known)} of {len(nodes)} nodes"
    off = {name: ahead for name, ahead in known.items() if abs(ahead) > MAX_CLOCK_OFFSET_S}
    if off:
        detail = some([f"{name} is {_offset_text(ahead)}" for name, ahead in off.items()])
        return Check("clocks", "warning", f"{detail} the API server", "let NTP or PTP set them")
    worst = max(known.values(), key=abs)
    if abs(worst) <= 1:
        return Check("clocks", "ok", f"{summary} agree with the API server to a second")
    return Check("clocks", "ok", f"{summary} are at most {abs(worst)} s off the API server")


def some(names: Sequence[str]) -> str:
    """Return the first few names, and the number of the others."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _offset_text(ahead_s: int) -> str:
    return f"{abs(ahead_s)} s {'ahead of' if ahead_s > 0 else 'behind'}"


class GpuType(msgspec.Struct, frozen=True, kw_only=True):
    resource: str
    product: str
    nodes: int
    capacity: int
    allocatable: int
    free: int | None
    """GPUs that no pod has requested on nodes that accept pods; None if unknown."""


def gpu_types(nodes: Sequence[NodeFacts]) -> tuple[GpuType, ...]:
    """Return the GPUs of ready nodes by resource and product."""
    found = defaultdict(list)
    for node in nodes:
        for gpus in node.gpus:
            if node.is_ready:
                found[gpus.resource, gpus.product].append((node, gpus))
    return tuple(
        GpuType(
            resource=resource,
            product=product,
            nodes=len(members),
            capacity=sum(gpus.capacity for _, gpus in members),
            allocatable=sum(gpus.allocatable for _, gpus in members),
            free=None
            if any(gpus.used is None for _, gpus in members)
            else sum(g.allocatable - (g.used or 0) for node, g in members if node.is_open),
        )
        for (resource, product), members in sorted(found.items())
    )


def judge_gpus(nodes: Sequence[NodeFacts]) -> tuple[Check, ...]:
    """Check the device plugin, and report the GPUs of each type. A cluster without GPUs gets one
    line."""
    with_gpus = [each for each in nodes if each.is_ready and each.has_gpus]
    if not with_gpus:
        return (Check("GPUs", "ok", "no ready node has any"),)
    return (_judge_plugin(with_gpus), *map(_type_check, gpu_types(nodes)))


def _judge_plugin(with_gpus: Sequence[NodeFacts]) -> Check:
    silent = [each.name for each in with_gpus if not any(gpus.capacity for gpus in each.gpus)]
    broken = [
        f"{each.name} ({gpus.allocatable} of {gpus.capacity} {gpus.resource})"
        for each in with_gpus
        for gpus in each.gpus
        if gpus.allocatable < gpus.capacity
    ]
    working = [each for each in with_gpus if any(gpus.allocatable for gpus in each.gpus)]
    summary = f"{len(working)} of {len(with_gpus)} nodes with GPUs offer them to pods"
    if silent:
        summary += f"; labelled as GPU nodes without offering any: {some(silent)}"
    if broken:
        summary += f"; unhealthy or without their plugin: {some(broken)}"
    if not silent and not broken:
        return Check(PLUGIN, "ok", summary)
    remedy = "look at the device plugin's pods on these nodes, and at the driver"
    return Check(PLUGIN, "warning" if working else "failed", summary, remedy)


def _type_check(found: GpuType) -> Check:
    free = "" if found.free is None else f", {found.free} free"
    return Check(
        f"GPUs: {found.product or found.resource}",
        "ok" if found.allocatable else "failed",
        f"{found.allocatable} of {found.capacity} {found.resource} can be allocated{free}, on "
        f"{count(found.nodes, 'node')}",
    )


def judge_exporters(
    nodes: Sequence[NodeFacts], exporters: Sequence[Exporter] | None, pages: Mapping[str, GpuPage]
) -> Check:
    """Check that each node with GPUs has an exporter that pods can read. `exporters` is None if
    listing pods is not permitted; `pages` has the exporters that a pod tried to read."""
    if exporters is None:
        return Check(EXPORTERS, "not checked", "not allowed to list pods of all namespaces")
    with_gpus = {each.name for each in nodes if each.is_ready and each.has_gpus}
    covered = {each.node for each in exporters}
    if not exporters:
        if not with_gpus:
            return Check(EXPORTERS, "ok", "none, and no GPUs")
        detail = f"none runs on the {len(with_gpus)} nodes with GPUs"
        return Check(EXPORTERS, "warning", detail, "install dcgm-exporter: a run then reads it")
    summary = f"{len(exporters)} run, in {some(sorted({each.namespace for each in exporters}))}"
    failed = [
        f"{each.pod} on {each.node}: {pages[each.url].failure}"
        for each in exporters
        if each.url in pages and pages[each.url].failure
    ]
    if failed:
        detail = f"{summary}; a pod cannot read {some(failed)}"
        return Check(EXPORTERS, "warning", detail, "allow pods of a stack to reach their port")
    read = [pages[each.url] for each in exporters if each.url in pages]
    if read:
        summary += f"; a pod reads them: {sum(page.gpus for page in read)} GPUs"
    if missing := sorted(with_gpus - covered):
        detail = f"{summary}; none on {some(missing)}"
        return Check(EXPORTERS, "warning", detail, "let it run on all nodes with GPUs")
    return Check(EXPORTERS, "ok", summary)


def judge_xids(exporters: Sequence[Exporter] | None, pages: Mapping[str, GpuPage]) -> Check | None:
    """Check that no GPU had an Xid error since its exporter started. None: no page was read."""
    read = [
        (each, page)
        for each in exporters or ()
        if (page := pages.get(each.url)) is not None and not page.failure
    ]
    if not read:
        return None
    found = [
        f"GPU {gpu} of {each.node} (Xid {xid})" for each, page in read for gpu, xid in page.xids
    ]
    if found:
        remedy = "keep a stack off these nodes, and look at their kernel log"
        return Check(XID, "failed", some(found), remedy)
    return Check(XID, "ok", "the exporters know of none")


def judge_policies(result: ProbeResult) -> Check:
    """Check that the connection which a policy forbids failed. This is only conclusive if the
    allowed connection to the same pod succeeded."""
    if result.not_tried:
        return Check(POLICIES, "not checked", result.not_tried)
    if result.allowed:
        detail = f"a pod cannot reach another pod of its namespace at all: {result.allowed}"
        return Check(
            POLICIES, "failed", detail, "look at the cluster's own policies and its network"
        )
    if result.forbidden:
        detail = f"enforced: what a policy forbids has failed ({result.forbidden})"
        return Check(POLICIES, "ok", detail)
    return Check(
        POLICIES,
        "warning",
        "not enforced: a pod has reached a port that a policy forbids",
        "a stack's pods can be reached by all others; tokens and keys protect them. For more, use "
        "a network plugin that enforces policies",
    )
