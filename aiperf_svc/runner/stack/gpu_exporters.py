"""Finds the DCGM exporters of the nodes on which a stack's target uses GPUs.

For a target outside the stack, the cluster knows the pods and their nodes. The node of the stack's
own target is unknown before it is created: all exporters are candidates, and the pages show which
GPUs its pods use.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.preflight.cluster_facts import find_exporters, grouped
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.target import HOST
from aiperf_svc.config.telemetry import MAX_SOURCES
from aiperf_svc.core.telemetry.gpu_users import DEPLOYMENT
from aiperf_svc.plan.identity import Identity
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.workloads.gpus import is_gpu
from aiperf_svc.workloads.shapes import is_fanned_out


class _Users(NamedTuple):
    """The pods whose GPUs count."""

    namespace: str
    """Empty: the stack's own."""
    names: tuple[str, ...]
    """Their names, or `deployment/NAME`."""
    nodes: frozenset[str] | None
    """Their nodes; None: not known yet."""


async def with_gpu_exporters(
    request: StackRequest, cluster: Cluster, *, say: Callable[[str], None]
) -> StackRequest:
    """Return the request with `telemetry.exporters` added, if the target uses GPUs and the file
    names no page of an exporter; else unchanged. Raises Unreachable."""
    config = request.config.inference
    if config is None or not config.telemetry.find_gpus:
        return request
    telemetry = config.telemetry
    is_named = any(page.is_gpu for page in telemetry.named_pages)
    if is_named or telemetry.exporters or is_fanned_out(config):
        # Pages do not tell the servers of two indexes from each other.
        return request
    users = await _users(config, request.stack, cluster)
    exporters = await find_exporters(cluster) if users is not None else None
    if users is None or not exporters:
        return request
    if users.nodes is not None:
        exporters = tuple(each for each in exporters if each.node in users.nodes)
    if len(exporters) > MAX_SOURCES:
        say(
            f"note: GPUs are not read: {len(exporters)} exporters are candidates, and a run "
            f"reads at most {MAX_SOURCES}; name some in telemetry.gpu_telemetry"
        )
        return request
    found = grouped(exporters, users_namespace=users.namespace, users=users.names)
    if not found:
        return request
    say(
        "note: GPU exporters on nodes that the target's pods may use are read if they have its "
        f"GPUs: {len(exporters)} (telemetry.find_gpus)"
    )
    update = {"telemetry": telemetry.model_copy(update={"exporters": found})}
    return replace(request, config=config.model_copy(update=update))


async def _users(config: BenchmarkConfig, stack: str, cluster: Cluster) -> _Users | None:
    """Return the target's pods; None if they use no GPUs, or if that is unknown."""
    target = config.deployment.target
    if target.kind != "none":
        if target.gpu is None:
            return None
        name = Identity(stack=stack, run_id="", version="").name(HOST)
        return _Users("", (f"{DEPLOYMENT}{name}",), None)
    if target.pods is None:
        return None
    selector = ",".join(f"{key}={value}" for key, value in target.pods.labels.items())
    path = f"/api/v1/namespaces/{target.pods.namespace}/pods"
    try:
        pods = (await cluster.get(path, **({"labelSelector": selector} if selector else {})))[
            "items"
        ]
    except Refused:
        return None
    using = [pod for pod in pods if pod["spec"].get("nodeName") and _uses_gpus(pod)]
    if not using:
        return None
    names = tuple(sorted(pod["metadata"]["name"] for pod in using))
    return _Users(target.pods.namespace, names, frozenset(p["spec"]["nodeName"] for p in using))


def _uses_gpus(pod: Mapping[str, Any]) -> bool:
    return any(
        is_gpu(resource)
        for container in pod["spec"].get("containers") or ()
        for resource in (container.get("resources") or {}).get("limits") or ()
    )
