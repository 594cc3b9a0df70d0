"""What a target of kind release needs from the cluster."""

from typing import Any

from aiperf_svc.adapters.cluster.preflight.release_checks import judge_operators, judge_types
from aiperf_svc.adapters.cluster.preflight.rights import granted_rights, needed_rights
from aiperf_svc.config.release import AdmittedPods
from tests.support.releases import deployment, graph, release_plan, release_target, simple

SERVED = {"name": "graphs", "kind": "Graph", "namespaced": True}


def _ready(status: str) -> dict[str, Any]:
    return {"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": status}]}}


def test_a_missing_type_fails() -> None:
    check = judge_types([graph()], {"example.com/v1": []}, ())
    assert check.state == "failed"
    assert check.detail == "the cluster has no type Graph of example.com/v1"


def test_a_cluster_scoped_type_must_be_listed() -> None:
    served = {"example.com/v1": [{**SERVED, "namespaced": False}]}
    check = judge_types([graph()], served, ())
    assert check.state == "failed"
    assert check.remedy.endswith("deployment.target.cluster_scoped: [Graph/graph]")
    assert judge_types([graph()], served, ("Graph/graph",)).state == "ok"


def test_existing_types_pass() -> None:
    assert judge_types([graph()], {"example.com/v1": [SERVED]}, ()).state == "ok"


def test_an_operator_must_be_ready() -> None:
    admitted = AdmittedPods(namespace="operator", labels={"app": "o"})
    for pods in ([], [_ready("False")]):
        check = judge_operators([(admitted, pods)])
        assert check.state == "failed"
        assert check.detail == "no pod is ready in namespace operator (app=o)"
    assert judge_operators([(admitted, [_ready("True")])]).state == "ok"
    assert judge_operators([(admitted, None)]).state == "not checked"


def test_rights_cover_the_rendered_types() -> None:
    role = simple("ClusterRole", "c", "rbac.authorization.k8s.io/v1")
    target = release_target(
        cluster_scoped=["ClusterRole/c"],
        ready=[{"kind": "Graph", "name": "graph", "condition": "Ready"}],
    )
    plan = release_plan(graph(), role, deployment("d"), target=target)
    needed, granted = map(str, needed_rights(plan)), map(str, granted_rights(plan))
    assert {"create graphs.example.com", "delete graphs.example.com"} <= set(needed)
    assert {"get graphs.example.com graph", "list pods"} <= set(granted)
    of_all = [right for right in needed_rights(plan) if right.resource == "clusterroles"]
    assert of_all
    assert not any(right.namespace for right in of_all)


def test_rights_cover_bare_pods_and_listed_types() -> None:
    pod = {**simple("Pod", "p", "v1"), "spec": {"containers": [{"name": "c", "image": "i"}]}}
    listed = simple("Fleet", "f", "example.com/v1")
    plan = release_plan(
        pod, listed, deployment("d"), target=release_target(cluster_scoped=["Fleet/f"])
    )
    needed = [str(right) for right in needed_rights(plan)]
    assert {"create pods", "create fleets.example.com"} <= set(needed)
    of_fleets = [right for right in needed_rights(plan) if right.resource == "fleets"]
    assert of_fleets
    assert not any(right.namespace for right in of_fleets)
    assert len(needed) == len(set(needed))
