"""The plan of a target of kind release."""

import json
from typing import Any

import pytest

from aiperf_svc.config.scaling import Scaling
from aiperf_svc.config.target import TargetPods
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import STACK_LABEL, Identity
from aiperf_svc.plan.network import NamespacePods, Range, ReleasePods, Rule
from aiperf_svc.plan.pods import VISIT_ANNOTATION
from aiperf_svc.plan.release import (
    NAMESPACE,
    READINESS,
    RULES,
    name_of,
    release_in_visit,
    resource_of,
)
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.plan.target import watched_pods
from aiperf_svc.workloads.previews.changes import StackChanges
from aiperf_svc.workloads.previews.summary import as_text
from tests.support.releases import (
    POOL,
    deployment,
    graph,
    release_config,
    release_plan,
    release_target,
    simple,
)


def _release(plan: StackPlan) -> Any:
    assert plan.release is not None
    return plan.release


def test_objects_that_make_pods_come_last() -> None:
    plan = release_plan(
        graph(),
        deployment("decode"),
        simple("RoleBinding", "b", "rbac.authorization.k8s.io/v1"),
        simple("Role", "r", "rbac.authorization.k8s.io/v1"),
    )
    names = [name_of(each) for each in _release(plan).objects]
    assert names == ["Role/r", "RoleBinding/b", "Graph/graph", "Deployment/decode"]


def test_objects_and_pod_templates_have_the_stack_label() -> None:
    made = deployment("decode")
    made["metadata"]["labels"] = {"app.kubernetes.io/name": "theirs"}
    (found,) = _release(release_plan(made)).objects
    template = found["spec"]["template"]["metadata"]["labels"]
    assert found["metadata"]["labels"][STACK_LABEL] == "bench"
    assert found["metadata"]["labels"]["app.kubernetes.io/name"] == "theirs"
    assert template == {**template, STACK_LABEL: "bench", "role": "decode"}
    assert found["spec"]["selector"] == {"matchLabels": {"role": "decode"}}


def with_many_images() -> Json:
    """Return a Deployment with four images: two containers, an init container and a volume."""
    made = deployment("d", volumes=[{"name": "w", "image": {"reference": "quay.io/weights:1"}}])
    spec = made["spec"]["template"]["spec"]
    spec["containers"].append({"name": "sidecar", "image": "quay.io/sidecar:1"})
    spec["initContainers"] = [{"name": "init", "image": "quay.io/init:1"}]
    return made


def test_template_images_without_a_digest_are_noted() -> None:
    notes = [note for note in release_plan(with_many_images()).notes if "has no digest" in note]
    assert [note.split()[3] for note in notes] == [
        "engine:1", "quay.io/sidecar:1", "quay.io/init:1", "quay.io/weights:1",
    ]  # fmt: skip


def test_images_of_custom_resources_are_known() -> None:
    containers = [{"name": "main", "image": "engine:1"}]
    spec = {"template": {"containers": containers}, "decode": {"image": {"reference": "w:1"}}}
    service = simple("LLMInferenceService", "llm", "serving.kserve.io/v1alpha2", spec=spec)
    plan = release_plan(service, registry_mirror="mirror.local")
    images = ("mirror.local/library/engine:1", "mirror.local/library/w:1")
    assert plan.custom_images == images
    assert [note for note in plan.notes if f"custom resources' image {images[0]} has no" in note]
    lines = as_text(plan, StackChanges(base="")).splitlines()
    assert [line.split()[1] for line in lines if line.startswith("  image ")][-2:] == list(images)
    with pytest.raises(ConfigError, match=r"engine:1 \(custom resource\)"):
        release_plan(service, require_digests=True)


def test_template_images_come_from_the_mirror() -> None:
    release = _release(release_plan(with_many_images(), registry_mirror="mirror.local"))
    names = "library/engine:1", "sidecar:1", "init:1", "weights:1"
    (pod,), (made,) = release.pods, release.objects
    assert pod.image_names == tuple(f"mirror.local/{name}" for name in names)
    assert all(json.dumps(made).count(f'"mirror.local/{name}"') == 1 for name in names)


