"""What the Pulumi program promises beyond the manifests: order, ownership, secrecy."""

import json
import re
from typing import Any

import pulumi
import pytest
import yaml
from recording import INFRA, SUFFIX, Manifest, Recording, record, stack_config

from aiperf_svc.plan.identity import COMPONENT_LABEL, RUN_LABEL, STACK_LABEL
from aiperf_svc.protocol.ports import REPLICAS
from aiperf_svc.protocol.services import Service

STACK = "bench"
KEY = "sk-very-secret"
PROVIDER = "pulumi:providers:kubernetes"


def _benchmark(**deployment: Any) -> dict[str, Any]:
    return {
        "endpoint": {"url": "http://target", "model": "m"},
        "load": {"concurrency": 1000, "duration": "10s", "grace_period": "5s"},
        "deployment": {"target": {"kind": "mock"}, **deployment},
    }


def _record(**deployment: Any) -> Recording:
    return record(STACK, {"aiperf:benchmark": _benchmark(**deployment)})


@pytest.fixture(scope="module")
def usual() -> Recording:
    return _record()


@pytest.fixture(scope="module")
def guest() -> Recording:
    return _record(namespace={"mode": "existing", "name": "team"})


def _pod_templates(recording: Recording) -> list[Manifest]:
    return [m["spec"]["template"] for m in recording.manifests if m["kind"] == "Deployment"]


def _named(manifest: Manifest) -> str:
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


def test_every_object_and_every_pod_carries_stack_and_run(usual: Recording) -> None:
    for manifest in usual.manifests + _pod_templates(usual):
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


def test_a_namespace_of_its_own_gets_its_name_from_pulumi(usual: Recording) -> None:
    made = usual.registration("Namespace", f"aiperf-{STACK}")
    assert "name" not in made.inputs["metadata"]
    assert usual.outputs["namespace"] == f"aiperf-{STACK}-{SUFFIX}"
    enforced = made.inputs["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert enforced == "restricted"


def test_a_namespace_to_create_is_refused_if_it_exists() -> None:
    recording = _record(namespace={"mode": "create", "name": "team"})
    made = recording.registration("Namespace", f"aiperf-{STACK}")
    assert made.inputs["metadata"]["name"] == "team"
    assert _applies_on_the_server(recording, made.provider) is False


def test_the_anchor_is_refused_if_it_exists(usual: Recording) -> None:
    made = usual.registration("ConfigMap", "anchor")
    assert _applies_on_the_server(usual, made.provider) is False
    assert "data" not in made.inputs
    assert made.inputs["metadata"]["annotations"]["aiperf.dev/ttl-seconds"] == "7200"


def _applies_on_the_server(recording: Recording, provider: str) -> bool:
    urn = provider.rpartition("::")[0]
    return bool(json.loads(recording.resources[urn].inputs["enableServerSideApply"]))


def test_every_object_has_a_provider_of_the_program(usual: Recording) -> None:
    assert all("pulumi:providers:kubernetes" in made.provider for made in usual.objects.values())


def test_in_an_existing_namespace_the_anchor_owns_everything_else(guest: Recording) -> None:
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


def test_in_an_own_namespace_everything_goes_with_it(usual: Recording, guest: Recording) -> None:
    namespaces = {made.deleted_with.rpartition("::")[2] for made in usual.objects.values()}
    assert namespaces == {"", f"aiperf-{STACK}"}
    # Pods end before, all but the one that keeps the deadline.
    on_their_own = {made.name for made in usual.objects.values() if not made.deleted_with}
    deployments = {
        made.name for made in usual.objects.values() if made.type == "kubernetes:apps/v1:Deployment"
    }
    assert on_their_own == {f"aiperf-{STACK}"} | deployments - {"deadline"}
    assert not [made for made in guest.objects.values() if made.deleted_with]


def test_no_deletion_leaves_an_object_behind_until_its_dependents_are_gone(
    usual: Recording, guest: Recording
) -> None:
    for manifest in usual.manifests + guest.manifests:
        policy = manifest["metadata"]["annotations"]["pulumi.com/deletionPropagationPolicy"]
        assert policy == "background", _named(manifest)


@pytest.mark.parametrize(
    ("namespace", "resource", "name"),
    [
        ({}, "namespaces", f"aiperf-{STACK}-{SUFFIX}"),
        ({"mode": "existing", "name": "team"}, "configmaps", f"anchor-{STACK}"),
    ],
)
def test_the_only_rights_are_to_see_and_delete_the_one_object_that_ends_the_stack(
    namespace: dict[str, str], resource: str, name: str
) -> None:
    recording = _record(namespace=namespace, hold_drains=False)
    roles = [m for m in recording.manifests if "Role" in m["kind"]]
    assert [m["kind"] for m in roles] == ["Role", "RoleBinding"]
    assert roles[0]["rules"] == [
        {
            "apiGroups": [""],
            "resources": [resource],
            "resourceNames": [name],
            "verbs": ["get", "delete"],
        }
    ]
    assert roles[1]["subjects"][0]["name"] == f"deadline-{STACK}"


def test_the_deadline_pod_may_delete_the_run_s_budget_and_no_other(usual: Recording) -> None:
    (role,) = (m for m in usual.manifests if m["kind"] == "Role")
    assert role["rules"][1:] == [
        {
            "apiGroups": ["policy"],
            "resources": ["poddisruptionbudgets"],
            "resourceNames": [_budget(usual)["metadata"]["name"]],
            "verbs": ["get", "delete"],
        }
    ]


def _budget(recording: Recording) -> Manifest:
    (budget,) = (m for m in recording.manifests if m["kind"] == "PodDisruptionBudget")
    return budget


def test_a_budget_is_of_one_run_and_its_time_is_the_start_s_and_the_load_s(
    usual: Recording,
) -> None:
    other = _record(ready_timeout="1m")
    names = {_budget(each)["metadata"]["name"] for each in (usual, other)}
    assert names == {f"benchmark-{each.outputs['runId'][:8]}-{STACK}" for each in (usual, other)}
    assert len(names) == 2
    # Two budgets at a time would make every eviction an error.
    assert usual.registration("PodDisruptionBudget", "benchmark").is_deleted_before_replaced
    env = _deadline_environment(other)
    assert env["AIPERF_BUDGET"] == _budget(other)["metadata"]["name"]
    # The target's 5 m, the services' 1 m, the load's 15 s.
    assert env["AIPERF_BUDGET_SECONDS"] == "375"


def test_without_a_duration_of_the_load_the_budget_stays_as_long_as_the_stack() -> None:
    benchmark = _benchmark() | {"load": {"concurrency": 1, "requests": 9}}
    recording = record(STACK, {"aiperf:benchmark": benchmark})
    assert _budget(recording)
    assert "AIPERF_BUDGET" not in _deadline_environment(recording)
    (role,) = (m for m in recording.manifests if m["kind"] == "Role")
    assert len(role["rules"]) == 1


def _deadline_environment(recording: Recording) -> dict[str, str]:
    holder = recording.manifest("Deployment", f"deadline-{STACK}")
    (container,) = holder["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value", "") for each in container["env"]}


