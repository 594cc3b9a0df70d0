"""What Pulumi's state says about a stack: which cluster, namespace, benchmark and run. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.plan.identity import ANCHOR, RUN_LABEL

Json = Mapping[str, Any]


def resources(state: Json, kind: str) -> Iterator[Json]:
    """Resources whose type begins like that; those that were replaced left out."""
    for each in state.get("deployment", {}).get("resources") or ():
        if each.get("type", "").startswith(kind) and not each.get("delete"):
            yield each


def namespace_of(state: Json) -> tuple[str, str] | None:
    """Name and UID of the stack's own namespace."""
    for each in resources(state, "kubernetes:core/v1:Namespace"):
        metadata = each.get("outputs", {}).get("metadata", {})
        if metadata.get("uid"):
            return str(metadata["name"]), str(metadata["uid"])
    return None


def roots_of(state: Json, *, stack: str) -> tuple[frozenset[str], frozenset[str]]:
    """UIDs of what the stack's objects hang on, the stack's namespaces and anchors; and names of
    those whose creation had not ended when the state was written."""
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


def benchmark_of(state: Json) -> dict[str, Any] | None:
    """The benchmark as the services read it; None when nothing is deployed."""
    for each in resources(state, "kubernetes:core/v1:ConfigMap"):
        text = (each.get("inputs", {}).get("data") or {}).get("config.yaml")
        if text:
            content: dict[str, Any] = yaml.safe_load(text)
            return content
    return None


def runs_of(state: Json) -> frozenset[str]:
    """Ids of the runs that the pods belong to: several when an `up` was interrupted."""
    return frozenset(
        str(each["inputs"]["metadata"]["labels"][RUN_LABEL])
        for each in resources(state, "kubernetes:apps/v1:Deployment")
    )


def is_up(state: Json, *, run_id: str) -> bool:
    """Whether an `up` of this run came to its end: its outputs are there, and all pods are its."""
    outputs = [each.get("outputs") or {} for each in resources(state, "pulumi:pulumi:Stack")]
    has_outputs = any(each.get("runId") == run_id for each in outputs)
    return has_outputs and runs_of(state) == {run_id}


def check_cluster(state: Json, *, stack: str, identity: str) -> None:
    """Raises EnvironmentProblem when the state is of a stack in another cluster."""
    if not any(resources(state, "kubernetes:")):
        return
    for each in resources(state, "pulumi:providers:kubernetes"):
        known = each.get("inputs", {}).get("clusterIdentifier")
        if known and known != identity:
            raise EnvironmentProblem(
                f"stack {stack} is in another cluster (kube-system {known}) than this context's "
                f"({identity}); use --context or --kubeconfig, or remove it there first"
            )