def test_totals_count_the_pods_of_manifests() -> None:
    alone = release_plan(simple("ConfigMap", "c")).totals
    plan = release_plan(deployment("decode", replicas=3))
    assert plan.totals.pods - alone.pods == 3
    assert plan.totals.gpus == 3
    assert plan.totals.cpu_millis - alone.cpu_millis == 6000


def test_replicas_of_a_chart_may_be_null() -> None:
    made = deployment("decode")
    made["spec"]["replicas"] = None
    assert [pod.replicas for pod in _release(release_plan(made)).pods] == [1]


def test_leader_worker_sets_count_leaders_and_workers() -> None:
    template = deployment("x")["spec"]["template"]
    made = simple(
        "LeaderWorkerSet",
        "lws",
        "leaderworkerset.x-k8s.io/v1",
        spec={"replicas": 2, "leaderWorkerTemplate": {"size": 4, "workerTemplate": template}},
    )
    plan = release_plan(made)
    assert [pod.replicas for pod in _release(plan).pods] == [2, 6]
    assert not any("not known" in note for note in plan.notes)


def test_pods_of_each_node_are_noted() -> None:
    agent = {**deployment("agent"), "kind": "DaemonSet"}
    assert "pods on every node count once: DaemonSet/agent" in release_plan(agent).notes


def test_configured_requests_count_for_operator_pods() -> None:
    target = release_target(requests={"pods": 4, "cpu": 32, "memory": "64Gi", "gpus": 4})
    plan = release_plan(graph(), target=target)
    assert plan.totals.gpus == 4
    assert any("only the requests of the pods" in note for note in plan.notes)


def test_unknown_pods_of_operators_are_noted() -> None:
    plan = release_plan(graph())
    assert any("Graph/graph are unknown and not counted" in note for note in plan.notes)


def test_hooks_are_left_out_and_noted() -> None:
    hook = simple("Job", "migrate", "batch/v1")
    hook["metadata"]["annotations"] = {"helm.sh/hook": "pre-install"}
    plan = release_plan(deployment("decode"), hook)
    assert [name_of(each) for each in _release(plan).objects] == ["Deployment/decode"]
    assert any("hooks of the chart do not run: Job/migrate" in note for note in plan.notes)


def test_a_helm_release_keeps_hooks_and_labels() -> None:
    hook = simple("Job", "migrate", "batch/v1")
    hook["metadata"]["annotations"] = {"helm.sh/hook": "pre-install"}
    target = release_target() | {"from": {"chart": "c", "hooks": True}}
    release = _release(release_plan(hook, target=target, chart="/charts/c"))
    assert release.objects == (hook,)
    assert release.charts == ("/charts/c",)
    assert release.installed == ("Job/migrate",)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (simple("ClusterRole", "c", "rbac.authorization.k8s.io/v1"), "cluster_scoped: [ClusterR"),
        (simple("CustomResourceDefinition", "c", "apiextensions.k8s.io/v1"), "belongs to others"),
        (simple("Namespace", "n"), "belongs to others"),
        ({**simple("Pod", "p"), "metadata": {"name": "p", "namespace": "x"}}, "namespace x"),
        (
            simple("StatefulSet", "s", "apps/v1", spec={"replicas": "3"}),
            "StatefulSet/s with '3' replicas; expected a number",
        ),
        (
            simple("ScaledObject", "s", "keda.sh/v1alpha1", spec={"maxReplicaCount": "3"}),
            "ScaledObject/s with '3' replicas; expected a number",
        ),
        (
            simple("HorizontalPodAutoscaler", "h", "autoscaling/v2", spec={"maxReplicas": "6"}),
            "with '6' replicas",
        ),
    ],
)
def test_objects_that_cannot_be_planned_are_refused(made: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        release_plan(made)
    assert message in str(error.value)


def test_visit_replaces_objects_with_pods() -> None:
    release = _release(release_plan(graph(), deployment("d"), simple("Service", "s")))
    first, second = (release_in_visit(release, run) for run in ("r1", "r2"))
    changed = [name_of(a) for a, b in zip(first.objects, second.objects, strict=True) if a != b]
    assert changed == ["Graph/graph", "Deployment/d"]
    assert second.gate.annotations[VISIT_ANNOTATION] == "r2"


def test_cluster_scoped_objects_need_the_stacks_own_namespace() -> None:
    theirs = {"name": "theirs", "mode": "existing"}
    target = release_target(cluster_scoped=["ClusterRole/c"])
    with pytest.raises(ConfigError, match="create ClusterRole/c before the benchmark"):
        release_plan(deployment("d"), target=target, namespace=theirs)


def test_listed_cluster_scoped_objects_are_made() -> None:
    made = simple("ClusterRole", "c", "rbac.authorization.k8s.io/v1")
    plan = release_plan(made, target=release_target(cluster_scoped=["ClusterRole/c"]))
    assert _release(plan).cluster_scoped == ("ClusterRole/c",)


def test_rendered_namespace_is_the_stacks_own() -> None:
    made = {**simple("ConfigMap", "c"), "metadata": {"name": "c", "namespace": NAMESPACE}}
    assert _release(release_plan(made)).objects


def test_two_objects_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="has two ConfigMap/c"):
        release_plan(simple("ConfigMap", "c"), simple("ConfigMap", "c"))


