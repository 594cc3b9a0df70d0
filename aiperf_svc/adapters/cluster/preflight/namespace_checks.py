"""Decides whether a namespace exists, admits a stack's pods, and does not modify them. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.units import format_duration
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.plan.stack import StackPlan

Object = Mapping[str, Any]
LEVELS = ("restricted", "baseline", "privileged")
"""Pod Security levels, from strict to lax."""
ENFORCE = "pod-security.kubernetes.io/enforce"
MESHES = {
    "istio-injection": ("enabled",),
    "istio.io/rev": (),
    "linkerd.io/inject": ("enabled", "ingress"),
    "kuma.io/sidecar-injection": ("enabled", "true"),
    "consul.hashicorp.com/connect-inject": ("true",),
}
"""Labels and annotations by which a namespace asks for a sidecar in every pod; () means any
value."""


def judge_namespace(plan: StackPlan, namespace: Object | None) -> Check:
    """Check whether the namespace is as the config says. None: it does not exist."""
    wanted = plan.config.deployment.namespace
    if wanted.mode == "auto":
        name = f"aiperf-{plan.identity.stack}-…"
        return Check("namespace", "ok", f"{name} is created, and removed with the stack")
    if namespace is not None and namespace.get("status", {}).get("phase") == "Terminating":
        return Check(
            "namespace",
            "failed",
            f"{wanted.name} is being deleted",
            "wait until it is gone, or use another one",
        )
    if wanted.mode == "create":
        if namespace is None:
            return Check("namespace", "ok", f"{wanted.name} is created, and removed with the stack")
        if is_own(plan, namespace):
            return Check("namespace", "ok", f"{wanted.name} is there already, from this stack")
        return Check(
            "namespace",
            "failed",
            f"{wanted.name} exists, and deployment.namespace.mode is create",
            "use mode: existing, which removes only the stack's own objects, or another name",
        )
    if namespace is None:
        return Check(
            "namespace",
            "failed",
            f"{wanted.name} does not exist, and deployment.namespace.mode is existing",
            f"make it (kubectl create namespace {wanted.name}), or use mode: create",
        )
    return Check("namespace", "ok", f"{wanted.name} is used, and stays")


def is_own(plan: StackPlan, namespace: Object) -> bool:
    """Return whether an earlier `up` of the same stack made the namespace."""
    labels = namespace["metadata"].get("labels") or {}
    return labels.items() >= plan.identity.selector().items()


def judge_time_left(plan: StackPlan, created: str, now: datetime) -> Check:
    """Check whether a stack created at `created` lives long enough for another run."""
    config = plan.config
    passed = round((now - datetime.fromisoformat(created)).total_seconds()) * SECOND_NS
    left, load = config.deployment.ttl - passed, plan.times.load
    said = f"the stack is there already, {format_duration(max(left, 0))} before its deadline"
    remedy = f"remove it first (aiperf-svc gc {plan.identity.stack}), or raise deployment.ttl"
    if left < load:
        words = f"{said}, and the load takes up to {format_duration(load)}"
        return Check("time left", "failed", words, remedy)
    if left < plan.times.start + load:
        words = f"{said}: enough only if its pods get ready sooner than they must"
        return Check("time left", "warning", words, remedy)
    return Check("time left", "ok", said)


def judge_pod_security(plan: StackPlan, namespace: Object | None) -> Check:
    """Check whether the namespace admits pods of the plan's level."""
    why = f" ({'; '.join(note for note in plan.notes if note.startswith('Pod Security'))})"
    needed = plan.pod_security + (why if plan.pod_security != "restricted" else "")
    if namespace is None or is_own(plan, namespace):
        return Check("pod security", "ok", f"the stack's namespace enforces {needed}")
    level = (namespace["metadata"].get("labels") or {}).get(ENFORCE, "")
    if level not in LEVELS:
        said = "the namespace enforces no level by label"
        return Check("pod security", "ok", f"{said}; the pods are {needed}")
    if LEVELS.index(level) < LEVELS.index(plan.pod_security):
        return Check(
            "pod security",
            "failed",
            f"the namespace enforces {level}, the pods need {needed}",
            f"label the namespace {ENFORCE}={plan.pod_security}, or change what asks for it",
        )
    return Check("pod security", "ok", f"the namespace enforces {level}; the pods are {needed}")


def judge_mesh(namespace: Object | None) -> Check:
    """Check whether the namespace asks for sidecars."""
    metadata = (namespace or {}).get("metadata", {})
    marks = {**(metadata.get("annotations") or {}), **(metadata.get("labels") or {})}
    found = [
        f"{key}={marks[key]}"
        for key, values in MESHES.items()
        if key in marks and (not values or marks[key] in values)
    ]
    if not found:
        return Check("sidecars", "ok", "the namespace asks for none")
    return Check(
        "sidecars",
        "warning",
        f"the namespace asks for sidecars ({', '.join(found)}); the stack's pods opt out of "
        "Istio and Linkerd, and a target that accepts only the mesh's own traffic refuses them",
        "use a namespace outside the mesh",
    )


def judge_image(plan: StackPlan, nodes: Sequence[Object]) -> Check:
    """Check what the nodes report about the images. A node lists only its largest fifty, so an
    image that is not listed may be there."""
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
        said = "is never pulled" if only_local else "is pulled by the others when a pod starts"
        lines.append(f"{name} is listed by {have} of {len(nodes)} nodes, and {said}")
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
    """Return the key of the config that names each image. The services' image is in pods of
    others too."""
    pods = (
        (plan.ranks, "workload.image"),
        (plan.target, "deployment.target.image"),
        *((job.pod, "deployment.target.image") for job in plan.jobs),
        (plan.deadline, "deployment.image.name"),
    )
    return {image.name: key for pod, key in pods if pod for image in pod.images}


def spellings(image: str) -> frozenset[str]:
    """Return the names under which a node may list an image. Short names are Docker Hub's."""
    first, slash, _ = image.partition("/")
    if not slash:
        return frozenset({image, f"docker.io/library/{image}"})
    if "." not in first and ":" not in first and first != "localhost":
        return frozenset({image, f"docker.io/{image}"})
    return frozenset({image})
