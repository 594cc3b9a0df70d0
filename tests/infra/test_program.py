"""Guarantees of the Pulumi program besides the manifests: names, order, layouts, and safe pods."""

import re
from typing import Any

import pulumi
import pytest

from aiperf_svc.adapters.cluster.ownership import HOLDER
from aiperf_svc.plan.identity import RUN_LABEL, STACK_LABEL
from aiperf_svc.protocol.ports import REPLICAS
from aiperf_svc.protocol.services import Service
from tests.support.recording import (
    INFRA,
    STACK,
    Recording,
    benchmark,
    component_of,
    kinds_and_names,
    pod_templates,
    record,
    recorded,
    stack_config,
)

PROVIDER = "pulumi:providers:kubernetes"


@pytest.fixture(scope="module")
def compact() -> Recording:
    """Return a stack with one pod for all single services and without optional objects."""
    return recorded(layout="compact", raw_route="direct", network_policies=False, hold_drains=False)


@pytest.fixture(scope="module")
def next_generation() -> Recording:
    """Return another run of the default benchmark, with all cluster keys."""
    keys = {
        "aiperf:generation": "2",
        "aiperf:kubeconfig": "/somewhere/config",
        "aiperf:context": "lab",
        "aiperf:clusterIdentifier": "uid-1",
        "aiperf:providerVersion": "4.99.0",
    }
    return record(STACK, {"aiperf:benchmark": benchmark(), **keys})


def test_objects_and_pods_have_stack_and_run_labels(usual: Recording) -> None:
    for manifest in usual.manifests + pod_templates(usual):
        labels = manifest["metadata"]["labels"]
        assert labels[STACK_LABEL] == STACK
        assert labels[RUN_LABEL] == usual.outputs["runId"]
        assert labels["app.kubernetes.io/managed-by"] == "pulumi"


def test_every_name_carries_the_stack(usual: Recording) -> None:
    for manifest in usual.manifests:
        if manifest["kind"] != "Namespace":
            assert manifest["metadata"]["name"].endswith(f"-{STACK}")


def test_selectors_name_the_stack_and_never_the_run(usual: Recording) -> None:
    selectors: list[dict[str, Any]] = []

    def collect(value: Any, key: str = "") -> None:
        if isinstance(value, dict):
            if key in ("selector", "podSelector", "labelSelector"):
                selectors.append(value.get("matchLabels", value))
            for name, item in value.items():
                collect(item, name)
        elif isinstance(value, list):
            for item in value:
                collect(item)

    collect([m for m in usual.manifests if m["kind"] != "ConfigMap"])
    assert len(selectors) > 30
    for selector in selectors:
        assert selector[STACK_LABEL] == STACK
        assert RUN_LABEL not in selector


def test_every_object_has_a_provider_of_the_program(usual: Recording) -> None:
    assert all("pulumi:providers:kubernetes" in made.provider for made in usual.objects.values())


def test_provider_gets_the_path_and_the_clusters_identity(next_generation: Recording) -> None:
    for name in ("kubernetes", "strict"):
        inputs = next_generation.registration("kubernetes", name).inputs
        assert inputs["kubeconfig"] == "/somewhere/config"
        assert (inputs["context"], inputs["clusterIdentifier"]) == ("lab", "uid-1")


def test_provider_has_the_locked_version(usual: Recording) -> None:
    """The CLI would download any other version in addition and warn about the difference."""
    lock = (INFRA.parent / "requirements.lock").read_text()
    locked = re.search(r"^pulumi-kubernetes==(\S+)", lock, re.MULTILINE)
    assert locked is not None
    providers = [made for made in usual.resources.values() if made.type.startswith(PROVIDER)]
    assert {made.version for made in providers} == {locked[1]}


def test_stack_key_sets_the_provider_version(next_generation: Recording) -> None:
    made = next_generation.resources.values()
    assert {each.version for each in made if each.type.startswith(PROVIDER)} == {"4.99.0"}


