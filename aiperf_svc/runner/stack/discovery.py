"""Adds facts from the cluster to a stack's config: target pods, GPU exporters, API server.

A plan made without a cluster lacks them, so plain `pulumi up` gets wider network policies
and reads no GPU exporters.

- Network policies never match a Service's own address, only its pods and their port.
- The deadline's pod needs the API server, whose addresses are those of the Service `kubernetes`.
- For a target outside the stack, the pods and their nodes exist. The node of the stack's own target
  is unknown before it is created: all exporters are candidates, and their pages show which GPUs its
  pods use.
"""

import asyncio
import ipaddress
from dataclasses import replace
from typing import NamedTuple

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.api.objects import label_selector, list_pods
from aiperf_svc.adapters.cluster.preflight.cluster_facts import find_exporters, grouped
from aiperf_svc.adapters.cluster.preflight.images import pull_images
from aiperf_svc.adapters.cluster.preflight.target_checks import find_target_pods
from aiperf_svc.adapters.storage.provenance_file import read_provenance
from aiperf_svc.adapters.terminal.output import Say
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.parameters import is_below
from aiperf_svc.config.target import HOST
from aiperf_svc.config.telemetry import MAX_SOURCES
from aiperf_svc.config.workload import Config
from aiperf_svc.core.cluster.facts import gpus_of
from aiperf_svc.core.results.provenance import NAME as PROVENANCE
from aiperf_svc.core.results.provenance import UNKNOWN
from aiperf_svc.core.telemetry.gpu_users import DEPLOYMENT
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.identity import Identity
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.workloads.shapes import is_fanned_out

CILIUM = "/apis/cilium.io"
SERVICE = "/api/v1/namespaces/default/services/kubernetes"
SLICE = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
"""Here the API server publishes its own addresses. A role can allow reading this one object."""


async def pin_target(
    request: StackRequest, cluster: Cluster, *, say: Say, has_pulled: bool = False
) -> str:
    """Choose the node of the target for all visits of an experiment in blocks, and pull the images
    of all visits there unless an earlier runner `has_pulled` them. Returns the node's label
    `kubernetes.io/hostname`, empty if no node is chosen. A resumed experiment keeps its node.

    Raises EnvironmentProblem, and ConfigError for a release that cannot be started again.
    """
    experiment, plan = request.config.experiment, request.plan
    blocks = experiment.blocks if experiment is not None else None
    if blocks is None or not is_below(blocks.over, "deployment.target"):
        return ""
    if any(each.release is not None for each in request.plans):
        if blocks.restarts_target and any(p.release and p.release.installed for p in request.plans):
            raise ConfigError(
                "deployment.target.from.hooks: experiment.blocks starts the release again for each "
                "visit, and Helm keeps pods that do not change; leave out hooks, or set "
                "experiment.blocks.restart to false"
            )
        say(
            "blocks: the target is a release, so no image is pulled before the first visit, and no "
            "node is chosen for all visits (its objects can name some)"
        )
        return ""
    if plan.target is None:
        return ""
    if plan.target.replicas > 1:
        say(
            "blocks: the target has several replicas, so no node is chosen for all visits "
            "(deployment.target.placement can name some)"
        )
        return ""
    known = await asyncio.to_thread(_earlier_node, request)
    if has_pulled:
        return known
    namespace = request.config.deployment.namespace
    found = await pull_images(
        cluster,
        request.plans,
        namespace=namespace.name if namespace.mode == "existing" else None,
        node=known,
    )
    if isinstance(found, str):
        say(f"blocks: the images are not pulled before the first visit: {found}")
        return known
    for name, digest in found.digests.items():
        say(f"blocks: image {name} is {digest} on node {found.node}")
    return found.node


def _earlier_node(request: StackRequest) -> str:
    """Return the node of the target in the trials that have ended; empty without any."""
    if not request.is_resumed or request.folder is None:
        return ""
    for path in sorted(request.folder.rglob(PROVENANCE)):
        found = read_provenance(path.parent)
        node = found.target.get("node", UNKNOWN) if found is not None else UNKNOWN
        if node != UNKNOWN and "; " not in node:
            return node
    return ""


async def with_target_pods(request: StackRequest, cluster: Cluster, *, say: Say) -> StackRequest:
    """Return the request with `deployment.target.pods` added, if the file does not restrict the
    egress to the target and the cluster lists its pods; else unchanged. Raises Unreachable."""
    config = request.config.inference
    own = [request.shapes[number - 1].configs[0] for number in request.own_shapes]
    found = {url for each in own if (url := _unrestricted_url(each))}
    if config is None or len(found) != 1 or not all(map(_unrestricted_url, own)):
        # With several addresses, the policies of each shape follow from its own address.
        return request
    deployment, target = config.deployment, config.deployment.target
    (url,) = found
    pods = await find_target_pods(cluster, url)
    if pods is None:
        return request
    labels = label_selector(pods.labels)
    reach = f"its pods ({labels} in namespace {pods.namespace}, port {pods.port}) and nothing else"
    if pods.host_network:
        reach = f"port {pods.port} of every address, because its pods use their nodes' network"
    say(
        f"note: {url} is a Service of the cluster: workers, and the reader of its metrics, may "
        f"reach {reach}, as with deployment.target.pods"
    )
    update = {"target": target.model_copy(update={"pods": pods})}
    narrowed = config.model_copy(update={"deployment": deployment.model_copy(update=update)})
    return replace(request, config=narrowed)


