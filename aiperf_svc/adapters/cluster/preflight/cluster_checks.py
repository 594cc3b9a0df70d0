"""Checks a cluster before anybody plans a stack for it: nodes, clocks, GPUs, exporters, network."""

from collections.abc import Callable
from typing import Any

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.preflight.checklist import judge_cluster
from aiperf_svc.adapters.cluster.preflight.exporters import find_exporters
from aiperf_svc.adapters.cluster.preflight.network_probe import probe_network
from aiperf_svc.adapters.cluster.preflight.node_facts import read_nodes
from aiperf_svc.adapters.cluster.teardown.leaks import LeakReport
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.core.cluster.gpu_checks import (
    GpuType,
    gpu_types,
    judge_exporters,
    judge_gpus,
    judge_xids,
)
from aiperf_svc.core.cluster.network_check import judge_policies
from aiperf_svc.core.cluster.node_checks import judge_clocks, judge_nodes, judge_pressure

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all checks."""

    checks: tuple[Check, ...]
    gpus: tuple[GpuType, ...]
    left: LeakReport | None
    """What is left of the pods that tried the network; None if none were made."""


async def check_cluster(
    cluster: Cluster, *, image: str, version: str, say: Callable[[str], None]
) -> ClusterReport:
    """Run all checks. `image` is that of the pods that try the network. Raises
    EnvironmentProblem."""
    objects = await _list(cluster, "/api/v1/nodes")
    pods = await _list(cluster, "/api/v1/pods", fieldSelector="spec.nodeName!=")
    leases = await _list(cluster, LEASES)
    nodes = read_nodes(objects or (), pods, leases)
    exporters = await find_exporters(cluster)
    probed = await probe_network(cluster, exporters or (), image=image, version=version, say=say)
    checks = [judge_cluster(cluster)]
    if objects is None:
        checks.append(Check("nodes", "not checked", "not allowed to list nodes"))
    else:
        checks += [judge_nodes(nodes), judge_pressure(nodes), judge_clocks(nodes)]
        checks += judge_gpus(nodes)
    pages = probed.result.pages
    checks.append(judge_exporters(nodes, exporters, pages))
    if (xids := judge_xids(exporters, pages)) is not None:
        checks.append(xids)
    checks.append(judge_policies(probed.result))
    return ClusterReport(checks=tuple(checks), gpus=gpu_types(nodes), left=probed.left)


async def _list(cluster: Cluster, path: str, **params: str) -> list[dict[str, Any]] | None:
    """List objects; None if that is not allowed."""
    try:
        items: list[dict[str, Any]] = (await cluster.get(path, **params))["items"]
    except Refused:
        return None
    return items