def test_new_generation_changes_every_pod(usual: Recording, next_generation: Recording) -> None:
    run_id = next_generation.outputs["runId"]
    assert run_id != usual.outputs["runId"]
    for template in pod_templates(next_generation):
        assert template["metadata"]["labels"][RUN_LABEL] == run_id


def test_queued_pods_wait_only_for_deadline_pod() -> None:
    space = {"name": "theirs", "mode": "existing"}
    made = recorded(queue="q", namespace=space, target={"kind": "mock"})
    for name in ("target", "system-controller", "records-manager", "worker", "record-processor"):
        known = kinds_and_names(made, made.registration("Deployment", name).dependencies)
        assert {each for kind, each in known if kind == "Deployment"} == {"deadline"}


def test_services_start_together_after_target(usual: Recording) -> None:
    for name in ("system-controller", "records-manager", "worker", "record-processor"):
        made = usual.registration("Deployment", name)
        known = kinds_and_names(usual, made.dependencies)
        assert {kind_name for kind_name in known if kind_name[0] == "Deployment"} == {
            ("Deployment", "deadline"),
            ("Deployment", "target"),
        }
        assert {("Service", "system-controller"), ("NetworkPolicy", "default")} <= known


def test_services_are_headless_and_not_awaited(usual: Recording) -> None:
    services = [m for m in usual.manifests if m["kind"] == "Service"]
    assert len(services) == 4
    for service in services:
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True
        assert service["metadata"]["annotations"]["pulumi.com/skipAwait"] == "true"
        for port in service["spec"]["ports"]:
            assert port["port"] == port["targetPort"]


def test_changed_target_is_deleted_before_it_is_replaced(usual: Recording) -> None:
    assert usual.registration("Deployment", "target").is_deleted_before_replaced
    assert not usual.registration("Deployment", "worker").is_deleted_before_replaced


@pytest.mark.parametrize("layout", ["per-service", "compact"])
def test_no_pod_has_the_secret_key_of_another(layout: str, compact: Recording) -> None:
    mounted = {}
    for template in pod_templates(compact if layout == "compact" else recorded(raw_route="direct")):
        for volume in template["spec"]["volumes"]:
            if volume.get("secret", {}).get("secretName") == f"keys-{STACK}":
                keys = {item["key"] for item in volume["secret"]["items"]}
                mounted[component_of(template)] = keys
    single = {service.value for service in set(Service) - REPLICAS}
    own = {name: {name} for name in (single if layout == "per-service" else ())}
    own |= {"control": single} if layout == "compact" else {}
    own |= {service.value: {service.value} for service in REPLICAS}
    secrets = {
        name: {key.removesuffix(".secret") for key in keys if key.endswith(".secret")}
        for name, keys in mounted.items()
    }
    assert secrets == own
    assert "timing-manager.public" not in mounted["record-processor"]


def test_compact_layout_is_one_pod_with_one_name(compact: Recording) -> None:
    deployments = [m for m in compact.manifests if m["kind"] == "Deployment"]
    names = [m["metadata"]["name"].removesuffix(f"-{STACK}") for m in deployments]
    assert names == ["control", "deadline", "record-processor", "target", "worker"]
    services = [m["metadata"]["name"] for m in compact.manifests if m["kind"] == "Service"]
    assert services == [f"control-{STACK}", f"target-{STACK}"]


def test_missing_network_policies_are_noted(compact: Recording) -> None:
    assert not [m for m in compact.manifests if m["kind"] == "NetworkPolicy"]
    assert "deployment.network_policies is off" in compact.outputs["notes"][0]


def test_stack_without_drain_hold_has_no_budget(compact: Recording) -> None:
    assert not [m for m in compact.manifests if m["kind"] == "PodDisruptionBudget"]
    (role,) = (m for m in compact.manifests if m["kind"] == "Role")
    assert [rule["resources"] for rule in role["rules"]] == [["namespaces"], ["leases"]]


