"""Lifetimes of a stack's namespace, anchor, deadline pod and disruption budget."""

import json

import pytest

from tests.support.recording import (
    STACK,
    SUFFIX,
    Manifest,
    Recording,
    benchmark,
    component_of,
    environment_of,
    kinds_and_names,
    pod_templates,
    record,
    recorded,
)


@pytest.fixture(scope="module")
def guest() -> Recording:
    """Return a stack in an existing namespace whose pods have a minute to start."""
    return recorded(namespace={"mode": "existing", "name": "team"}, ready_timeout="1m")


@pytest.fixture(scope="module")
def unlimited() -> Recording:
    """Return a stack in a named namespace, with a load without duration."""
    deployed = benchmark(namespace={"mode": "create", "name": "team"})
    load = {"concurrency": 1, "requests": 9}
    return record(STACK, {"aiperf:benchmark": deployed | {"load": load}})


def test_pulumi_names_the_own_namespace(usual: Recording) -> None:
    made = usual.registration("Namespace", f"aiperf-{STACK}")
    assert "name" not in made.inputs["metadata"]
    assert usual.outputs["namespace"] == f"aiperf-{STACK}-{SUFFIX}"
    enforced = made.inputs["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert enforced == "restricted"


def test_namespace_to_create_is_refused_if_it_exists(unlimited: Recording) -> None:
    made = unlimited.registration("Namespace", f"aiperf-{STACK}")
    assert made.inputs["metadata"]["name"] == "team"
    assert _applies_on_the_server(unlimited, made.provider) is False


def test_the_anchor_is_refused_if_it_exists(usual: Recording) -> None:
    made = usual.registration("ConfigMap", "anchor")
    assert _applies_on_the_server(usual, made.provider) is False
    assert "data" not in made.inputs
    assert made.inputs["metadata"]["annotations"]["aiperf.dev/ttl-seconds"] == "7200"


def _applies_on_the_server(recording: Recording, provider: str) -> bool:
    urn = provider.rpartition("::")[0]
    return bool(json.loads(recording.resources[urn].inputs["enableServerSideApply"]))


def test_anchor_owns_everything_in_an_existing_namespace(guest: Recording) -> None:
    assert not [m for m in guest.manifests if m["kind"] == "Namespace"]
    for manifest in guest.manifests:
        owners = manifest["metadata"].get("ownerReferences")
        if manifest["metadata"]["name"] == f"anchor-{STACK}":
            assert owners is None
        else:
            assert owners == [
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "name": f"anchor-{STACK}",
                    "uid": f"uid-of-anchor-{STACK}",
                }
            ], _named(manifest)
        assert manifest["metadata"]["namespace"] == "team"


def test_objects_except_deployments_are_deleted_with_own_namespace(
    usual: Recording, guest: Recording
) -> None:
    namespaces = {made.deleted_with.rpartition("::")[2] for made in usual.objects.values()}
    assert namespaces == {"", f"aiperf-{STACK}"}
    # Pods end earlier, except the deadline pod.
    on_their_own = {made.name for made in usual.objects.values() if not made.deleted_with}
    deployments = {
        made.name for made in usual.objects.values() if made.type == "kubernetes:apps/v1:Deployment"
    }
    assert on_their_own == {f"aiperf-{STACK}"} | deployments - {"deadline"}
    assert not [made for made in guest.objects.values() if made.deleted_with]


def test_deletions_wait_for_dependents(usual: Recording, guest: Recording) -> None:
    for manifest in usual.manifests + guest.manifests:
        policy = manifest["metadata"]["annotations"]["pulumi.com/deletionPropagationPolicy"]
        assert policy == "background", _named(manifest)


def _named(manifest: Manifest) -> str:
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


@pytest.mark.parametrize(
    ("mode", "resource", "name"),
    [
        ("create", "namespaces", f"aiperf-{STACK}-{SUFFIX}"),
        ("existing", "configmaps", f"anchor-{STACK}"),
    ],
)
def test_deadline_role_has_only_needed_rights(
    mode: str, resource: str, name: str, usual: Recording, guest: Recording
) -> None:
    recording = guest if mode == "existing" else usual
    roles = [m for m in recording.manifests if "Role" in m["kind"]]
    assert [m["kind"] for m in roles] == ["Role", "RoleBinding"]
    assert roles[0]["rules"] == [
        {
            "apiGroups": [""],
            "resources": [resource],
            "resourceNames": [name],
            "verbs": ["get", "delete"],
        },
        {
            "apiGroups": ["policy"],
            "resources": ["poddisruptionbudgets"],
            "resourceNames": [_budget(recording)["metadata"]["name"]],
            "verbs": ["get", "delete"],
        },
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": [f"owner-{STACK}"],
            "verbs": ["patch"],
        },
    ]
    assert roles[1]["subjects"][0]["name"] == f"deadline-{STACK}"