def test_only_the_deadline_pod_gets_a_token(usual: Recording) -> None:
    for manifest in usual.manifests:
        if manifest["kind"] == "ServiceAccount":
            assert manifest["automountServiceAccountToken"] is False
    mounting = [
        t["metadata"]["labels"][COMPONENT_LABEL]
        for t in _pod_templates(usual)
        if t["spec"]["automountServiceAccountToken"]
    ]
    assert mounting == ["deadline"]


def test_pods_are_made_after_the_deadline_pod_and_nothing_else_waits_for_it(
    usual: Recording,
) -> None:
    holder = next(
        urn
        for urn, made in usual.objects.items()
        if (made.type, made.name) == ("kubernetes:apps/v1:Deployment", "deadline")
    )
    after = {urn for urn, made in usual.objects.items() if holder in made.dependencies}
    pods = {
        urn for urn, made in usual.objects.items() if made.type == "kubernetes:apps/v1:Deployment"
    }
    # The time of the budget is counted from its creation, by that pod.
    budget = {urn for urn, made in usual.objects.items() if made.name == "benchmark"}
    assert after == pods - {holder} | budget
    # It is not ready before it has reached the API server, which somebody else's policies may deny.
    known = _kind_and_names(usual, usual.objects[holder].dependencies)
    assert ("NetworkPolicy", "deadline") in known


def _kind_and_names(recording: Recording, urns: set[str]) -> set[tuple[str, str]]:
    made = [recording.resources[urn] for urn in urns if urn in recording.objects]
    return {(one.type.rpartition(":")[2], one.name) for one in made}


