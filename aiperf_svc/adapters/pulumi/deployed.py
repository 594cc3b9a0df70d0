"""Reads from Pulumi's state which cluster, namespace, benchmark and run a stack has. Pure."""

from collections.abc import Iterator

from aiperf_svc.config.yaml_files import parse_yaml
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import ANCHOR, RUN_ID


def resources(state: Json, kind: str) -> Iterator[Json]:
    """Yield the resources whose type begins with `kind`, except those that were replaced."""
    for each in state.get("deployment", {}).get("resources") or ():
        if each.get("type", "").startswith(kind) and not each.get("delete"):
            yield each


def namespace_of(state: Json) -> tuple[str, str] | None:
    """Return the name and UID of the stack's own namespace."""
    for each in resources(state, "kubernetes:core/v1:Namespace"):
        metadata = each.get("outputs", {}).get("metadata", {})
        if metadata.get("uid"):
            return str(metadata["name"]), str(metadata["uid"])
    return None


def roots_of(state: Json, *, stack: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the UIDs of the stack's roots, its namespaces and anchors, and the names of those
    whose creation had not ended when the state was written."""
    deployment = state.get("deployment") or {}
    names = ("kubernetes:core/v1:Namespace", "kubernetes:core/v1:ConfigMap")

    def metadata(each: Json, side: str) -> Json:
        found: Json = (each.get(side) or {}).get("metadata") or {}
        is_root = each.get("type") == names[0] or found.get("name") == f"{ANCHOR}-{stack}"
        return found if each.get("type") in names and is_root else {}

    made = [metadata(each, "outputs") for each in deployment.get("resources") or ()]
    making = [
        metadata(each["resource"], "inputs") for each in deployment.get("pending_operations") or ()
    ]
    return (
        frozenset(str(each["uid"]) for each in made if each.get("uid")),
        frozenset(str(each["name"]) for each in making if each.get("name")),
    )


def benchmark_of(state: Json) -> Json | None:
    """Return the benchmark as the services read it; None if nothing is deployed."""
    for each in resources(state, "kubernetes:core/v1:ConfigMap"):
        text = (each.get("inputs", {}).get("data") or {}).get("config.yaml")
        if text:
            content: Json = parse_yaml(text)
            return content
    return None


def runs_of(state: Json) -> frozenset[str]:
    """Return the ids of the runs that the services' pods belong to. There are several if an `up`
    was interrupted."""
    return frozenset(
        str(variable["value"])
        for each in resources(state, "kubernetes:apps/v1:Deployment")
        for container in each["inputs"]["spec"]["template"]["spec"]["containers"]
        for variable in container.get("env") or ()
        if variable["name"] == RUN_ID
    )


def is_up(state: Json, *, run_id: str) -> bool:
    """Return whether an `up` of this run has completed: its outputs exist, and all pods belong to
    it."""
    outputs = [each.get("outputs") or {} for each in resources(state, "pulumi:pulumi:Stack")]
    has_outputs = any(each.get("runId") == run_id for each in outputs)
    return has_outputs and runs_of(state) == {run_id}


def check_cluster(state: Json, *, stack: str, identity: str) -> None:
    """Raise EnvironmentProblem if the state belongs to a stack in another cluster."""
    if not any(resources(state, "kubernetes:")):
        return
    for each in resources(state, "pulumi:providers:kubernetes"):
        known = each.get("inputs", {}).get("clusterIdentifier")
        if known and known != identity:
            raise EnvironmentProblem(
                f"stack {stack} is in another cluster (kube-system {known}) than this context's "
                f"({identity}); use --context or --kubeconfig, or remove it there first"
            )
