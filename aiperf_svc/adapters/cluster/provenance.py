"""Adds to `provenance.json` and the report facts from the cluster: images and their digests,
arguments, and the nodes of the target's and the services' pods."""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, Unreachable
from aiperf_svc.adapters.cluster.api.objects import list_pods
from aiperf_svc.adapters.exports.manifest import NAME as MANIFEST
from aiperf_svc.adapters.exports.manifest import renewed
from aiperf_svc.adapters.report.tables import with_hardware
from aiperf_svc.adapters.storage.artifacts import save_manifest
from aiperf_svc.adapters.storage.atomic_files import write_file
from aiperf_svc.adapters.storage.provenance_file import read_provenance, write_provenance
from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.target import HOST, Target
from aiperf_svc.core.cluster.conditions import containers_of
from aiperf_svc.core.results.provenance import NAME, UNKNOWN, Provenance, joined, shown_arguments
from aiperf_svc.domain.errors import BenchmarkFailed
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import COMPONENT_LABEL, NAME_LABEL, PRODUCT, STACK_LABEL
from aiperf_svc.plan.index_pods import COLLECTOR
from aiperf_svc.plan.pods import HOSTNAME

NODE_TYPE = "node.kubernetes.io/instance-type"
GPU_LABELS = {
    "gpu_model": ("nvidia.com/gpu.product", "amd.com/gpu.product-name"),
    "driver": ("nvidia.com/cuda.driver-version.full", "amd.com/gpu.driver-version"),
    "cuda": ("nvidia.com/cuda.runtime-version.full",),
}
"""Labels that NVIDIA's and AMD's operators give to nodes, by fact."""


async def add_cluster_facts(
    cluster: Cluster,
    folder: Path,
    *,
    namespace: str,
    stack: str,
    target: Target,
    client: Mapping[str, str],
) -> list[Path]:
    """Add the facts to each `provenance.json` below a folder and the report beside it. Returns the
    former. `client` has further facts of the client. What the cluster refuses to show stays
    unknown. Raises EnvironmentProblem."""
    files = await asyncio.to_thread(lambda: sorted(folder.rglob(NAME)))
    if not files:
        return []
    wanted = {STACK_LABEL: stack, NAME_LABEL: PRODUCT}
    pods = await list_pods(cluster, namespace, wanted) or []
    servers = [pod for pod in pods if _component(pod) == HOST]
    services = [pod for pod in pods if _component(pod) != HOST]
    places = [(namespace, pool.labels) for pool in target.pools.values()]
    if target.pods is not None:
        places.append((target.pods.namespace, target.pods.labels))
    for where, labels in () if servers else places:
        servers += await list_pods(cluster, where, labels) or []
    # Which index of a Job ran a trial is unknown here, and the trial has the facts of its machine.
    has_indexes = any(_component(pod) == COLLECTOR for pod in services)
    own_nodes = [] if has_indexes else await _nodes(cluster, services)
    own = _pod_facts(services) | _node_facts(own_nodes)
    ours = {**_without_unknown(own), **client}
    ours.pop("arguments", None)  # Those of the services follow from the config.
    nodes = await _nodes(cluster, servers)
    place = {
        "node": joined(_label(node, HOSTNAME) for node in nodes),
        "started": joined(_starts(servers)),
    }
    its = _without_unknown(_pod_facts(servers) | _node_facts(nodes) | place)
    fallback = {
        name: joined(_label(node, label) for node in nodes for label in labels)
        for name, labels in GPU_LABELS.items()
    }
    for path in files:
        found = await asyncio.to_thread(read_provenance, path.parent)
        # A resumed experiment has trials with the facts of an earlier stack.
        if found is not None and found.client.get("image", UNKNOWN) == UNKNOWN:
            both = found.with_facts(client=ours, target=its, fallback=_without_unknown(fallback))
            await asyncio.to_thread(_write, folder, path, both)
    return files


def _write(root: Path, path: Path, found: Provenance) -> None:
    """Write the file and its part of the report again, and their entries in the manifests above
    them."""
    write_provenance(path.parent, found)
    changed, report = [path], path.with_name("report.html")
    if report.is_file():
        page = with_hardware(report.read_bytes(), found)
        write_file(report, lambda: page)
        changed.append(report)
    for above in path.parents:
        if (above / MANIFEST).is_file():
            save_manifest(above, renewed(above, changed))
        if above == root:
            break


async def _nodes(cluster: Cluster, pods: list[Json]) -> list[Json]:
    names = sorted({name for pod in pods if (name := pod["spec"].get("nodeName"))})
    found = []
    for name in names:
        try:
            found.append(await cluster.get(f"/api/v1/nodes/{name}"))
        except Refused:
            break
    return found


def _pod_facts(pods: list[Json]) -> dict[str, str]:
    containers = [pod["spec"]["containers"][0] for pod in pods]
    names = {container["name"] for container in containers}
    digests = [
        status.get("imageID", "")
        for pod in pods
        for status in containers_of(pod)
        if status.get("name") in names
    ]
    commands = [(*(c.get("command") or ()), *(c.get("args") or ())) for c in containers]
    return {
        "image": joined(container.get("image", "") for container in containers),
        "image_digest": joined(digest.rpartition("://")[2] for digest in digests),
        "arguments": joined(map(shown_arguments, commands)),
    }


def _starts(pods: Iterable[Json]) -> list[str]:
    """Return when the first container of each pod started, if it runs."""
    return [
        str(running["startedAt"])
        for pod in pods
        for status in containers_of(pod)
        if status.get("name") == pod["spec"]["containers"][0]["name"]
        if (running := (status.get("state") or {}).get("running") or {}).get("startedAt")
    ]


async def newest_start_ns(cluster: Cluster, namespace: str, labels: Mapping[str, str]) -> int:
    """Return when the newest of the servers with these labels started, in ns by the clock of its
    node, which counts whole seconds. Raises BenchmarkFailed if that is unknown."""
    try:
        pods = await list_pods(cluster, namespace, labels) or []
    except Unreachable as error:
        raise BenchmarkFailed(f"the start of the target is unknown: {error}") from error
    starts = _starts(pod for pod in pods if "deletionTimestamp" not in pod["metadata"])
    if not starts:
        raise BenchmarkFailed("the start of the target is unknown: no pod of it runs")
    return max(round(datetime.fromisoformat(each).timestamp()) for each in starts) * SECOND_NS


def _node_facts(nodes: list[Json]) -> dict[str, str]:
    infos = [(node.get("status") or {}).get("nodeInfo") or {} for node in nodes]
    return {
        "node_type": joined(_label(node, NODE_TYPE) for node in nodes),
        "kernel": joined(info.get("kernelVersion", "") for info in infos),
        "os": joined(info.get("osImage", "") for info in infos),
        "container_runtime": joined(info.get("containerRuntimeVersion", "") for info in infos),
    }


def _without_unknown(facts: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in facts.items() if text}


def _component(pod: Json) -> str:
    return str((pod["metadata"].get("labels") or {}).get(COMPONENT_LABEL, ""))


def _label(node: Json, name: str) -> str:
    return str((node["metadata"].get("labels") or {}).get(name, ""))