def test_lease_names_only_the_owner(usual: Recording) -> None:
    lease = usual.manifest("Lease", f"owner-{STACK}")
    assert lease["metadata"]["annotations"]["aiperf.dev/owner"] == "somebody@somewhere"
    assert "spec" not in lease
    assert _deadline_environment(usual)["AIPERF_LEASE"] == f"owner-{STACK}"


def _budget(recording: Recording) -> Manifest:
    (budget,) = (m for m in recording.manifests if m["kind"] == "PodDisruptionBudget")
    return budget


def test_budget_covers_start_and_load_of_one_run(usual: Recording, guest: Recording) -> None:
    names = {_budget(each)["metadata"]["name"] for each in (usual, guest)}
    assert names == {f"benchmark-{each.outputs['runId'][:8]}-{STACK}" for each in (usual, guest)}
    assert len(names) == 2
    # With two budgets at a time, every eviction would be an error.
    assert usual.registration("PodDisruptionBudget", "benchmark").is_deleted_before_replaced
    env = _deadline_environment(guest)
    assert env["AIPERF_BUDGET"] == _budget(guest)["metadata"]["name"]
    # 5 m for the target, 1 m for the services, 15 s for the load.
    assert env["AIPERF_BUDGET_SECONDS"] == "375"


def test_budget_without_duration_lasts_with_stack(unlimited: Recording) -> None:
    assert _budget(unlimited)
    assert "AIPERF_BUDGET" not in _deadline_environment(unlimited)
    (role,) = (m for m in unlimited.manifests if m["kind"] == "Role")
    assert [rule["resources"] for rule in role["rules"]] == [["namespaces"], ["leases"]]


def _deadline_environment(recording: Recording) -> dict[str, str]:
    holder = recording.manifest("Deployment", f"deadline-{STACK}")
    environment = environment_of(holder["spec"]["template"])
    return {name: each.get("value", "") for name, each in environment.items()}


def test_deployments_recreate_pods_and_forbid_eviction(usual: Recording) -> None:
    for manifest in usual.manifests:
        if manifest["kind"] == "Deployment":
            assert manifest["spec"]["strategy"] == {"type": "Recreate"}
    assert _budget(usual)["spec"]["maxUnavailable"] == 0


def test_only_the_deadline_pod_gets_a_token(usual: Recording) -> None:
    for manifest in usual.manifests:
        if manifest["kind"] == "ServiceAccount":
            assert manifest["automountServiceAccountToken"] is False
    mounting = [
        component_of(t) for t in pod_templates(usual) if t["spec"]["automountServiceAccountToken"]
    ]
    assert mounting == ["deadline"]


def test_only_pods_wait_for_deadline_pod(usual: Recording) -> None:
    holder = next(
        urn
        for urn, made in usual.objects.items()
        if (made.type, made.name) == ("kubernetes:apps/v1:Deployment", "deadline")
    )
    after = {urn for urn, made in usual.objects.items() if holder in made.dependencies}
    pods = {
        urn for urn, made in usual.objects.items() if made.type == "kubernetes:apps/v1:Deployment"
    }
    # The pod measures the budget's time from the budget's creation.
    budget = {urn for urn, made in usual.objects.items() if made.name == "benchmark"}
    assert after == pods - {holder} | budget
    # The pod is ready only after it has reached the API server, which policies may prevent.
    known = kinds_and_names(usual, usual.objects[holder].dependencies)
    assert ("NetworkPolicy", "deadline") in known


def test_deadline_pod_is_ready_after_api_response(usual: Recording) -> None:
    pods = {component_of(t): t["spec"] for t in pod_templates(usual)}
    probe = pods["deadline"]["containers"][0]["startupProbe"]
    ready_file = _deadline_environment(usual)["AIPERF_READY_FILE"]
    assert probe["exec"]["command"] == ["cat", ready_file]
    # It is never killed for this, because its log has the reason why the stack does not start.
    patience_s = probe["periodSeconds"] * probe["failureThreshold"]
    holder = usual.manifest("Deployment", f"deadline-{STACK}")
    assert patience_s > holder["spec"]["progressDeadlineSeconds"]
    assert [n for n, s in pods.items() if "startupProbe" in s["containers"][0]] == ["deadline"]
