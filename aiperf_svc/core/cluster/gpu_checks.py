"""Decides whether GPUs can be used and watched: the device plugin, the GPUs of each type, exporters
and their Xid errors."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from aiperf_svc.core.cluster.check import Check
from aiperf_svc.core.cluster.facts import Exporter, GpuPage, NodeFacts
from aiperf_svc.core.cluster.node_checks import some

PLUGIN, EXPORTERS, XID = "device plugin", "GPU exporters", "Xid errors"


class GpuType(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs of one type."""

    resource: str
    product: str
    nodes: int
    capacity: int
    allocatable: int
    free: int | None
    """GPUs that no pod has asked for, on nodes that take pods; None if that is not known."""


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
            nodes=len(there),
            capacity=sum(gpus.capacity for _, gpus in there),
            allocatable=sum(gpus.allocatable for _, gpus in there),
            free=None
            if any(gpus.used is None for _, gpus in there)
            else sum(g.allocatable - (g.used or 0) for node, g in there if node.is_open),
        )
        for (resource, product), there in sorted(found.items())
    )


def judge_gpus(nodes: Sequence[NodeFacts]) -> tuple[Check, ...]:
    """Check the device plugin, and name the GPUs of each type. A cluster without GPUs has one line
    that says so."""
    with_gpus = [each for each in nodes if each.is_ready and each.has_gpus]
    if not with_gpus:
        return (Check("GPUs", "ok", "no ready node has any"),)
    return (_judge_plugin(with_gpus), *map(_said_type, gpu_types(nodes)))


def _judge_plugin(with_gpus: Sequence[NodeFacts]) -> Check:
    silent = [each.name for each in with_gpus if not any(gpus.capacity for gpus in each.gpus)]
    broken = [
        f"{each.name} ({gpus.allocatable} of {gpus.capacity} {gpus.resource})"
        for each in with_gpus
        for gpus in each.gpus
        if gpus.allocatable < gpus.capacity
    ]
    working = [each for each in with_gpus if any(gpus.allocatable for gpus in each.gpus)]
    said = f"{len(working)} of {len(with_gpus)} nodes with GPUs offer them to pods"
    if silent:
        said += f"; labelled as GPU nodes without offering any: {some(silent)}"
    if broken:
        said += f"; unhealthy or without their plugin: {some(broken)}"
    if not silent and not broken:
        return Check(PLUGIN, "ok", said)
    remedy = "look at the device plugin's pods on these nodes, and at the driver"
    return Check(PLUGIN, "warning" if working else "failed", said, remedy)


def _said_type(found: GpuType) -> Check:
    free = "" if found.free is None else f", {found.free} free"
    return Check(
        f"GPUs: {found.product or found.resource}",
        "ok" if found.allocatable else "failed",
        f"{found.allocatable} of {found.capacity} {found.resource} can be allocated{free}, on "
        f"{found.nodes} node{'s' * (found.nodes > 1)}",
    )


def judge_exporters(
    nodes: Sequence[NodeFacts], exporters: Sequence[Exporter] | None, pages: Mapping[str, GpuPage]
) -> Check:
    """Check that each node with GPUs has an exporter whose page a pod could read. `exporters` None:
    pods may not be listed; `pages` has those that a pod has tried."""
    if exporters is None:
        return Check(EXPORTERS, "not checked", "not allowed to list pods of all namespaces")
    with_gpus = {each.name for each in nodes if each.is_ready and each.has_gpus}
    there = {each.node for each in exporters}
    if not exporters:
        if not with_gpus:
            return Check(EXPORTERS, "ok", "none, and no GPUs")
        words = f"none runs on the {len(with_gpus)} nodes with GPUs"
        return Check(EXPORTERS, "warning", words, "install dcgm-exporter: a run then reads it")
    said = f"{len(exporters)} run, in {some(sorted({each.namespace for each in exporters}))}"
    failed = [
        f"{each.pod} on {each.node}: {pages[each.url].failure}"
        for each in exporters
        if each.url in pages and pages[each.url].failure
    ]
    if failed:
        words = f"{said}; a pod cannot read {some(failed)}"
        return Check(EXPORTERS, "warning", words, "allow pods of a stack to reach their port")
    read = [pages[each.url] for each in exporters if each.url in pages]
    if read:
        said += f"; a pod reads them: {sum(page.gpus for page in read)} GPUs"
    if missing := sorted(with_gpus - there):
        words = f"{said}; none on {some(missing)}"
        return Check(EXPORTERS, "warning", words, "let it run on all nodes with GPUs")
    return Check(EXPORTERS, "ok", said)


def judge_xids(exporters: Sequence[Exporter] | None, pages: Mapping[str, GpuPage]) -> Check | None:
    """Check that no GPU has had an Xid error since its exporter started. None: no page was read."""
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