def test_pods_meet_the_restricted_level(usual: Recording) -> None:
    for template in pod_templates(usual):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not spec.get("hostNetwork")
        assert spec["enableServiceLinks"] is False
        allowed = {"configMap", "secret", "emptyDir"}
        assert all(allowed & set(volume) for volume in spec["volumes"])
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }
            resources = container["resources"]
            assert resources["requests"]["memory"] == resources["limits"]["memory"]


def test_the_program_only_wires() -> None:
    assert len((INFRA / "__main__.py").read_text().splitlines()) < 40


@pytest.mark.parametrize(
    ("stack", "kinds"),
    [
        ("bench-smoke", {"Namespace", "Secret", "Role", "Lease"}),
        ("bench-variants", {"Job"}),
        ("bench-fio", {"StatefulSet", "PersistentVolumeClaim"}),
        ("bench-monitored", {"PodMonitor", "PrometheusRule"}),
    ],
)
def test_user_labels_are_on_all_objects(stack: str, kinds: set[str]) -> None:
    labels = {"owner": "team-a", "istio.io/dataplane-mode": "ambient"}
    annotations = {"example.com/cost-center": "47 11", "karpenter.sh/do-not-disrupt": "false"}
    config = stack_config(stack)
    config["aiperf:benchmark"]["deployment"] |= {"labels": labels, "annotations": annotations}
    recording = record(stack, config)
    every, found = list[Any](), set[str]()
    for each in recording.manifests:
        spec = each.get("spec", {})
        claims = spec.get("volumeClaimTemplates", ())
        templates = [spec["template"]] if "spec" in spec.get("template", {}) else []
        every += [one["metadata"] for one in (each, *templates, *claims)]
        found |= {each["kind"], *("PersistentVolumeClaim" for _ in claims)}
    assert found > kinds
    for metadata in every:
        assert metadata["labels"].items() >= labels.items()
        assert metadata["annotations"].items() >= annotations.items()
    for template in recording.manifests:
        selector = template.get("spec", {}).get("selector", {})
        assert "owner" not in selector.get("matchLabels", {})


@pytest.mark.parametrize(
    ("environ", "is_warned"),
    [
        ({"KUBECONFIG": "/home/me/config"}, True),
        ({}, False),
        ({"KUBECONFIG": "/home/me/config", HOLDER: "yes"}, False),
    ],
)
def test_plain_pulumi_warns_and_shows_summary(
    environ: dict[str, str], is_warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    lines: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", warned.append)
    monkeypatch.setattr(pulumi.log, "info", lines.append)
    for name in ("KUBECONFIG", HOLDER):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    recorded()
    assert bool(warned) == is_warned
    assert all("kubeconfig<number>" in line for line in warned)
    assert len(lines) == (HOLDER not in environ)
    assert all(" pods, " in line and "removes itself" in line for line in lines)


def test_existing_volumes_are_mounted_into_the_target() -> None:
    volumes = [
        {"kind": "claim", "source": "weights", "path": "/models"},
        {"kind": "claim", "source": "cache", "path": "/cache", "read_only": False},
        {"kind": "image", "source": "registry.example/llama:1", "path": "/weights"},
        {"kind": "host-path", "source": "/srv/models", "path": "/local"},
    ]
    made = recorded(
        target={"kind": "mock", "volumes": volumes}, namespace={"mode": "existing", "name": "lab"}
    )
    (template,) = (t for t in pod_templates(made) if component_of(t) == "target")
    _, *found = template["spec"]["volumes"]
    assert [{k: v for k, v in each.items() if k != "name"} for each in found] == [
        {"persistentVolumeClaim": {"claimName": "weights", "readOnly": True}},
        {"persistentVolumeClaim": {"claimName": "cache"}},
        {"image": {"reference": "registry.example/llama:1", "pullPolicy": "IfNotPresent"}},
        {"hostPath": {"path": "/srv/models", "type": "Directory"}},
    ]
    assert template["spec"]["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    _, *mounts = template["spec"]["containers"][0]["volumeMounts"]
    assert [(each["mountPath"], each.get("readOnly")) for each in mounts] == [
        ("/models", True),
        ("/cache", None),
        ("/weights", True),
        ("/local", True),
    ]
