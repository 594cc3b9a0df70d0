"""Checks the images before the stack is created: whether nodes have them, whether a pod of the
services' image runs, and whether this image contains the package of a third-party workload.

The services run in the image, and such a package is installed beside the runner. Without it in the
image, each service would end with "no such kind" when the stack is up.
"""

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import NamedTuple

from aiperf_svc.adapters.cluster.api.connection import METADATA, Cluster, Refused
from aiperf_svc.adapters.cluster.preflight.admission import PodNamespace
from aiperf_svc.adapters.cluster.preflight.probe_pods import (
    end_message,
    idle_pod,
    pod_name,
    restricted_container,
    restricted_pod,
    run_pod,
)
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.core.cluster.conditions import containers_of
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.network import PREFLIGHT
from aiperf_svc.plan.pods import HOSTNAME, PodPlan
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.plan.target import in_visit
from aiperf_svc.workloads.registry import GROUP, OWN, workload_of

IMAGE, WORKLOAD = "image", "workload"
KIND_PROGRAM = """
import sys
from importlib.metadata import entry_points
group, kind, name, version = sys.argv[1:]
found = [point.dist for point in entry_points(group=group) if point.name == kind]
if not found:
    sys.exit(f"it has no package for kind {kind}")
if found[0].version != version:
    sys.exit(f"it has {found[0].name} {found[0].version}, and this machine has {version}")
"""


def judge_image(plan: StackPlan, nodes: Sequence[Json]) -> Check:
    """Check what the nodes report about the images. A node lists only its largest fifty images, so
    an unlisted image may be present."""
    every = (image for pod in plan.pods for image in pod.images)
    images = sorted({(image.name, image.pull_policy) for image in every})
    listed = [
        {name for image in node["status"].get("images") or () for name in image.get("names") or ()}
        for node in nodes
    ]
    keys = _image_keys(plan)
    lines, doubtful, is_known = [], dict[str, None](), True
    for name, policy in images:
        have = sum(bool(names & spellings(name)) for names in listed)
        if have == len(nodes) and policy != "Always":
            lines.append(f"{name} is on every node")
            continue
        is_known = False
        only_local = policy == "Never" or name.startswith("localhost/")
        if only_local:
            doubtful[keys[name]] = None
        pull_text = "is never pulled" if only_local else "is pulled by the others when a pod starts"
        lines.append(f"{name} is listed by {have} of {len(nodes)} nodes, and {pull_text}")
    if doubtful:
        return Check(
            "image",
            "warning",
            "; ".join(lines),
            f"push the image to a registry and name it in {' and '.join(doubtful)}, or load it "
            "onto the nodes",
        )
    return Check("image", "ok" if is_known else "not checked", "; ".join(lines))


def _image_keys(plan: StackPlan) -> dict[str, str]:
    """Return the config key of each image. Pods with other images contain the services' too."""
    pods = (
        (plan.ranks, "workload.image"),
        (plan.target, "deployment.target.image"),
        *((job.pod, "deployment.target.image") for job in plan.jobs),
        (plan.deadline, "deployment.image.name"),
    )
    return {image.name: key for pod, key in pods if pod for image in pod.images}


def spellings(image: str) -> frozenset[str]:
    """Return the names under which a node may list an image. Short names belong to Docker Hub."""
    first, slash, _ = image.partition("/")
    if not slash:
        return frozenset({image, f"docker.io/library/{image}"})
    if "." not in first and ":" not in first and first != "localhost":
        return frozenset({image, f"docker.io/{image}"})
    return frozenset({image})


async def check_image(cluster: Cluster, plan: StackPlan, where: PodNamespace) -> Check | None:
    """Check whether a node can run a pod of the services' image. None if no pod may be created.
    Raises Unreachable."""
    pod_namespace = await where.find()
    if pod_namespace is None:
        return None
    waited = await run_pod(cluster, pod_namespace, idle_pod(plan, pod_name(plan)))
    if waited.pod is None:
        return waited.problem(IMAGE)
    if waited.pod["status"]["phase"] == "Succeeded":
        return image_works(plan)
    return Check(
        IMAGE,
        "failed",
        f"Python does not start in {plan.deadline.image.name}: {end_message(waited.pod)}",
        "name an image of this program in deployment.image.name",
    )


def image_works(plan: StackPlan) -> Check:
    return Check(IMAGE, "ok", f"a node of the cluster has run {plan.deadline.image.name}")


class PulledImages(NamedTuple):
    """Images that a node has pulled in advance."""

    node: str
    """Value of its label `kubernetes.io/hostname`."""
    digests: dict[str, str]
    """Digest or id of each image, by name."""


