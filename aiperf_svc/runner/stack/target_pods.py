"""Finds the pods behind a stack's target, if that is a Service of the cluster.

NetworkPolicies never see a Service's own address, only its pods and their port, which a plan made
without a cluster cannot know. The runner reads them and opens the network policy for these pods
only.
"""

from collections.abc import Callable
from dataclasses import replace

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.preflight.target_checks import find_target_pods
from aiperf_svc.config.workload import Config
from aiperf_svc.runner.stack.request import StackRequest


async def with_target_pods(
    request: StackRequest, cluster: Cluster, *, say: Callable[[str], None]
) -> StackRequest:
    """Return the request with `deployment.target.pods` added, if the file does not restrict the
    egress to the target and the cluster knows the pods; else unchanged. Raises Unreachable."""
    config = request.config.inference
    own = [request.shapes[number - 1].configs[0] for number in request.own_shapes]
    found = {url for each in own if (url := _open_way(each))}
    if config is None or len(found) != 1 or not all(map(_open_way, own)):
        # Shapes with several addresses each have the policies that follow from their own.
        return request
    deployment, target = config.deployment, config.deployment.target
    (url,) = found
    pods = await find_target_pods(cluster, url)
    if pods is None:
        return request
    labels = ",".join(f"{key}={value}" for key, value in pods.labels.items())
    say(
        f"note: {url} is a Service of the cluster: workers, and the reader of its metrics, may "
        f"reach its pods ({labels} in namespace {pods.namespace}, port {pods.port}) and nothing "
        "else, as with deployment.target.pods"
    )
    update = {"target": target.model_copy(update={"pods": pods})}
    narrowed = config.model_copy(update={"deployment": deployment.model_copy(update=update)})
    return replace(request, config=narrowed)


def _open_way(config: Config) -> str:
    """Return the address of a target to which the config does not restrict the egress; empty if
    there is none."""
    inference = config.inference
    if inference is None or inference.endpoint.urls:
        return ""
    deployment, target = config.deployment, config.deployment.target
    if target.kind != "none" or target.pods or target.egress_cidrs:
        return ""
    return inference.endpoint.url if deployment.network_policies else ""