def test_services_start_when_target_policies_and_names_are_there_and_not_one_after_another(
    usual: Recording,
) -> None:
    for name in ("system-controller", "records-manager", "worker", "record-processor"):
        made = usual.registration("Deployment", name)
        known = _kind_and_names(usual, made.dependencies)
        assert {kind_name for kind_name in known if kind_name[0] == "Deployment"} == {
            ("Deployment", "deadline"),
            ("Deployment", "target"),
        }
        assert {("Service", "system-controller"), ("NetworkPolicy", "default")} <= known


def test_services_are_headless_and_awaited_by_nobody(usual: Recording) -> None:
    services = [m for m in usual.manifests if m["kind"] == "Service"]
    assert len(services) == 4
    for service in services:
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True
        assert service["metadata"]["annotations"]["pulumi.com/skipAwait"] == "true"
        for port in service["spec"]["ports"]:
            assert port["port"] == port["targetPort"]


def test_keys_are_secret_and_made_once(usual: Recording) -> None:
    made = usual.registration("Secret", "keys")
    assert made.secret_inputs == {"data"}
    assert made.ignored == ("data",)
    keys = {f"{service}.{half}" for service in Service for half in ("public", "secret")}
    assert set(made.inputs["data"]) == keys | {"token", "metrics-token"}


@pytest.mark.parametrize("layout", ["per-service", "compact"])
def test_no_pod_has_the_secret_key_of_another(layout: str) -> None:
    recording = _record(layout=layout, raw_route="direct")
    mounted = {}
    for template in _pod_templates(recording):
        name = template["metadata"]["labels"][COMPONENT_LABEL]
        for volume in template["spec"]["volumes"]:
            if volume.get("secret", {}).get("secretName") == f"keys-{STACK}":
                mounted[name] = {item["key"] for item in volume["secret"]["items"]}
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


def _with_key(**config: str) -> Recording:
    benchmark = _benchmark(target={"kind": "none"})
    benchmark["endpoint"] = {"url": "https://x.example", "model": "m", "api_key_env": "MY_KEY"}
    return record(
        STACK, {"aiperf:benchmark": benchmark, **config}, secrets={"aiperf:targetApiKey": KEY}
    )


def test_the_targets_key_is_only_in_its_secret_and_only_workers_read_it() -> None:
    recording = _with_key()
    made = recording.registration("Secret", "target")
    assert made.secret_inputs == {"data"}
    for one in recording.resources.values():
        assert KEY not in json.dumps(one.inputs)
    readers = [
        t["metadata"]["labels"][COMPONENT_LABEL]
        for t in _pod_templates(recording)
        for env in t["spec"]["containers"][0].get("env", ())
        if env.get("valueFrom", {}).get("secretKeyRef", {}).get("name") == f"target-{STACK}"
    ]
    assert readers == ["worker"]
    assert "api_key_env: AIPERF_TARGET_API_KEY" in _config_file(recording)


def _config_file(recording: Recording) -> str:
    config = next(m for m in recording.manifests if "config.yaml" in m.get("data", {}))
    text: str = config["data"]["config.yaml"]
    return text


def test_the_keys_of_an_upload_are_only_in_their_secret() -> None:
    benchmark = _benchmark(target={"kind": "mock"})
    benchmark["artifacts"] = {"s3": {"url": "s3://bucket/runs"}}
    secrets = {"aiperf:s3AccessKeyId": "AKIA-secret", "aiperf:s3SecretAccessKey": KEY}
    recording = record(STACK, {"aiperf:benchmark": benchmark}, secrets=secrets)
    made = recording.registration("Secret", "upload")
    assert made.secret_inputs == {"data"}
    for one in recording.resources.values():
        assert KEY not in json.dumps(one.inputs)
        assert "AKIA-secret" not in json.dumps(one.inputs)
    readers = [
        (t["metadata"]["labels"][COMPONENT_LABEL], env["name"])
        for t in _pod_templates(recording)
        for env in t["spec"]["containers"][0].get("env", ())
        if env.get("valueFrom", {}).get("secretKeyRef", {}).get("name") == f"upload-{STACK}"
    ]
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    assert readers == [("records-manager", name) for name in names]


