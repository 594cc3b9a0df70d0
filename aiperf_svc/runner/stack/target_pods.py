"""Finds the pods behind a stack's target, if that is a Service of the cluster.

NetworkPolicies never see a Service's own address, only its pods and their port, which a plan made
without a cluster cannot know. The runner reads them and opens the network policy for these pods
only.
"""

import copy
from collections.abc import Callable
from dataclasses import replace

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.preflight.target_checks import find_target_pods
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.runner.stack.request import StackRequest


async def with_target_pods(
    request: StackRequest, cluster: Cluster, *, say: Callable[[str], None]
) -> StackRequest:
    """Return the request with `deployment.target.pods` added, if the file does not restrict the way
    to the target and the cluster knows the pods; else unchanged. Raises Unreachable."""
    config = request.config
    if not isinstance(config, BenchmarkConfig):
        return request
    deployment, target = config.deployment, config.deployment.target
    if target.kind != "none" or target.pods or target.egress_cidrs:
        return request
    if not deployment.network_policies or config.endpoint.urls:
        return request
    pods = await find_target_pods(cluster, config.endpoint.url)
    if pods is None:
        return request
    labels = ",".join(f"{key}={value}" for key, value in pods.labels.items())
    say(
        f"note: {config.endpoint.url} is a Service of the cluster: workers may reach its pods "
        f"({labels} in namespace {pods.namespace}, port {pods.port}) and nothing else; "
        "deployment.target.pods says the same"
    )
    benchmark = copy.deepcopy(dict(request.benchmark))
    written = benchmark["deployment"] = {**(benchmark.get("deployment") or {})}
    written["target"] = {**(written.get("target") or {}), "pods": pods.model_dump(mode="json")}
    update = {"target": target.model_copy(update={"pods": pods})}
    narrowed = config.model_copy(update={"deployment": deployment.model_copy(update=update)})
    return replace(request, benchmark=benchmark, config=narrowed)