def test_hooks_need_a_namespace_of_the_stack() -> None:
    target = release_target() | {"from": {"chart": "c", "hooks": True}}
    with pytest.raises(ConfigError, match=r"deployment\.target\.from\.hooks"):
        release_plan(
            deployment("d"),
            target=target,
            chart="/c",
            namespace={"name": "theirs", "mode": "existing"},
        )


def test_gate_gets_rules_and_pools() -> None:
    target = release_target(
        ready=[
            {"kind": "Graph", "name": "graph", "condition": "Ready"},
            {
                "kind": "Worker",
                "name": "w",
                "api_version": "other.io/v1",
                "jsonpath": "{.status.phase}=Running",
            },
        ]
    )
    gate = _release(release_plan(graph(), target=target)).gate
    rules = json.loads(gate.env[RULES])
    assert rules["rules"] == [
        {
            "words": "Graph graph",
            "path": "/apis/example.com/v1/namespaces/{namespace}/graphs/graph",
            "test": "condition",
            "field": "Ready",
            "value": "True",
        },
        {
            "words": "Worker w",
            "path": "/apis/other.io/v1/namespaces/{namespace}/workers/w",
            "test": "field",
            "field": ".status.phase",
            "value": "Running",
        },
    ]
    assert rules["pools"] == [{"name": "decode", "labels": {"role": "decode"}, "replicas": 2}]
    assert gate.calls_api


def test_deadline_deletes_custom_resources_first() -> None:
    env = release_plan(graph(), simple("ConfigMap", "c")).deadline.env
    assert env["AIPERF_CUSTOM_RESOURCES"] == '["/apis/example.com/v1/{namespace}/graphs/graph"]'
    assert "AIPERF_CUSTOM_RESOURCES" not in release_plan(deployment("d")).deadline.env


def test_a_rule_for_an_unknown_kind_is_refused() -> None:
    target = release_target(ready=[{"kind": "Nothing", "name": "n", "condition": "Ready"}])
    with pytest.raises(ConfigError, match="has no Nothing"):
        release_plan(graph(), target=target)


def test_release_url_replaces_the_target_host() -> None:
    plan = release_plan(graph())
    assert plan.inference.endpoint.url == "http://router:8000"
    assert plan.inference.endpoint.wait_for_server == plan.config.deployment.target.ready_timeout


def test_changed_objects_make_a_new_run() -> None:
    one, other = release_plan(deployment("d")), release_plan(deployment("d", replicas=2))
    assert one.identity.run_id != other.identity.run_id
    assert one.identity.run_id == release_plan(deployment("d")).identity.run_id


