"""Decides whether a stack can use a namespace: whether it exists, admits the pods, adds no sidecars
to them, and lasts long enough."""

from datetime import datetime

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.units import format_duration
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.stack import LEVELS, StackPlan

ENFORCE = "pod-security.kubernetes.io/enforce"
MESHES = {
    "istio-injection": ("enabled",),
    "istio.io/rev": (),
    "istio.io/dataplane-mode": ("ambient",),
    "linkerd.io/inject": ("enabled", "ingress"),
    "kuma.io/sidecar-injection": ("enabled", "true"),
    "consul.hashicorp.com/connect-inject": ("true",),
}
"""Labels and annotations that add every pod of a namespace to a mesh; () is any value."""


def judge_namespace(plan: StackPlan, namespace: Json | None) -> Check:
    """Check whether the namespace is as in the config. `namespace` is None if it does not exist."""
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
            return Check("namespace", "ok", f"{wanted.name} exists already, from this stack")
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
            f"create it (kubectl create namespace {wanted.name}), or use mode: create",
        )
    return Check("namespace", "ok", f"{wanted.name} is used, and is not removed with the stack")


def is_own(plan: StackPlan, namespace: Json) -> bool:
    """Return whether an earlier `up` of the same stack created the namespace."""
    labels = namespace["metadata"].get("labels") or {}
    return labels.items() >= plan.identity.selector().items()


def judge_time_left(plan: StackPlan, created: str, now: datetime) -> Check:
    """Check whether a stack created at `created` lives long enough for another run."""
    config = plan.config
    passed = round((now - datetime.fromisoformat(created)).total_seconds()) * SECOND_NS
    left, load = config.deployment.ttl - passed, plan.times.load
    exists = f"the stack exists already, {format_duration(max(left, 0))} before its deadline"
    remedy = f"remove it first (aiperf-svc gc {plan.identity.stack}), or raise deployment.ttl"
    if left < load:
        detail = f"{exists}, and the load takes up to {format_duration(load)}"
        return Check("time left", "failed", detail, remedy)
    if left < plan.times.start + load:
        detail = f"{exists}: enough only if its pods get ready before deployment.ready_timeout"
        return Check("time left", "warning", detail, remedy)
    return Check("time left", "ok", exists)


def judge_pod_security(plan: StackPlan, namespace: Json | None) -> Check:
    """Check whether the namespace admits pods of the plan's level."""
    why = f" ({'; '.join(note for note in plan.notes if note.startswith('Pod Security'))})"
    needed = plan.pod_security + (why if plan.pod_security != "restricted" else "")
    if namespace is None or is_own(plan, namespace):
        return Check("pod security", "ok", f"the stack's namespace enforces {needed}")
    level = (namespace["metadata"].get("labels") or {}).get(ENFORCE, "")
    if level not in LEVELS:
        detail = f"the namespace has no label that enforces a level; the pods are {needed}"
        return Check("pod security", "ok", detail)
    if LEVELS.index(level) < LEVELS.index(plan.pod_security):
        return Check(
            "pod security",
            "failed",
            f"the namespace enforces {level}, the pods need {needed}",
            f"label the namespace {ENFORCE}={plan.pod_security}, or change the config that needs "
            "this level",
        )
    return Check("pod security", "ok", f"the namespace enforces {level}; the pods are {needed}")


def judge_mesh(namespace: Json | None) -> Check:
    metadata = (namespace or {}).get("metadata", {})
    marks = {**(metadata.get("annotations") or {}), **(metadata.get("labels") or {})}
    found = [
        f"{key}={marks[key]}"
        for key, values in MESHES.items()
        if key in marks and (not values or marks[key] in values)
    ]
    if not found:
        return Check("sidecars", "ok", "the namespace requests none")
    return Check(
        "sidecars",
        "warning",
        f"the namespace is in a service mesh ({', '.join(found)}); the stack's pods opt out of "
        "Istio and Linkerd, and a target that accepts only traffic of the mesh refuses them",
        "use a namespace outside the mesh",
    )
