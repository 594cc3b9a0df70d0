"""Finds out whether a cluster adds nodes by itself when pods need them."""

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused

GROUPS = ("karpenter.sh", "autoscaling.x-k8s.io")
"""API groups of programs that do."""


async def adds_nodes(cluster: Cluster) -> bool:
    """Return whether the cluster has such a program. Raises Unreachable."""
    groups = await cluster.get("/apis")
    names = {group["name"] for group in groups.get("groups") or ()}
    if names & set(GROUPS):
        return True
    path = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
    try:
        await cluster.get(path)
    except Refused:
        return False
    return True
