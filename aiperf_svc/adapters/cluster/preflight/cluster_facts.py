"""Reads the facts of a cluster: its nodes with their GPUs and clocks, and its GPU exporters.

The offset of a node's clock can be computed without a pod: the kubelet writes the time of its
report by its own clock, and the API server stores the time of receipt, both in whole seconds. A
kubelet that has just started has only registered, and its first report may follow minutes later.
Its lease has the same two times and is renewed every ten seconds, but many users may not read it.
Exporters are found by the labels that their usual installations set on their pods.
"""

import ipaddress
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.api.objects import parse_quantity, try_list
from aiperf_svc.adapters.cluster.preflight.capacity import used_by_node
from aiperf_svc.config.telemetry import ClusterExporters
from aiperf_svc.core.cluster.conditions import conditions_of, has_condition, is_ready
from aiperf_svc.core.cluster.facts import Exporter, NodeFacts, NodeGpus, is_gpu
from aiperf_svc.core.telemetry.families import GPU_EXPORTERS, GpuExporter
from aiperf_svc.domain.json_objects import Json

PRODUCT_LABELS = (
    "nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator", "kubernetes.azure.com/accelerator",
)  # fmt: skip
"""Labels with the type of a node's GPUs."""
PRESENT_LABELS = ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present")
"""Labels that are `true` on a node with a GPU."""
PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
"""Conditions of a node that lacks a resource. Other conditions may be true on a healthy node."""
VALUES: dict[str, dict[str, GpuExporter]] = {}
"""Kind of exporter, by label of its pod and value of the label."""
for _kind in GPU_EXPORTERS:
    for _label_name, _values in _kind.pod_labels.items():
        VALUES.setdefault(_label_name, {}).update(dict.fromkeys(_values, _kind))


def read_nodes(
    nodes: Iterable[Json], pods: Iterable[Json] | None, leases: Iterable[Json] | None = None
) -> tuple[NodeFacts, ...]:
    """Return the facts of all nodes. `pods` and `leases` are None if the user may not list them."""
    used = None if pods is None else used_by_node(pods)
    renewed = {lease["metadata"]["name"]: lease_ahead_s(lease) for lease in leases or ()}
    return tuple(_read(node, used, renewed) for node in nodes)


def _read(
    node: Json,
    used: Mapping[str, Mapping[str, float]] | None,
    renewed: Mapping[str, int | None],
) -> NodeFacts:
    name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
    of_node = None if used is None else used.get(name, {})
    product = next((labels[key] for key in PRODUCT_LABELS if key in labels), "")
    return NodeFacts(
        name=name,
        is_ready=is_ready(node),
        is_open=not node.get("spec", {}).get("unschedulable"),
        pressures=tuple(
            name for name in conditions_of(node) if name in PRESSURES and has_condition(node, name)
        ),
        clock_ahead_s=renewed.get(name) if (ahead := clock_ahead_s(node)) is None else ahead,
        gpus=_gpus(node["status"], product, of_node),
        is_labelled_gpu=bool(product) or any(labels.get(key) == "true" for key in PRESENT_LABELS),
    )


def _gpus(status: Json, product: str, used: Mapping[str, float] | None) -> tuple[NodeGpus, ...]:
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


def clock_ahead_s(node: Json) -> int | None:
    """Return how far a ready node's clock is ahead of the API server's, in seconds, accurate to one
    second. None if its last report cannot be identified."""
    report = conditions_of(node).get("Ready", {}).get("lastHeartbeatTime")
    taken = [
        each["time"]
        for each in node["metadata"].get("managedFields") or ()
        if each.get("subresource") == "status" and each.get("time") and _has_heartbeat(each)
    ]
    if not is_ready(node) or not report or len(taken) != 1:
        return None
    return _ahead_s(report, taken[0])


