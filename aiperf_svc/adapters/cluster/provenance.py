"""Adds facts from the cluster to `provenance.json` and the report: images and their digests,
arguments, and the nodes of the target's and the services' pods."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

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
from aiperf_svc.core.cluster.conditions import all_containers_of, index_of
from aiperf_svc.core.results.provenance import NAME, UNKNOWN, Provenance, joined, shown_arguments
from aiperf_svc.domain.errors import BenchmarkFailed
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import COMPONENT_LABEL, NAME_LABEL, PRODUCT, STACK_LABEL
from aiperf_svc.plan.index_pods import COLLECTOR, SHAPES_ENV, server_of
from aiperf_svc.plan.pods import HOSTNAME
from aiperf_svc.workloads.shapes import Shape

NODE_TYPE = "node.kubernetes.io/instance-type"
GPU_LABELS = {
    "gpu_model": ("nvidia.com/gpu.product", "amd.com/gpu.product-name"),
    "driver": ("nvidia.com/cuda.driver-version.full", "amd.com/gpu.driver-version"),
    "cuda": ("nvidia.com/cuda.runtime-version.full",),
}
"""Labels that NVIDIA's and AMD's operators give to nodes, by fact."""


class _Facts(NamedTuple):
    """The facts of both sides that their pods and nodes show."""

    client: dict[str, str]
    target: dict[str, str]
    fallback: dict[str, str]
    """Facts of the target where nothing better is known."""


async def add_cluster_facts(
    cluster: Cluster,
    folder: Path,
    *,
    namespace: str,
    stack: str,
    target: Target,
    indexes: Sequence[Shape] = (),
    client: Mapping[str, str],
) -> list[Path]:
    """Add the facts to each `provenance.json` below a folder and to the report beside it. Return
    the `provenance.json` files. `indexes` are the shapes that run in Jobs, and `client` has further
    facts about the client. Facts that the cluster refuses to show remain unknown. Raises
    EnvironmentProblem."""
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
    nodes = await _nodes(cluster, [*services, *servers])
    # Without the pod of its index, a trial keeps the facts of its machine.
    has_indexes = any(_component(pod) == COLLECTOR for pod in services)
    others = _facts(services, servers, map(_main, servers), {} if has_indexes else nodes)
    by_trial = _facts_by_trial(services, indexes, nodes)
    for path in files:
        found = await asyncio.to_thread(read_provenance, path.parent)
        # Trials of a resumed experiment have the facts of an earlier stack.
        if found is not None and found.client.get("image", UNKNOWN) == UNKNOWN:
            facts = by_trial.get(_number(path.parent.name), others)
            both = found.with_facts(
                client={**facts.client, **client}, target=facts.target, fallback=facts.fallback
            )
            await asyncio.to_thread(_write, folder, path, both)
    return files


def _write(root: Path, path: Path, found: Provenance) -> None:
    """Rewrite the file, its part of the report, and their entries in the manifests above."""
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


def _facts_by_trial(
    pods: Iterable[Json], indexes: Sequence[Shape], nodes: Mapping[str, Json]
) -> dict[str, _Facts]:
    """Return the facts of each trial that an index has run, by its number."""
    by_shape: dict[int, list[Json]] = {}
    for pod in pods:
        env = {each["name"]: each.get("value") for each in _main(pod).get("env") or ()}
        if shapes := env.get(SHAPES_ENV):
            by_shape.setdefault(int(shapes.split(",")[index_of(pod)]), []).append(pod)
    found: dict[str, _Facts] = {}
    for number, shape in enumerate(indexes, start=1):
        own = by_shape.get(number, [])
        # The attempt that has not failed left the trials.
        own = [pod for pod in own if pod["status"]["phase"] != "Failed"] or own
        config = shape.configs[0].inference
        if own and config is not None:
            facts = _facts(own, own, map(_server_beside, own), nodes)
            # Its container has a launcher.
            facts.target["arguments"] = shown_arguments(server_of(config).command)
            found |= {_number(trial.folder): facts for trial in shape.trials}
    return found


def _number(trial: str) -> str:
    """Return the number of a trial in the name of its folder."""
    return trial.partition("-")[0]


def _facts(
    services: Sequence[Json],
    servers: Sequence[Json],
    containers: Iterable[Json],
    nodes: Mapping[str, Json],
) -> _Facts:
    """Return the facts of these pods. `containers` are those of the servers."""
    own, others = _nodes_of(services, nodes), _nodes_of(servers, nodes)
    client = _without_unknown(_pod_facts(map(_main, services)) | _node_facts(own))
    client.pop("arguments", None)  # Those of the services follow from the config.
    known = list(containers)
    place = {
        "node": joined(_label(node, HOSTNAME) for node in others),
        "started": joined(map(_start, known)),
    }
    labels = {
        name: joined(_label(node, label) for node in others for label in labels)
        for name, labels in GPU_LABELS.items()
    }
    target = _pod_facts(known) | _node_facts(others) | place
    return _Facts(client, _without_unknown(target), _without_unknown(labels))


async def _nodes(cluster: Cluster, pods: Iterable[Json]) -> dict[str, Json]:
    """Return the nodes of these pods by name, without those that the cluster refuses to show."""
    names = sorted({name for pod in pods if (name := pod["spec"].get("nodeName"))})
    found = {}
    for name in names:
        try:
            found[name] = await cluster.get(f"/api/v1/nodes/{name}")
        except Refused as error:
            if error.status != HTTPStatus.NOT_FOUND:  # a node may be gone by now
                break
    return found


def _nodes_of(pods: Iterable[Json], nodes: Mapping[str, Json]) -> list[Json]:
    names = sorted({pod["spec"].get("nodeName") or "" for pod in pods})
    return [nodes[name] for name in names if name in nodes]


def _main(pod: Json) -> Json:
    """Return the first container of a pod with its status."""
    return _with_status(pod, pod["spec"]["containers"][0])


def _server_beside(pod: Json) -> Json:
    """Return the server in the pod of an index with its status."""
    own = next(each for each in pod["spec"]["initContainers"] if each["name"] == HOST)
    return _with_status(pod, own)


def _with_status(pod: Json, container: Json) -> Json:
    statuses = (s for s in all_containers_of(pod) if s.get("name") == container["name"])
    return next(statuses, {}) | container


def _pod_facts(containers: Iterable[Json]) -> dict[str, str]:
    known = list(containers)
    commands = [(*(c.get("command") or ()), *(c.get("args") or ())) for c in known]
    return {
        "image": joined(container.get("image", "") for container in known),
        "image_digest": joined(c.get("imageID", "").rpartition("://")[2] for c in known),
        "arguments": joined(map(shown_arguments, commands)),
    }


def _start(container: Json) -> str:
    """Return the start time of a container that runs, or that ended with its Job; else empty."""
    state = container.get("state") or {}
    return str((state.get("running") or state.get("terminated") or {}).get("startedAt") or "")


async def newest_start_ns(cluster: Cluster, namespace: str, labels: Mapping[str, str]) -> int:
    """Return the start time of the newest of the servers with these labels, in ns by its node's
    clock, in whole seconds. Raises BenchmarkFailed if it is unknown."""
    try:
        pods = await list_pods(cluster, namespace, labels) or []
    except Unreachable as error:
        raise BenchmarkFailed(f"the start of the target is unknown: {error}") from error
    servers = (_main(pod) for pod in pods if "deletionTimestamp" not in pod["metadata"])
    starts = [_start(each) for each in servers if "running" in (each.get("state") or {})]
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