async def pull_images(
    cluster: Cluster, plans: Sequence[StackPlan], *, namespace: str | None, node: str = ""
) -> PulledImages | str:
    """Pull the images of these plans' targets onto one node: `node` if set, else a node with room
    for the first target. Returns the reason if no pod may be created. `namespace` is None if it
    does not exist yet. Raises EnvironmentProblem if an image cannot be pulled, Unreachable."""
    targets = {each.target.image.name: each.target for each in plans if each.target}
    pod_namespace = await PodNamespace(cluster, plans[0], namespace).find()
    if pod_namespace is None:
        return "no pod may be created for it"
    name, digests = "", dict[str, str]()
    for image, target in targets.items():
        pod = _pulling_pod(plans[0], target, name, node)
        waited = await run_pod(
            cluster,
            pod_namespace,
            pod,
            until=lambda pod: bool(_image_id(pod)),
            longest_s=target.ready_timeout_s,
        )
        if waited.is_image_missing:
            raise EnvironmentProblem(f"image {image} cannot be pulled: {waited.failure}")
        if waited.pod is None:
            return waited.failure
        name = waited.pod["spec"]["nodeName"]
        digests[image] = _image_id(waited.pod).rpartition("://")[2]
    return PulledImages(node or await _hostname(cluster, name), digests)


def _pulling_pod(plan: StackPlan, target: PodPlan, name: str, host: str) -> Json:
    """Return a pod with a program that does not exist: its start error shows that the image is
    present. The first pod requests the target's resources, so the scheduler finds a node; the
    others go to the node with that `name`."""
    is_first, placement = not name, in_visit(target, node=host).placement
    if name:  # The kubelet refuses a pod on a node that its affinity excludes.
        placement = placement.model_copy(update={"require_nodes": {}})
    requests = target.requests if is_first else plan.deadline.requests
    container = restricted_container(
        PREFLIGHT, ("/aiperf-pulls-only",), image=target.image, requests=requests
    )
    for each in container["resources"].values():
        if requests.gpu is not None:
            each[requests.gpu.resource] = str(requests.gpu.count)
        if not requests.storage_limit_bytes:
            del each["ephemeral-storage"]
    pod = restricted_pod(
        pod_name(plan),
        [container],
        labels=plan.identity.labels(PREFLIGHT),
        annotations=plan.identity.annotations,
        image=target.image,
        placement=placement,
        deadline_s=target.ready_timeout_s,
    )
    if name:
        pod["spec"]["nodeName"] = name
    return pod


def _image_id(pod: Json) -> str:
    return next((str(each.get("imageID", "")) for each in containers_of(pod)), "")


async def _hostname(cluster: Cluster, node: str) -> str:
    try:
        found = await cluster.get(f"/api/v1/nodes/{node}", accept=METADATA)
    except Refused:
        return node
    return str((found["metadata"].get("labels") or {}).get(HOSTNAME, node))


async def check_kinds(cluster: Cluster, plan: StackPlan, where: PodNamespace) -> list[Check]:
    """Check whether the image has the package of each third-party kind of tool, with a pod for each
    kind. Raises Unreachable."""
    kinds = workload_of(plan.config).kinds_of(plan.config)
    return [await _check_kind(cluster, plan, where, each) for each in kinds if each not in OWN]


async def _check_kind(cluster: Cluster, plan: StackPlan, where: PodNamespace, kind: str) -> Check:
    image = plan.deadline.image.name
    (point,) = entry_points(group=GROUP, name=kind)
    assert point.dist is not None
    package = f"{point.dist.name} {point.dist.version}"
    needed = f"image {image} must have package {package}, which adds kind {kind}"
    pod_namespace = await where.find()
    if pod_namespace is None:
        return Check(WORKLOAD, "not checked", f"{needed}; no pod may be created to check it")
    wanted = (GROUP, kind, point.dist.name, point.dist.version)
    pod = idle_pod(plan, pod_name(plan), KIND_PROGRAM, *wanted)
    waited = await run_pod(cluster, pod_namespace, pod)
    if waited.pod is None:
        return waited.problem(WORKLOAD, f"{needed}; ")
    if waited.pod["status"]["phase"] == "Succeeded":
        return Check(WORKLOAD, "ok", f"image {image} has {package} for kind {kind}")
    return Check(
        WORKLOAD,
        "failed",
        f"{needed}: {end_message(waited.pod)}",
        "build an image with the package (a Containerfile of two lines: docs/workloads.md, Add a "
        "kind), and name it in deployment.image.name",
    )
