"""The objects of a target of kind release, as the program registers them."""

from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml

from aiperf_svc.plan.release import NAMESPACE
from tests.support.recording import SUFFIX, Recording, benchmark, kinds_and_names, record
from tests.support.releases import deployment, graph, release_target, simple

OWN = f"aiperf-bench-{SUFFIX}"


def _recorded(tmp_path: Path, *objects: dict[str, Any], **keys: Any) -> Recording:
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    target = keys.pop("target", release_target()) | {"from": {"manifests": str(path)}}
    return record("bench", {"aiperf:benchmark": benchmark(target=target, **keys)})


def test_bindings_follow_roles_and_pods_follow_both(tmp_path: Path) -> None:
    group = "rbac.authorization.k8s.io/v1"
    made = _recorded(
        tmp_path, deployment("d"), simple("RoleBinding", "b", group), simple("Role", "r", group)
    )
    of_binding = made.registration("RoleBinding", "rolebinding-b").dependencies
    of_pods = made.registration("Deployment", "deployment-d").dependencies
    assert ("Role", "role-r") in kinds_and_names(made, of_binding)
    assert {("Role", "role-r"), ("RoleBinding", "rolebinding-b")} < kinds_and_names(made, of_pods)
    assert ("Deployment", "deadline") in kinds_and_names(made, of_pods)


def test_pods_of_a_release_have_the_users_annotations(tmp_path: Path) -> None:
    made = deployment("d")
    made["spec"]["template"]["metadata"]["annotations"] = {"example.com/cost-center": "own"}
    mine = {"example.com/cost-center": "4711", "example.com/owner": "me"}
    found = _recorded(tmp_path, made, annotations=mine).manifest("Deployment", "d")
    assert found["metadata"]["annotations"].items() >= mine.items()
    assert found["spec"]["template"]["metadata"]["annotations"] == mine | {
        "example.com/cost-center": "own"
    }


def test_services_start_after_the_release_is_ready(tmp_path: Path) -> None:
    made = _recorded(tmp_path, graph())
    gate = made.registration("Deployment", "readiness")
    worker = made.registration("Deployment", "worker")
    assert ("Graph", "graph-graph") in kinds_and_names(made, gate.dependencies)
    assert ("Deployment", "readiness") in kinds_and_names(made, worker.dependencies)


def test_rendered_namespace_becomes_the_stacks_own(tmp_path: Path) -> None:
    made = deployment("d")
    (container,) = made["spec"]["template"]["spec"]["containers"]
    container["args"] = ["--namespace", NAMESPACE, f"http://s.{NAMESPACE}.svc"]
    found = _recorded(tmp_path, made).manifest("Deployment", "d")
    assert found["metadata"]["namespace"] == OWN
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["--namespace", OWN, f"http://s.{OWN}.svc"]


def test_custom_resources_are_deleted_before_the_namespace(tmp_path: Path) -> None:
    made = _recorded(tmp_path, graph(), simple("ConfigMap", "c"))
    assert made.registration("Graph", "graph-graph").deleted_with == ""
    assert made.registration("ConfigMap", "configmap-c").deleted_with != ""


def test_cluster_scoped_objects_are_owned_by_the_namespace(tmp_path: Path) -> None:
    role = simple("ClusterRole", "c", "rbac.authorization.k8s.io/v1")
    target = release_target(cluster_scoped=["ClusterRole/c"])
    found = _recorded(tmp_path, role, target=target).manifest("ClusterRole", "c")
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Namespace", OWN)
    assert "namespace" not in found["metadata"]


def test_anchor_owns_objects_in_an_existing_namespace(tmp_path: Path) -> None:
    existing = {"name": "theirs", "mode": "existing"}
    found = _recorded(tmp_path, graph(), namespace=existing).manifest("Graph", "graph")
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("ConfigMap", "anchor-bench")
    assert owner["apiVersion"] == "v1"


def test_readiness_reads_only_objects_of_its_rules(tmp_path: Path) -> None:
    done = {"kind": "Secret", "name": "done", "api_version": "v1", "jsonpath": "{.data}"}
    graph_rule = {"kind": "Graph", "name": "graph", "condition": "Ready"}
    made = _recorded(tmp_path, graph(), target=release_target(ready=[graph_rule, done]))
    assert made.manifest("Role", "readiness-bench")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        *(
            {"apiGroups": [group], "resources": [kind], "resourceNames": [name], "verbs": ["get"]}
            for group, kind, name in (("example.com", "graphs", "graph"), ("", "secrets", "done"))
        ),
    ]


def test_readiness_has_its_own_annotations(tmp_path: Path) -> None:
    own = {"example.com/team": "serving"}
    made = _recorded(tmp_path, graph(), pods={"readiness": {"annotations": own}})
    template = made.manifest("Deployment", "readiness-bench")["spec"]["template"]
    assert template["metadata"]["annotations"].items() >= own.items()


def test_secrets_of_a_release_are_encrypted(tmp_path: Path) -> None:
    secret = simple("Secret", "s", data={"a": "c2VjcmV0"}, stringData={"b": "secret"})
    made = _recorded(tmp_path, secret, simple("ConfigMap", "c", data={}))
    assert made.registration("Secret", "secret-s").secret_inputs == {"data", "stringData"}
    assert made.manifest("Secret", "s")["stringData"] == {"b": "secret"}
    assert made.registration("ConfigMap", "configmap-c").secret_inputs == set()


def test_pools_with_a_page_have_a_headless_service(tmp_path: Path) -> None:
    found = _recorded(tmp_path, graph()).manifest("Service", "pool-decode-bench")
    assert found["spec"]["selector"] == {"role": "decode"}
    assert found["spec"]["clusterIP"] == "None"


def test_pool_name_fits_the_longest_stack_name(tmp_path: Path) -> None:
    pool = {"labels": {"role": "decode"}, "port": 9090}
    with pytest.raises(pulumi.RunError, match="pools"):
        _recorded(tmp_path, graph(), target=release_target(pools={"p" * 18: pool}))
    target = release_target(pools={"p" * 17: pool}) | {"from": {"object": graph()}}
    made = record("s" * 40, {"aiperf:benchmark": benchmark(target=target)})
    assert len(made.manifest("Service", f"pool-{'p' * 17}-{'s' * 40}")["metadata"]["name"]) == 63


@pytest.mark.parametrize("is_hooked", [False, True])
def test_hooks_make_a_helm_release(
    is_hooked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chart").mkdir()
    monkeypatch.setattr(
        "aiperf_svc.adapters.pulumi.rendering._invoke", lambda *_args: [deployment("d")]
    )
    source = {"chart": str(tmp_path / "chart"), "values": {"a": 1}, "hooks": is_hooked}
    target = release_target() | {"from": source}
    made = record("bench", {"aiperf:benchmark": benchmark(target=target)})
    names = {(one.type.rpartition(":")[2], one.name) for one in made.resources.values()}
    assert (("Release", "release-target") in names) == is_hooked
    assert (("Deployment", "deployment-d") in names) != is_hooked