def test_policies_admit_pools_clients_and_operators() -> None:
    target = release_target(admit=[{"namespace": "operator", "labels": {"app": "o"}}])
    policies = {policy.name: policy for policy in release_plan(graph(), target=target).policies}
    policy = policies["target"]
    assert policy.of_release == ReleasePods()
    peers = [peer for rule in policy.ingress for peer in rule.peers]
    assert NamespacePods("operator", {"app": "o"}) in peers
    assert ReleasePods() in peers
    assert policies[READINESS].components == (READINESS,)


def test_release_in_the_nodes_network_is_reached() -> None:
    plan = release_plan(deployment("decode", hostNetwork=True), deployment("router"))
    policies = {policy.name: policy for policy in plan.policies}
    assert Rule() in policies["to-target"].egress
    assert Rule() in policies["target"].ingress
    assert Rule() in policies["target"].egress
    assert any("no NetworkPolicy applies to them" in note for note in plan.notes)


def reaches_api_server(*objects: Json) -> bool:
    plan = release_plan(*objects, api_server_cidrs=["10.9.0.1/32"])
    (policy,) = (each for each in plan.policies if each.of_release)
    return Rule((Range("10.9.0.1/32"),)) in policy.egress


def test_release_without_rights_cannot_reach_the_api_server() -> None:
    binding = simple("RoleBinding", "b", "rbac.authorization.k8s.io/v1")
    assert not reaches_api_server(deployment("decode"))
    assert reaches_api_server(deployment("decode"), binding)
    assert reaches_api_server(graph())


def test_account_bound_by_others_reaches_the_api_server() -> None:
    router = deployment("router", serviceAccountName="router")
    assert not reaches_api_server(router, simple("ServiceAccount", "router"))
    assert reaches_api_server(router)


def test_pools_are_selected_in_an_existing_namespace() -> None:
    plan = release_plan(graph(), namespace={"name": "theirs", "mode": "existing"})
    selected = [policy.of_release for policy in plan.policies if policy.of_release]
    assert selected == [ReleasePods(is_labelled=True), ReleasePods({"role": "decode"})]


def test_pod_security_is_as_configured() -> None:
    assert release_plan(graph()).pod_security == "baseline"
    target = release_target(pod_security="privileged")
    assert release_plan(graph(), target=target).pod_security == "privileged"


@pytest.mark.parametrize(
    ("kind", "plural"),
    [
        ("DynamoGraphDeployment", "dynamographdeployments"),
        ("NetworkPolicy", "networkpolicies"),
        ("Ingress", "ingresses"),
        ("Endpoints", "endpoints"),
        ("Gateway", "gateways"),
        ("Mesh", "meshes"),
    ],
)
def test_plurals_match_kubernetes(kind: str, plural: str) -> None:
    assert resource_of(kind) == plural


def test_pages_of_pools_are_read_by_their_services() -> None:
    pages = release_plan(graph()).inference.telemetry.pools
    assert [(each.name, each.url) for each in pages] == [
        ("decode", "http://pool-decode-bench:9090/metrics")
    ]


def test_gpus_of_containers_and_sidecars_are_added() -> None:
    made = deployment("decode")
    containers = made["spec"]["template"]["spec"]["containers"]
    containers.append({**containers[0], "name": "second"})
    made["spec"]["template"]["spec"]["initContainers"] = [
        {**containers[0], "name": "sidecar", "restartPolicy": "Always"},
        {**containers[0], "name": "download"},
    ]
    pods = _release(release_plan(made)).pods
    assert [pod.requests.gpu_count for pod in pods] == [3]


def test_scaling_watches_the_only_pool_with_a_port() -> None:
    router = {"labels": {"role": "router"}}

    def watched(**pools: Any) -> TargetPods:
        config = release_config(release_target(pools=pools))
        config = config.model_copy(update={"scaling": Scaling()})
        return watched_pods(config, Identity(stack="bench", run_id="", version="1"), "ns")

    assert watched(decode=POOL, router=router) == TargetPods(
        namespace="ns", labels={"role": "decode"}, port=9090
    )
    with pytest.raises(ConfigError, match=r"2 pools of deployment\.target have a port"):
        watched(decode=POOL, router={**router, "port": 8000})
