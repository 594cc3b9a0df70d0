"""Checks the cluster's prerequisites for a target of kind release: the types of its objects, and
the operators in `deployment.target.admit`."""

from collections.abc import Mapping
from typing import Any

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.api.objects import find_object, label_selector, list_pods
from aiperf_svc.config.release import AdmittedPods
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.core.cluster.conditions import is_ready
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.release import is_custom, name_of
from aiperf_svc.plan.stack import StackPlan

TYPES, OPERATORS = "release types", "operators"


async def check_release(cluster: Cluster, plan: StackPlan) -> list[Check]:
    """Return the checks; none without a release. Raises Unreachable."""
    if plan.release is None:
        return []
    custom = [each for each in plan.release.objects if is_custom(each)]
    checks = []
    if custom:
        versions = dict.fromkeys(each["apiVersion"] for each in custom)
        found = {each: await find_object(cluster, f"/apis/{each}") for each in versions}
        served = {each: (listed or {}).get("resources") or [] for each, listed in found.items()}
        checks.append(judge_types(custom, served, plan.config.deployment.target.cluster_scoped))
    admitted = plan.config.deployment.target.admit
    if admitted:
        pods = [(each, await list_pods(cluster, each.namespace, each.labels)) for each in admitted]
        checks.append(judge_operators(pods))
    return checks


def judge_types(
    custom: list[Json], served: Mapping[str, list[Json]], cluster_scoped: tuple[str, ...]
) -> Check:
    """Check whether the cluster has the types of the custom resources, and whether each is
    namespaced or listed as cluster-scoped. `served` has the types of each version."""
    missing: dict[str, None] = {}
    unlisted = []
    for each in custom:
        version, kind = each["apiVersion"], each["kind"]
        types = served[version]
        found = next((t for t in types if t["kind"] == kind and "/" not in t["name"]), None)
        if found is None:
            missing[f"{kind} of {version}"] = None
        elif not found["namespaced"] and name_of(each) not in cluster_scoped:
            unlisted.append(name_of(each))
    if missing:
        return Check(
            TYPES,
            "failed",
            f"the cluster has no type {' and no '.join(missing)}",
            "install the operator with its CustomResourceDefinitions before the benchmark, or "
            "correct apiVersion and kind",
        )
    if unlisted:
        return Check(
            TYPES,
            "failed",
            f"{', '.join(unlisted)} is in no namespace",
            f"leave it out, or list it: deployment.target.cluster_scoped: [{', '.join(unlisted)}]",
        )
    kinds = dict.fromkeys(each["kind"] for each in custom)
    return Check(TYPES, "ok", f"the cluster has {', '.join(kinds)}")


def judge_operators(found: list[tuple[AdmittedPods, list[Any] | None]]) -> Check:
    """Check whether each entry of `admit` has a ready pod; None if they may not be listed."""
    lacking = [
        _pods_of(each) for each, pods in found if pods is not None and not any(map(is_ready, pods))
    ]
    if lacking:
        return Check(
            OPERATORS,
            "failed",
            f"no pod is ready in {'; '.join(lacking)}",
            "start the operator or gateway, or correct deployment.target.admit",
        )
    unknown = [_pods_of(each) for each, pods in found if pods is None]
    if unknown:
        return Check(OPERATORS, "not checked", f"not allowed to list pods in {'; '.join(unknown)}")
    return Check(OPERATORS, "ok", f"pods are ready in {'; '.join(_pods_of(e) for e, _ in found)}")


def _pods_of(admitted: AdmittedPods) -> str:
    labels = label_selector(admitted.labels)
    return f"namespace {admitted.namespace}" + (f" ({labels})" if labels else "")
