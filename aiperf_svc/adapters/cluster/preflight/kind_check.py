"""Checks whether the services' image has a workload that a package of its own adds.

The services run in the image, and the package is installed beside the runner. Without it in the
image, each service would end with "no such kind" after the stack is up.
"""

from importlib.metadata import entry_points

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.preflight.pod_wait import ended_words
from aiperf_svc.adapters.cluster.preflight.target_checks import pod_namespace
from aiperf_svc.adapters.cluster.preflight.target_probe import (
    IMAGE,
    idle_pod,
    pod_name,
    run_pod,
)
from aiperf_svc.config.benchmark import INFERENCE
from aiperf_svc.core.cluster.check import Check, State
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.workloads.registry import GROUP, OWN

NAME = "workload"
PROGRAM = """
import sys
from importlib.metadata import entry_points
group, kind, name, version = sys.argv[1:]
found = [point.dist for point in entry_points(group=group) if point.name == kind]
if not found:
    sys.exit(f"it has no package for kind {kind}")
if found[0].version != version:
    sys.exit(f"it has {found[0].name} {found[0].version}, and this machine has {version}")
"""


async def check_kind(cluster: Cluster, plan: StackPlan, *, namespace: str | None) -> Check | None:
    """Check with a pod whether the image has the package of the workload's kind; None if the kind
    is one of this project. `namespace` None: it does not exist yet. Raises Unreachable."""
    kind, image = plan.config.kind, plan.deadline.image.name
    if kind in (INFERENCE, *OWN):
        return None
    (point,) = entry_points(group=GROUP, name=kind)
    assert point.dist is not None
    package = f"{point.dist.name} {point.dist.version}"
    words = f"kind {kind} is of package {package}, which image {image} must have too"
    place = await pod_namespace(cluster, plan, namespace)
    if place is None:
        return Check(NAME, "not checked", f"{words}; no pod could try it")
    pod = idle_pod(plan, pod_name(plan))
    pod["spec"]["containers"][0]["command"] = [
        "python", "-P", "-c", PROGRAM, GROUP, kind, point.dist.name, point.dist.version
    ]  # fmt: skip
    check, ended = await run_pod(cluster, place, pod)
    if ended is None:
        state: State = "failed" if check.name == IMAGE else "not checked"
        return Check(NAME, state, f"{words}; {check.detail}")
    if ended["status"]["phase"] == "Succeeded":
        return Check(NAME, "ok", f"image {image} has {package} for kind {kind}")
    return Check(
        NAME,
        "failed",
        f"{words}: {ended_words(ended)}",
        "build an image with the package (a Containerfile of two lines: docs/workloads.md, Add a "
        "kind), and name it in deployment.image.name",
    )
