"""Checks a cluster before a stack is planned for it: nodes, clocks, GPUs, exporters, network."""

import asyncio
from collections.abc import Callable
from datetime import datetime

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.api.objects import try_list
from aiperf_svc.adapters.cluster.preflight.checklist import judge_cluster
from aiperf_svc.adapters.cluster.preflight.cluster_facts import find_exporters, read_nodes
from aiperf_svc.adapters.cluster.preflight.network_check import probe_network
from aiperf_svc.adapters.cluster.teardown.leaks import LeakReport
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.core.cluster.cluster_checks import (
    GpuType,
    gpu_types,
    judge_clocks,
    judge_exporters,
    judge_gpus,
    judge_nodes,
    judge_policies,
    judge_pressure,
    judge_xids,
)
from aiperf_svc.core.cluster.facts import NodeFacts

FIRST_LEASE_S = 15.0
"""Longest wait for the clock of a new node. A kubelet creates its lease after ten seconds."""
POLL_S = 1.0
"""Seconds between two reads of the nodes."""
NEW_NODE_S = 60.0
"""Age up to which a node counts as new."""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    checks: tuple[Check, ...]
    gpus: tuple[GpuType, ...]
    left: LeakReport | None
    """Objects left of the pods that checked the network; None if none were created."""


async def check_cluster(
    cluster: Cluster, *, image: str, version: str, say: Callable[[str], None]
) -> ClusterReport:
    """Run all checks. `image` is the image of the pods that check the network. Raises
    EnvironmentProblem."""
    exporters = await find_exporters(cluster)
    probed = await probe_network(cluster, exporters or (), image=image, version=version, say=say)
    found = await nodes_of(cluster)
    nodes = found or ()
    checks = [judge_cluster(cluster)]
    if found is None:
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


async def nodes_of(cluster: Cluster) -> tuple[NodeFacts, ...] | None:
    """Return the facts of all nodes; None if the user may not list them. Waits for the clock of a
    ready node that is too new to have reported it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + FIRST_LEASE_S
    while True:
        objects = await try_list(cluster, "/api/v1/nodes")
        if objects is None:
            return None
        pods = await try_list(cluster, "/api/v1/pods", fieldSelector="spec.nodeName!=")
        leases = await try_list(cluster, LEASES)
        nodes = read_nodes(objects, pods, leases)
        silent = {each.name for each in nodes if each.is_ready and each.clock_ahead_s is None}
        new_s = (await cluster.now()).timestamp() - NEW_NODE_S
        is_new = any(
            each["metadata"]["name"] in silent
            and datetime.fromisoformat(each["metadata"]["creationTimestamp"]).timestamp() > new_s
            for each in objects
        )
        if leases is None or not is_new or loop.time() > deadline:
            return nodes
        await asyncio.sleep(POLL_S)
