"""Finds the pods of GPU exporters by the labels that their usual installations give them."""

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.config.telemetry import ClusterExporters
from aiperf_svc.core.cluster.facts import Exporter
from aiperf_svc.core.telemetry.families import GPU_EXPORTERS, GpuExporter

Object = Mapping[str, Any]
VALUES: dict[str, dict[str, GpuExporter]] = {}
"""By label of a pod and its value, the kind of exporter."""
for _kind in GPU_EXPORTERS:
    for _label_name, _values in _kind.pod_labels.items():
        VALUES.setdefault(_label_name, {}).update(dict.fromkeys(_values, _kind))


async def find_exporters(cluster: Cluster) -> tuple[Exporter, ...] | None:
    """Return the exporters that run in the cluster; None if pods of all namespaces may not be
    listed. Raises Unreachable."""
    pods: dict[str, Object] = {}
    for label, values in VALUES.items():
        selector = f"{label} in ({','.join(values)})"
        try:
            found = await cluster.get("/api/v1/pods", labelSelector=selector)
        except Refused:
            return None
        pods |= {each["metadata"]["uid"]: each for each in found["items"]}
    return exporters_of(pods.values())


def exporters_of(pods: Iterable[Object]) -> tuple[Exporter, ...]:
    """Return the exporters among pods, sorted by node. Pods that do not run are left out."""
    found = (_exporter(each) for each in pods)
    return tuple(sorted((e for e in found if e is not None), key=lambda e: (e.node, e.pod)))


def _exporter(pod: Object) -> Exporter | None:
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
    """Return the exporters as a config has them: those that a NetworkPolicy knows by one label are
    together. `users` are those of `ClusterExporters`."""
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


def _port(pod: Object, default: int) -> int:
    """Return the port that is called metrics or is the exporter's default, else the only one."""
    ports = [
        (each.get("name", ""), int(each["containerPort"]))
        for container in pod["spec"].get("containers") or ()
        for each in container.get("ports") or ()
    ]
    named = [number for name, number in ports if "metrics" in name or number == default]
    if named:
        return named[0]
    return ports[0][1] if len(ports) == 1 else default