def test_the_key_of_pages_is_only_in_its_secret_and_only_the_records_manager_reads_it() -> None:
    benchmark = _benchmark(target={"kind": "mock"})
    benchmark["telemetry"] = {"server_metrics": ["http://target"], "key_env": "MY_PAGES"}
    recording = record(STACK, {"aiperf:benchmark": benchmark}, secrets={"aiperf:pagesKey": KEY})
    assert recording.registration("Secret", "pages").secret_inputs == {"data"}
    for one in recording.resources.values():
        assert KEY not in json.dumps(one.inputs)
    readers = [
        (t["metadata"]["labels"][COMPONENT_LABEL], env["name"])
        for t in _pod_templates(recording)
        for env in t["spec"]["containers"][0].get("env", ())
        if env.get("valueFrom", {}).get("secretKeyRef", {}).get("name") == f"pages-{STACK}"
    ]
    assert readers == [("records-manager", "AIPERF_PAGES_KEY")]
    assert "key_env: AIPERF_PAGES_KEY" in _config_file(recording)


def test_a_missing_key_of_the_target_is_named() -> None:
    benchmark = _benchmark(target={"kind": "none"})
    benchmark["endpoint"] = {"url": "https://x.example", "model": "m", "api_key_env": "MY_KEY"}
    with pytest.raises(pulumi.ConfigMissingError, match="aiperf:targetApiKey"):
        record(STACK, {"aiperf:benchmark": benchmark})


def test_a_secret_inside_the_benchmark_is_refused() -> None:
    text = json.dumps(_benchmark())
    with pytest.raises(pulumi.RunError, match="aiperf:targetApiKey"):
        record(STACK, {}, secrets={"aiperf:benchmark": text})


def test_a_kubeconfigs_content_is_refused() -> None:
    config = {"aiperf:benchmark": _benchmark(), "aiperf:kubeconfig": "apiVersion: v1\nkind: Config"}
    with pytest.raises(pulumi.RunError, match="expected its path"):
        record(STACK, config)


def test_a_file_for_several_clusters_is_refused() -> None:
    clusters = [{"context": "eu"}, {"context": "us"}]
    config = {"aiperf:benchmark": _benchmark(), "aiperf:clusters": clusters}
    with pytest.raises(pulumi.RunError, match="`aiperf-svc run` makes a stack in each"):
        record(STACK, config)


def test_a_bad_benchmark_is_one_message_that_names_the_key() -> None:
    benchmark = _benchmark() | {"laod": {}}
    with pytest.raises(pulumi.RunError, match=r"aiperf:benchmark.*laod"):
        record(STACK, {"aiperf:benchmark": benchmark})


def test_the_provider_gets_the_path_and_the_clusters_identity() -> None:
    recording = _with_key(
        **{
            "aiperf:kubeconfig": "/somewhere/config",
            "aiperf:context": "lab",
            "aiperf:clusterIdentifier": "uid-1",
        }
    )
    for name in ("kubernetes", "strict"):
        inputs = recording.registration("kubernetes", name).inputs
        assert inputs["kubeconfig"] == "/somewhere/config"
        assert (inputs["context"], inputs["clusterIdentifier"]) == ("lab", "uid-1")


def test_a_new_generation_is_a_new_run_in_every_pod() -> None:
    configs = [{"aiperf:benchmark": _benchmark(), "aiperf:generation": str(n)} for n in (1, 2)]
    first, second = [record(STACK, config) for config in configs]
    assert first.outputs["runId"] != second.outputs["runId"]
    for template in _pod_templates(second):
        assert template["metadata"]["labels"][RUN_LABEL] == second.outputs["runId"]


def _results(**results: Any) -> tuple[Recording, list[Manifest]]:
    recording = _record(results=results)
    name = f"results-{STACK}"
    return recording, [
        m
        for m in recording.manifests
        if m["metadata"]["name"] == name and m["kind"] != "NetworkPolicy"
    ]


def test_by_default_the_results_need_no_object_of_their_own() -> None:
    recording, made = _results()
    assert made == []
    forward = f"-n aiperf-{STACK}-{SUFFIX} port-forward service/records-manager-{STACK} 9090"
    assert recording.outputs["results"]["portForward"].endswith(forward)
    assert recording.outputs["results"]["url"] == ""


def test_an_hour_costs_what_the_prices_say_and_without_prices_nothing_is_said(
    usual: Recording,
) -> None:
    assert "costPerHour" not in usual.outputs
    priced = _record(prices={"cpu": 0.5, "currency": "EUR"}).outputs["costPerHour"]
    assert re.fullmatch(r"[1-9]\d*(\.\d+)? EUR", priced)