def _unrestricted_url(config: Config) -> str:
    """Return the URL of a target to which the config does not restrict the egress; empty if there
    is none."""
    inference = config.inference
    if inference is None or inference.endpoint.urls:
        return ""
    deployment, target = config.deployment, config.deployment.target
    if target.kind != "none" or target.pods or target.egress_cidrs:
        return ""
    return inference.endpoint.url if deployment.network_policies else ""


async def with_api_server(request: StackRequest, cluster: Cluster, *, say: Say) -> StackRequest:
    """Return the request with `deployment.api_server_cidrs` added, if the file has none and the
    cluster reports the addresses; else unchanged, and say why. Raises Unreachable."""
    deployment = request.config.deployment
    if deployment.api_server_cidrs or not deployment.network_policies:
        return request
    cidrs, why = await _addresses(cluster)
    if why:
        say(
            f"note: the deadline's pod may reach every address, because {why}; "
            "deployment.api_server_cidrs restricts it"
        )
        return request
    narrowed = deployment.model_copy(update={"api_server_cidrs": tuple(sorted(cidrs))})
    config = request.config.model_copy(update={"deployment": narrowed})
    return replace(request, config=config)


async def _addresses(cluster: Cluster) -> tuple[set[str], str]:
    """Return the CIDRs of the API server, as pods and policies see them; else why they are not
    used. Some plugins apply policies before the Service's address is translated."""
    try:
        await cluster.get(CILIUM)
        return set(), "Cilium does not match the API server by its address"
    except Refused as error:
        if error.is_temporary:
            return set(), f"whether the cluster has Cilium is unknown ({error})"
    try:
        service = await cluster.get(SERVICE)
        ends = (await cluster.get(SLICE)).get("endpoints") or ()
    except Refused:
        objects = "Service and EndpointSlice kubernetes in namespace default"
        return set(), f"the addresses of the API server ({objects}) cannot be read"
    texts = [text for end in ends for text in end["addresses"]]
    if not texts:
        return set(), "the cluster reports no address of the API server"
    texts += service["spec"].get("clusterIPs") or []
    return {str(ipaddress.ip_network(text)) for text in texts if text != "None"}, ""


class _GpuPods(NamedTuple):
    """The pods whose GPUs are read."""

    namespace: str
    """Empty: the stack's own."""
    names: tuple[str, ...]
    """Their names, or `deployment/NAME`."""
    nodes: frozenset[str] | None
    """Their nodes; None: not known yet."""


async def with_gpu_exporters(request: StackRequest, cluster: Cluster, *, say: Say) -> StackRequest:
    """Return the request with `telemetry.exporters` added, if the target uses GPUs and the file
    names no page of an exporter; else unchanged. Raises Unreachable."""
    config = request.config.inference
    if config is None or not config.telemetry.find_gpus:
        return request
    telemetry = config.telemetry
    is_named = any(page.is_gpu for page in telemetry.named_pages)
    if is_named or telemetry.exporters or is_fanned_out(config):
        # Pages do not distinguish the servers of two indexes.
        return request
    pods = await _gpu_pods(config, request.stack, cluster)
    exporters = await find_exporters(cluster) if pods is not None else None
    if pods is None or not exporters:
        return request
    if pods.nodes is not None:
        exporters = tuple(each for each in exporters if each.node in pods.nodes)
    if len(exporters) > MAX_SOURCES:
        say(
            f"note: GPUs are not read: {len(exporters)} exporters are candidates, and a run "
            f"reads at most {MAX_SOURCES}; name some in telemetry.gpu_telemetry"
        )
        return request
    found = grouped(exporters, users_namespace=pods.namespace, users=pods.names)
    if not found:
        return request
    say(
        "note: GPU exporters on nodes that the target's pods may use are read if they have its "
        f"GPUs: {len(exporters)} (telemetry.find_gpus)"
    )
    update = {"telemetry": telemetry.model_copy(update={"exporters": found})}
    return replace(request, config=config.model_copy(update=update))


async def _gpu_pods(config: BenchmarkConfig, stack: str, cluster: Cluster) -> _GpuPods | None:
    """Return the target's pods; None if they use no GPUs, or if that is unknown."""
    target = config.deployment.target
    if target.kind != "none":
        if target.gpu is None:
            return None
        name = Identity(stack=stack, run_id="", version="").name(HOST)
        return _GpuPods("", (f"{DEPLOYMENT}{name}",), None)
    if target.pods is None:
        return None
    pods = await list_pods(cluster, target.pods.namespace, target.pods.labels)
    using = [pod for pod in pods or () if pod["spec"].get("nodeName") and gpus_of(pod["spec"])]
    if not using:
        return None
    names = tuple(sorted(pod["metadata"]["name"] for pod in using))
    return _GpuPods(target.pods.namespace, names, frozenset(p["spec"]["nodeName"] for p in using))
