"""Reads what nodes say of themselves. Pure.

The offset of a node's clock is known without a pod: the kubelet writes the time of its report by
its own clock, and the API server notes when it took that report, both in whole seconds. A kubelet
that has just started has made no report since it registered, and none may follow for minutes. Its
lease says the same and is renewed every ten seconds, but not everybody may read it.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from aiperf_svc.adapters.cluster.api.quantities import parse_quantity
from aiperf_svc.adapters.cluster.preflight.capacity import is_ready, used_by_node
from aiperf_svc.core.cluster.facts import NodeFacts, NodeGpus
from aiperf_svc.workloads.gpus import is_gpu

Object = Mapping[str, Any]
PRODUCT_LABELS = (
    "nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator", "kubernetes.azure.com/accelerator",
)  # fmt: skip
"""Labels whose value is the type of a node's GPUs."""
PRESENT_LABELS = ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present")
"""Labels that are `true` on a node with a GPU."""
PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
"""Conditions of a node that is short of something. Others may be true when all is well."""


def read_nodes(
    nodes: Iterable[Object], pods: Iterable[Object] | None, leases: Iterable[Object] | None = None
) -> tuple[NodeFacts, ...]:
    """Return the facts of all nodes. `pods` and `leases` None: they may not be listed."""
    used = None if pods is None else used_by_node(pods)
    renewed = {lease["metadata"]["name"]: lease_ahead_s(lease) for lease in leases or ()}
    return tuple(_read(node, used, renewed) for node in nodes)


def _read(
    node: Object,
    used: Mapping[str, Mapping[str, float]] | None,
    renewed: Mapping[str, int | None],
) -> NodeFacts:
    name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
    conditions = node["status"].get("conditions") or ()
    of_node = None if used is None else used.get(name, {})
    product = next((labels[key] for key in PRODUCT_LABELS if key in labels), "")
    return NodeFacts(
        name=name,
        is_ready=is_ready(node),
        is_open=not node.get("spec", {}).get("unschedulable"),
        pressures=tuple(
            each["type"]
            for each in conditions
            if each["type"] in PRESSURES and each["status"] == "True"
        ),
        clock_ahead_s=renewed.get(name) if (ahead := clock_ahead_s(node)) is None else ahead,
        gpus=_gpus(node["status"], product, of_node),
        is_labelled_gpu=bool(product) or any(labels.get(key) == "true" for key in PRESENT_LABELS),
    )


def _gpus(status: Object, product: str, used: Mapping[str, float] | None) -> tuple[NodeGpus, ...]:
    capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    return tuple(
        NodeGpus(
            resource=resource,
            product=product,
            capacity=int(parse_quantity(capacity.get(resource, 0))),
            allocatable=int(parse_quantity(allocatable.get(resource, 0))),
            used=None if used is None else int(used.get(resource, 0)),
        )
        for resource in sorted({*capacity, *allocatable})
        if is_gpu(resource)
    )


def clock_ahead_s(node: Object) -> int | None:
    """Return how far a ready node's clock is ahead of the API server's, in whole seconds and to a
    second. None if its last report cannot be told from those of others."""
    reports = [
        each["lastHeartbeatTime"]
        for each in node["status"].get("conditions") or ()
        if each["type"] == "Ready" and each["status"] == "True" and each.get("lastHeartbeatTime")
    ]
    taken = [
        each["time"]
        for each in node["metadata"].get("managedFields") or ()
        if each.get("subresource") == "status" and each.get("time") and _has_heartbeat(each)
    ]
    if len(reports) != 1 or len(taken) != 1:
        return None
    return _ahead_s(reports[0], taken[0])


def lease_ahead_s(lease: Object) -> int | None:
    """Return the same as the lease of a node says it. None if it does not."""
    taken = [
        each["time"]
        for each in lease["metadata"].get("managedFields") or ()
        if "f:renewTime" in (each.get("fieldsV1") or {}).get("f:spec", {}) and each.get("time")
    ]
    renewed = (lease.get("spec") or {}).get("renewTime")
    return _ahead_s(renewed, taken[0]) if renewed and len(taken) == 1 else None


def _ahead_s(there: str, here: str) -> int:
    """Seconds from the API server's time, which is whole, to the other one without its
    fraction."""
    ahead = datetime.fromisoformat(there).replace(microsecond=0) - datetime.fromisoformat(here)
    return round(ahead.total_seconds())


def _has_heartbeat(fields: Object) -> bool:
    """Whether these are the fields of the node's own reports."""
    conditions = (fields.get("fieldsV1") or {}).get("f:status", {}).get("f:conditions", {})
    ready = conditions.get("k:" + json.dumps({"type": "Ready"}, separators=(",", ":"))) or {}
    return "f:lastHeartbeatTime" in ready
