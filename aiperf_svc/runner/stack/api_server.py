"""Narrows the egress of the pod that deletes the stack to the addresses of the API server.

A plan made without a cluster cannot know them, so a plain `pulumi up` allows every address.
"""

import ipaddress
from collections.abc import Callable
from dataclasses import replace

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.runner.stack.request import StackRequest

CILIUM = "/apis/cilium.io"
SERVICE = "/api/v1/namespaces/default/services/kubernetes"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"


async def with_api_server(
    request: StackRequest, cluster: Cluster, *, say: Callable[[str], None]
) -> StackRequest:
    """Return the request with `deployment.api_server_cidrs` added, if the file has none and the
    cluster reports the addresses; else unchanged, and say why. Raises Unreachable."""
    deployment = request.config.deployment
    if deployment.api_server_cidrs or not deployment.network_policies:
        return request
    found, why = await _addresses(cluster)
    if why:
        say(
            f"note: the deadline's pod may reach every address, because {why}; "
            "deployment.api_server_cidrs restricts it"
        )
        return request
    cidrs = tuple(f"{each}/{each.max_prefixlen}" for each in sorted(found, key=str))
    narrowed = deployment.model_copy(update={"api_server_cidrs": cidrs})
    config = request.config.model_copy(update={"deployment": narrowed})
    return replace(request, config=config)


Address = ipaddress.IPv4Address | ipaddress.IPv6Address


async def _addresses(cluster: Cluster) -> tuple[set[Address], str]:
    """Return the addresses of the API server, as pods and policies see it; else why they are not
    used. Some plugins apply policies before the Service's address is translated."""
    try:
        await cluster.get(CILIUM)
    except Refused:
        pass
    else:
        return set(), "Cilium does not match the API server by its address"
    try:
        service = await cluster.get(SERVICE)
        slices = await cluster.get(SLICES, labelSelector="kubernetes.io/service-name=kubernetes")
    except Refused:
        return set(), "the addresses of the API server (Service kubernetes) cannot be read"
    texts = [
        text for each in slices["items"] for end in each["endpoints"] for text in end["addresses"]
    ]
    if not texts:
        return set(), "the cluster reports no address of the API server"
    texts += service["spec"].get("clusterIPs") or []
    return {ipaddress.ip_address(text) for text in texts if text != "None"}, ""