def test_where_the_results_go_is_an_output(usual: Recording) -> None:
    assert "bucket" not in usual.outputs["results"]
    benchmark = _benchmark() | {"artifacts": {"s3": {"url": "s3://bucket/runs"}}}
    secrets = {"aiperf:s3AccessKeyId": "a", "aiperf:s3SecretAccessKey": "b"}
    outputs = record(STACK, {"aiperf:benchmark": benchmark}, secrets=secrets).outputs
    assert outputs["results"]["bucket"] == "s3://bucket/runs"


def test_the_deadline_pod_is_ready_when_the_api_server_has_responded(
    usual: Recording,
) -> None:
    pods = {t["metadata"]["labels"][COMPONENT_LABEL]: t["spec"] for t in _pod_templates(usual)}
    (container,) = pods["deadline"]["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    probe = container["startupProbe"]
    assert probe["exec"]["command"] == ["cat", env["AIPERF_READY_FILE"]]
    # It is never killed for it: its log says why the stack does not come up.
    patience_s = probe["periodSeconds"] * probe["failureThreshold"]
    holder = usual.manifest("Deployment", f"deadline-{STACK}")
    assert patience_s > holder["spec"]["progressDeadlineSeconds"]
    assert [n for n, s in pods.items() if "startupProbe" in s["containers"][0]] == ["deadline"]


def test_results_on_a_node_port_are_not_waited_for() -> None:
    recording, made = _results(expose="NodePort", node_port=30090)
    assert made[0]["spec"]["type"] == "NodePort"
    assert made[0]["spec"]["ports"][0]["nodePort"] == 30090
    assert made[0]["metadata"]["annotations"]["pulumi.com/skipAwait"] == "true"
    assert recording.outputs["results"]["url"] == "http://NODE:30090"


def test_results_on_a_load_balancer_come_after_the_pod_and_are_limited() -> None:
    recording, made = _results(expose="LoadBalancer", allow_cidrs=["192.0.2.0/24"])
    assert made[0]["spec"]["loadBalancerSourceRanges"] == ["192.0.2.0/24"]
    service = recording.registration("Service", "results")
    known = _kind_and_names(recording, service.dependencies)
    assert ("Deployment", "records-manager") in known


def test_results_on_an_ingress_name_their_url() -> None:
    recording, made = _results(expose="Ingress", host="bench.example", tls_secret="cert")
    assert [m["kind"] for m in made] == ["Ingress", "Service"]
    assert made[0]["spec"]["rules"][0]["host"] == "bench.example"
    assert recording.outputs["results"]["url"] == "https://bench.example"


def _monitored(recording: Recording) -> tuple[Manifest, dict[str, Manifest]]:
    """The template of the pod with the results, and the objects of the operator by kind."""
    (template,) = (
        each
        for each in _pod_templates(recording)
        if each["metadata"]["labels"][COMPONENT_LABEL] == "records-manager"
    )
    group = "monitoring.coreos.com/v1"
    objects = {m["kind"]: m for m in recording.manifests if m["apiVersion"] == group}
    return template, objects


def _environment(template: Manifest) -> dict[str, Any]:
    return {each["name"]: each for each in template["spec"]["containers"][0]["env"]}


def test_without_monitoring_nothing_invites_a_prometheus(usual: Recording) -> None:
    template, objects = _monitored(usual)
    assert objects == {}
    assert not [name for name in template["metadata"]["annotations"] if "prometheus" in name]
    assert "AIPERF_METRICS_TOKEN" not in _environment(template)


def test_annotations_are_on_the_one_pod_that_has_a_page() -> None:
    recording = _record(monitoring="annotations")
    annotated = [
        template["metadata"]["labels"][COMPONENT_LABEL]
        for template in _pod_templates(recording)
        if "prometheus.io/scrape" in template["metadata"]["annotations"]
    ]
    assert annotated == ["records-manager"]
    template, objects = _monitored(recording)
    assert objects == {}
    assert (
        template["metadata"]["annotations"].items()
        >= {
            "prometheus.io/scrape": "true",
            "prometheus.io/path": "/metrics",
            "prometheus.io/port": "9090",
        }.items()
    )


def test_the_operator_reads_the_page_with_a_token_that_opens_nothing_else() -> None:
    labels = {"release": "prometheus"}
    recording = _record(monitoring="prometheus-operator", monitoring_labels=labels)
    template, objects = _monitored(recording)
    assert sorted(objects) == ["PodMonitor", "PrometheusRule"]
    for each in objects.values():
        assert each["metadata"]["labels"].items() >= labels.items()
    monitor = objects["PodMonitor"]["spec"]
    pod_labels = template["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= pod_labels.items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    (container,) = template["spec"]["containers"]
    assert endpoint["port"] in {each["name"] for each in container["ports"]}
    environment = _environment(template)
    read = environment["AIPERF_METRICS_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": read}
    assert read != environment["AIPERF_API_TOKEN"]["valueFrom"]["secretKeyRef"]


def test_the_compact_layout_is_one_pod_with_one_name() -> None:
    recording = _record(layout="compact")
    deployments = [m for m in recording.manifests if m["kind"] == "Deployment"]
    names = [m["metadata"]["name"].removesuffix(f"-{STACK}") for m in deployments]
    assert names == ["control", "deadline", "record-processor", "target", "worker"]
    services = [m["metadata"]["name"] for m in recording.manifests if m["kind"] == "Service"]
    assert services == [f"control-{STACK}", f"target-{STACK}"]


def test_without_network_policies_the_reviewer_is_told() -> None:
    recording = _record(network_policies=False)
    assert not [m for m in recording.manifests if m["kind"] == "NetworkPolicy"]
    assert "deployment.network_policies is off" in recording.outputs["notes"][0]


def test_pods_meet_the_restricted_level(usual: Recording) -> None:
    for template in _pod_templates(usual):
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


def test_nothing_waits_for_a_surge_and_nobody_may_evict(usual: Recording) -> None:
    for manifest in usual.manifests:
        if manifest["kind"] == "Deployment":
            assert manifest["spec"]["strategy"] == {"type": "Recreate"}
    assert _budget(usual)["spec"]["maxUnavailable"] == 0


def test_the_program_only_wires() -> None:
    assert len((INFRA / "__main__.py").read_text().splitlines()) < 40


def test_the_provider_has_the_version_that_the_lock_brings(usual: Recording) -> None:
    """Another one would be downloaded beside it, and the CLI would warn of the difference."""
    lock = (INFRA.parent / "requirements.lock").read_text()
    locked = re.search(r"^pulumi-kubernetes==(\S+)", lock, re.MULTILINE)
    assert locked is not None
    providers = [made for made in usual.resources.values() if made.type.startswith(PROVIDER)]
    assert {made.version for made in providers} == {locked[1]}


def test_a_key_of_the_stack_changes_the_provider_s_version() -> None:
    config = {"aiperf:benchmark": _benchmark(), "aiperf:providerVersion": "4.99.0"}
    made = record(STACK, config).resources.values()
    assert {each.version for each in made if each.type.startswith(PROVIDER)} == {"4.99.0"}


def test_a_stack_that_holds_no_drain_has_no_disruption_budget() -> None:
    kinds = {manifest["kind"] for manifest in _record(hold_drains=False).manifests}
    assert "PodDisruptionBudget" not in kinds


def test_another_target_is_another_deployment_whose_readiness_is_awaited() -> None:
    made = record("bench-smoke", stack_config("bench-smoke"))
    assert made.registration("Deployment", "target").is_deleted_before_replaced
    assert not made.registration("Deployment", "worker").is_deleted_before_replaced


def test_the_pods_of_a_resumed_shape_run_what_is_left_and_upload_into_the_shared_folder() -> None:
    args = [["--ttft", each] for each in ("5ms", "9ms")]
    product = {"deployment.target.args": args, "load.concurrency": [1, 2]}
    given = {
        "aiperf:benchmark": _benchmark(ttl="2h") | {"experiment": {"product": product}},
        "aiperf:shape": "2",
        "aiperf:finished": [1, 2, 3],
        "aiperf:uploadInto": "knee-20261123T012343Z-0123",
    }
    made = record(STACK, given)
    (config,) = (
        yaml.safe_load(m["data"]["config.yaml"])
        for m in made.manifests
        if m["kind"] == "ConfigMap" and "config.yaml" in (m.get("data") or {})
    )
    assert config["experiment"]["part"]["trials"] == [4]
    assert config["deployment"]["target"]["args"] == args[1]
    told = {
        each["value"]
        for template in _pod_templates(made)
        for container in template["spec"]["containers"]
        for each in container.get("env", ())
        if each["name"] == "AIPERF_UPLOAD_INTO"
    }
    assert told == {"knee-20261123T012343Z-0123"}