def lease_ahead_s(lease: Json) -> int | None:
    """Return how far a node's clock is ahead, from its lease; None without both times."""
    taken = [
        each["time"]
        for each in lease["metadata"].get("managedFields") or ()
        if "f:renewTime" in (each.get("fieldsV1") or {}).get("f:spec", {}) and each.get("time")
    ]
    renewed = (lease.get("spec") or {}).get("renewTime")
    return _ahead_s(renewed, taken[0]) if renewed and len(taken) == 1 else None


def _ahead_s(node_time: str, server_time: str) -> int:
    """Return the seconds from `server_time`, in whole seconds, to `node_time`."""
    ahead = datetime.fromisoformat(node_time).replace(microsecond=0) - datetime.fromisoformat(
        server_time
    )
    return round(ahead.total_seconds())


def _has_heartbeat(fields: Json) -> bool:
    """Return whether these are the fields of the node's own reports."""
    conditions = (fields.get("fieldsV1") or {}).get("f:status", {}).get("f:conditions", {})
    ready = conditions.get("k:" + json.dumps({"type": "Ready"}, separators=(",", ":"))) or {}
    return "f:lastHeartbeatTime" in ready


async def find_exporters(cluster: Cluster) -> tuple[Exporter, ...] | None:
    """Return the exporters that run in the cluster; None if the user may not list pods of all
    namespaces. Raises Unreachable."""
    pods: dict[str, Json] = {}
    for label, values in VALUES.items():
        selector = f"{label} in ({','.join(values)})"
        found = await try_list(cluster, "/api/v1/pods", labelSelector=selector)
        if found is None:
            return None
        pods |= {each["metadata"]["uid"]: each for each in found}
    return exporters_of(pods.values())


def exporters_of(pods: Iterable[Json]) -> tuple[Exporter, ...]:
    """Return the exporters among pods, sorted by node. Pods that are not running are left out."""
    found = (_exporter(each) for each in pods)
    return tuple(sorted((e for e in found if e is not None), key=lambda e: (e.node, e.pod)))


def _exporter(pod: Json) -> Exporter | None:
    status, labels = pod.get("status", {}), pod["metadata"].get("labels") or {}
    address, label = status.get("podIP"), _label(labels)
    if status.get("phase") != "Running" or not address or label is None:
        return None
    key, value = label
    port = _port(pod, VALUES[key][value].port)
    host = f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
    return Exporter(
        namespace=pod["metadata"]["namespace"],
        pod=pod["metadata"]["name"],
        node=pod["spec"].get("nodeName", ""),
        url=f"http://{host}:{port}/metrics",
        label=label,
        port=port,
        is_on_host=bool(pod["spec"].get("hostNetwork")),
    )


def grouped(
    exporters: Iterable[Exporter], *, users_namespace: str, users: tuple[str, ...]
) -> tuple[ClusterExporters, ...]:
    """Return the exporters in the format of a config, grouped by the label that a NetworkPolicy
    selects. `users` are those of `ClusterExporters`."""
    groups = defaultdict(list)
    for each in exporters:
        groups[each.namespace, each.label, each.port, each.is_on_host].append(each.url)
    return tuple(
        ClusterExporters(
            namespace=namespace,
            labels=dict((label,)),
            port=port,
            pages=tuple(sorted(urls)),
            host_network=is_on_host,
            users_namespace=users_namespace,
            users=users,
        )
        for (namespace, label, port, is_on_host), urls in sorted(groups.items())
    )


def _label(labels: Mapping[str, str]) -> tuple[str, str] | None:
    known = ((key, labels.get(key, "")) for key in VALUES)
    return next(((key, value) for key, value in known if value in VALUES[key]), None)


def _port(pod: Json, default: int) -> int:
    """Return the port named metrics or equal to the exporter's default; else the only port."""
    ports = [
        (each.get("name", ""), int(each["containerPort"]))
        for container in pod["spec"].get("containers") or ()
        for each in container.get("ports") or ()
    ]
    named = [number for name, number in ports if "metrics" in name or number == default]
    if named:
        return named[0]
    return ports[0][1] if len(ports) == 1 else default
