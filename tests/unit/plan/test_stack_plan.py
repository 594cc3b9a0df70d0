"""Config to stack: names, runs, sums, pods."""

from typing import Any

import pytest
import yaml

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.target_notices import UNCHECKED
from aiperf_svc.config.units import format_duration
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.identity import stack_name_of
from aiperf_svc.plan.run_values import RunValues
from tests.support.plans import make_config, pod, to_plan, with_keys

MI = 2**20


@pytest.mark.parametrize("stack", ["Bench", "bench_1", "-bench", "b" * 41, ""])
def test_stack_name_invalid_in_kubernetes_is_refused(stack: str) -> None:
    with pytest.raises(ConfigError, match="the stack's name"):
        to_plan(make_config(), stack=stack)


def test_key_order_does_not_change_run_id() -> None:
    one = make_config(pods={"worker": {"cpu": 1}, "deadline": {"cpu": "20m"}})
    two = make_config(pods={"deadline": {"cpu": "20m"}, "worker": {"cpu": 1}})
    assert to_plan(one) == to_plan(two)
    assert to_plan(one).files == to_plan(two).files


def test_experiment_key_order_keeps_run_id() -> None:
    rows = [{"load.concurrency": 2, "load.duration": "5s"}]
    turned = [dict(reversed(row.items())) for row in rows]
    data = make_config().model_dump(mode="json", by_alias=True)
    one, two = (
        to_plan(BenchmarkConfig.model_validate(data | {"experiment": {"explicit": each}}))
        for each in (rows, turned)
    )
    assert (one.identity, one.files) == (two.identity, two.files)
    other = [{"load.concurrency": 3, "load.duration": "5s"}]
    three = BenchmarkConfig.model_validate(data | {"experiment": {"explicit": other}})
    assert to_plan(three).identity.run_id != one.identity.run_id


def test_maps_keep_keys_of_any_kind() -> None:
    data = make_config().model_dump(mode="json", by_alias=True)
    data["endpoint"]["extra_inputs"] = {"bias": {2: 1, "a": [{"z": 1, "b": 2}]}}
    config = BenchmarkConfig.model_validate(data)
    again = yaml.safe_load(to_plan(config).files["config.yaml"])
    assert again["endpoint"]["extra_inputs"]["bias"]["a"] == [{"z": 1, "b": 2}]


@pytest.mark.parametrize(
    "how",
    [{"generation": 2}, {"image": "other:1"}, {"version": "1.2.4"}],
    ids=lambda how: next(iter(how)),
)
def test_generation_image_and_version_make_new_run(how: dict[str, Any]) -> None:
    config = make_config()
    assert to_plan(config, **how).identity.run_id != to_plan(config).identity.run_id


def test_another_config_makes_new_run_and_config_map() -> None:
    one = to_plan(make_config())
    two = to_plan(make_config(load={"concurrency": 1001, "duration": "10s"}))
    assert one.identity.run_id != two.identity.run_id
    assert one.config_name != two.config_name


def test_service_config_can_be_run_again() -> None:
    plan = to_plan(make_config(ttl="30m"))
    again = BenchmarkConfig.model_validate(yaml.safe_load(plan.files["config.yaml"]))
    assert again == plan.config
    assert again.endpoint.url == "http://target-bench:8000"


def test_registration_waits_for_all_pods() -> None:
    plan = to_plan(make_config(ready_timeout="10m", registration_timeout="1m"))
    assert plan.config.deployment.registration_timeout == plan.config.deployment.ready_timeout


@pytest.mark.parametrize(
    ("url", "deployment", "seconds"),
    [
        # The load's 5m30s and the services' 5m, plus 2m for the stack's own target.
        ("http://10.0.0.1", {}, 630),
        ("http://target", {"target": {"kind": "mock", "ready_timeout": "2m"}}, 750),
        ("http://10.0.0.1", {"ready_timeout": "1m"}, 390),
    ],
)
def test_ttl_must_cover_start_and_load(url: str, deployment: dict[str, Any], seconds: int) -> None:
    load = {"concurrency": 1, "duration": "5m", "grace_period": "30s"}
    to_plan(make_config(url=url, load=load, ttl=f"{seconds}s", **deployment))
    short = make_config(url=url, load=load, ttl=f"{seconds - 1}s", **deployment)
    with pytest.raises(ConfigError, match=rf"expected at least {format_duration(seconds * 10**9)}"):
        to_plan(short)


@pytest.mark.parametrize(
    ("load", "hold_s"),
    [
        ({"duration": "5m", "grace_period": "30s"}, 630),
        ({"duration": "5m", "requests": 9}, 630),
        ({"duration": "5m", "warmup": {"duration": "20s", "grace_period": "1s"}}, 651),
        ({"requests": 9}, None),
        ({"duration": "5m", "warmup": {"requests": 9}}, None),
    ],
)
def test_drains_wait_for_start_and_load(load: dict[str, Any], hold_s: int | None) -> None:
    plan = to_plan(make_config(url="http://10.0.0.1", load={"concurrency": 1, **load}))
    assert plan.budget is not None
    assert plan.budget.hold == (None if hold_s is None else hold_s * 10**9)
    assert to_plan(make_config(hold_drains=False)).budget is None


@pytest.mark.parametrize(
    ("endpoint", "key"),
    [
        ({"headers": {"X-Api-Key": "sk-1"}}, r"headers\.X-Api-Key"),
        ({"headers": {"X-ApiToken": "sk-1"}}, r"headers\.X-ApiToken"),
        ({"extra_inputs": {"auth": {"api_key": "sk-1"}}}, r"extra_inputs\.auth\.api_key"),
    ],
)
def test_target_key_in_config_is_refused(endpoint: dict[str, Any], key: str) -> None:
    config = make_config(url="http://10.0.0.1")
    with pytest.raises(ConfigError, match=rf"endpoint\.{key} .*targetApiKey"):
        to_plan(with_keys(config, endpoint=endpoint))


@pytest.mark.parametrize(
    ("results", "is_clear"),
    [
        ({}, False),
        ({"expose": "NodePort"}, True),
        ({"expose": "LoadBalancer"}, True),
        ({"expose": "Ingress", "host": "h"}, True),
        ({"expose": "Ingress", "host": "h", "tls_secret": "s"}, False),
    ],
)
def test_results_token_without_tls_is_noted(results: dict[str, Any], is_clear: bool) -> None:
    notes = [
        note for note in to_plan(make_config(results=results)).notes if "in plain text" in note
    ]
    assert bool(notes) == is_clear
    assert not notes or f"results by {results['expose']} without TLS" in notes[0]


def test_unchecked_certificate_is_noted() -> None:
    config = make_config(url="https://h")
    assert UNCHECKED not in to_plan(config).notes
    assert UNCHECKED in to_plan(with_keys(config, endpoint={"tls": {"verify": False}})).notes


@pytest.mark.parametrize(
    ("args", "flag"),
    [
        (["--api-key", "sk-1"], "--api-key"),
        (["--hf-token=hf_1"], "--hf-token"),
        (["--max-tokens", "5", "--tokenizer", "token"], None),
    ],
)
def test_key_in_target_arguments_is_noted_masked(args: list[str], flag: str | None) -> None:
    notes = to_plan(make_config(target={"kind": "vllm", "args": args})).notes
    assert [note for note in notes if "in plain text" in note] == (
        [n for n in notes if n.startswith(f"deployment.target: {flag}: ")] if flag else []
    )
    assert bool(flag) == any("secret_env" in note for note in notes)
    assert not any("sk-1" in note or "hf_1" in note for note in notes)


def test_totals_are_the_sum_over_all_replicas() -> None:
    plan = to_plan(
        make_config(
            url="http://target",
            target={
                "kind": "custom",
                "image": "server:1",
                "cpu": 4,
                "memory": "1Gi",
                "shared_memory": "1Gi",
                "replicas": 2,
                "gpu": {"count": 2},
            },
            prices={"cpu": 1.0, "memory_gib": 0.5, "gpu": 10.0},
        )
    )
    totals = plan.totals
    # deadline, five single services, 2 workers, 1 record processor, 2 targets
    assert totals.pods == 11
    assert totals.cpu_millis == 10 + 2500 + 2 * 1000 + 1000 + 2 * 4000
    assert totals.gpus == 4
    expected = totals.cpu_millis / 1000 + totals.memory_bytes / 2**30 * 0.5 + 40
    assert totals.cost_per_hour == pytest.approx(expected, abs=1e-4)
    assert pod(plan, "target").requests.memory_bytes == 2 * 2**30


def test_stack_plan_for_100000_users() -> None:
    load = {"concurrency": 100_000, "duration": "5m"}
    plan = to_plan(make_config(url="http://x.example", load=load))
    assert pod(plan, "worker").replicas == 200
    assert pod(plan, "record-processor").replicas == 50
    assert plan.topology.raw_route == "direct"


def test_a_workers_memory_follows_its_connections() -> None:
    load = {"concurrency": 10_000, "duration": "5m"}
    config = make_config(url="http://x.example", load=load)
    wide = with_keys(config, workers={"connections_per_worker": 2_500})
    assert pod(to_plan(config), "worker").requests.memory_bytes == 512 * MI
    assert pod(to_plan(wide), "worker").requests.memory_bytes == 768 * MI


def test_pod_settings_override_defaults() -> None:
    plan = to_plan(
        make_config(
            placement={"node_selector": {"pool": "bench"}, "priority_class": "high"},
            pods={
                "worker": {
                    "cpu": "250m",
                    "cpu_limit": 1,
                    "placement": {"node_selector": {"pool": "spot"}},
                }
            },
        )
    )
    worker, manager = pod(plan, "worker"), pod(plan, "worker-manager")
    assert worker.requests.cpu_millis == 250
    assert worker.requests.cpu_limit_millis == 1000
    assert worker.placement.node_selector == {"pool": "spot"}
    assert worker.placement.priority_class == "high"
    assert manager.placement.node_selector == {"pool": "bench"}


def test_only_named_pods_have_service_and_probe() -> None:
    plan = to_plan(make_config())
    named = {p.name for p in plan.pods if p.has_service}
    assert named == {"system-controller", "timing-manager", "records-manager", "target"}
    assert pod(plan, "records-manager").probe.path == "/readyz"
    assert pod(plan, "timing-manager").probe.port in (5562, 5563)
    for name in ("worker", "worker-manager", "dataset-manager", "deadline"):
        assert pod(plan, name).probe is None
    waiting = {p.name: p.ready_file for p in plan.pods if p.ready_file}
    assert waiting == {"deadline": pod(plan, "deadline").env["AIPERF_READY_FILE"]}


def test_record_processors_listen_only_on_direct_route() -> None:
    direct = pod(to_plan(make_config(raw_route="direct")), "record-processor")
    proxied = pod(to_plan(make_config(raw_route="proxy")), "record-processor")
    assert direct.ports == {"raw-direct": 5667}
    assert (direct.probe.port, direct.has_service) == (5667, False)
    assert (proxied.ports, proxied.probe) == ({}, None)


def test_only_workers_widen_their_port_range() -> None:
    plan = to_plan(make_config())
    assert [p.name for p in plan.pods if p.sysctls] == ["worker"]
    hosted = to_plan(make_config(pods={"worker": {"placement": {"host_network": True}}}))
    assert not [p.name for p in hosted.pods if p.sysctls]


@pytest.mark.parametrize(
    ("deployment", "level", "reason"),
    [
        ({}, "restricted", None),
        (
            {"target": {"kind": "custom", "image": "s:1", "run_as_root": True}},
            "baseline",
            "target runs as root",
        ),
        (
            {"pods": {"worker": {"placement": {"host_network": True}}}},
            "privileged",
            "worker uses its node's network",
        ),
    ],
)
def test_strictest_fitting_pod_security_is_explained(
    deployment: dict[str, Any], level: str, reason: str | None
) -> None:
    plan = to_plan(make_config(**deployment))
    assert plan.pod_security == level
    notes = [note for note in plan.notes if note.startswith(f"Pod Security {level}")]
    assert notes == ([f"Pod Security {level}: {reason}"] if reason else [])


def test_secrets_of_a_new_namespace_are_noted() -> None:
    results = {"expose": "Ingress", "host": "r.example", "tls_secret": "tls"}
    needs: dict[str, Any] = {"image": {"pull_secrets": ["registry"]}, "results": results}
    notes = [n for n in to_plan(make_config(**needs)).notes if "without this Secret" in n]
    assert [note.partition(": the")[0] for note in notes] == [
        "deployment.image.pull_secrets: registry",
        "deployment.results.tls_secret: tls",
    ]
    existing = {"mode": "existing", "name": "n"}
    noted = to_plan(make_config(**needs, namespace=existing)).notes
    assert not any("without this Secret" in note for note in noted)


def test_secrets_are_named_by_the_configurations_keys() -> None:
    config = make_config(
        target={"kind": "custom", "image": "s:1", "secret_env": {"HF_TOKEN": "hubToken"}}
    )
    assert to_plan(config).secret_keys == {"target": ("hubToken",)}
    source = pod(to_plan(config), "target").secret_env["HF_TOKEN"]
    assert (source.secret, source.key) == ("target", "hubToken")


@pytest.mark.parametrize("layout", ["per-service", "compact"])
def test_only_results_pod_has_upload_keys(layout: str) -> None:
    plan = to_plan(make_config(s3={"url": "s3://bucket"}, layout=layout))
    assert plan.secret_keys == {"upload": ("s3AccessKeyId", "s3SecretAccessKey")}
    readers = {
        pod.name
        for pod in plan.pods
        if any(source.secret == "upload" for source in pod.secret_env.values())
    }
    assert readers == {plan.results_pod}
    assert pod(plan, plan.results_pod).secret_env["AWS_ACCESS_KEY_ID"].key == "s3AccessKeyId"


def test_pods_of_several_shapes_share_upload_folder() -> None:
    config = make_config(s3={"url": "s3://results"})
    plan = to_plan(config, run=RunValues(upload_into="knee-20261123T012343Z-0123"))
    folders = {pod.name: pod.env.get("AIPERF_UPLOAD_INTO") for pod in plan.services}
    assert set(folders.values()) == {"knee-20261123T012343Z-0123"}
    assert plan.identity.run_id == to_plan(config).identity.run_id


def test_temporary_upload_keys_include_a_session_token() -> None:
    plan = to_plan(make_config(s3={"url": "s3://bucket", "has_session_token": True}))
    assert plan.secret_keys["upload"][-1] == "s3SessionToken"
    assert pod(plan, plan.results_pod).secret_env["AWS_SESSION_TOKEN"].key == "s3SessionToken"


DIGEST = "@sha256:" + "0a" * 32


@pytest.mark.parametrize(
    ("services", "target", "unpinned"),
    [
        ("", {"kind": "mock"}, []),
        ("registry/app:1", {"kind": "mock"}, ["the services' image registry/app:1 "]),
        ("registry/app:1" + DIGEST, {"kind": "mock"}, []),
        ("", {"kind": "custom", "image": "sglang:v1"}, ["the target's image sglang:v1 "]),
        ("", {"kind": "custom", "image": "sglang"}, ["the target's image sglang "]),
        ("", {"kind": "custom", "image": "sglang:v1" + DIGEST}, []),
        ("", {"kind": "vllm"}, ["the target's image vllm/vllm-openai:v"]),
        (
            "",
            {"kind": "mock", "volumes": [{"kind": "image", "source": "w:1", "path": "/w"}]},
            ["the target's image w:1 "],
        ),
    ],
)
def test_image_without_a_digest_is_noted(
    services: str, target: dict[str, Any], unpinned: list[str]
) -> None:
    config = make_config(target=target)
    found = to_plan(config, stack="s", version="1", image=services)
    notes = [note for note in found.notes if "has no digest" in note]
    assert len(notes) == len(unpinned)
    assert all(map(str.startswith, notes, unpinned))


def test_broken_image_digest_is_refused() -> None:
    config = make_config(target={"kind": "custom", "image": "sglang" + DIGEST})
    found = to_plan(config, stack="s", version="1", image="app" + DIGEST)
    assert {pod.image.name for pod in found.pods} == {"app" + DIGEST, "sglang" + DIGEST}
    with pytest.raises(ConfigError, match=r"AIPERF_IMAGE: 'app@sha256:1'"):
        to_plan(config, stack="s", version="1", image="app@sha256:1")


def test_replacing_a_pinned_image_is_refused() -> None:
    pinned = "registry/app:1" + DIGEST
    config = make_config(image={"name": pinned})
    for image in ("", pinned):
        found = to_plan(config, stack="s", version="1", image=image)
        assert found.deadline.image.name == pinned
    words = "AIPERF_IMAGE is registry/app:2, but deployment.image.name pins another image"
    with pytest.raises(ConfigError, match=words):
        to_plan(config, stack="s", version="1", image="registry/app:2")


def test_replacing_a_tagged_image_is_noted() -> None:
    config = make_config(image={"name": "registry/app:1"})
    found = to_plan(config, stack="s", version="1", image="registry/app:2")
    replaced = (
        "AIPERF_IMAGE replaces deployment.image.name: registry/app:2 in place of registry/app:1"
    )
    assert replaced in found.notes
    assert "name: registry/app:2" in found.files["config.yaml"]
    with pytest.raises(ConfigError, match="AIPERF_IMAGE: 'app' names no fixed version"):
        to_plan(config, stack="s", version="1", image="app")


@pytest.mark.parametrize(
    ("tokenizer", "is_told"),
    [
        ({}, False),
        ({"name": "/models/tokenizer.json"}, False),
        ({"name": "owner/name"}, True),
        ({"name": "owner/name", "revision": "v1"}, True),
        ({"name": "owner/name", "revision": "0a" * 20}, False),
    ],
)
def test_tokenizer_without_a_pinned_revision_is_noted(
    tokenizer: dict[str, str], is_told: bool
) -> None:
    config = with_keys(make_config(), tokenizer=tokenizer)
    assert any("tokenizer.revision" in note for note in to_plan(config).notes) == is_told


@pytest.mark.parametrize(
    ("name", "stack"), [("Llama-3.1_70B", "llama-3-1-70b"), ("bench", "bench"), ("A..B", "a-b")]
)
def test_flag_stack_name_is_valid_in_kubernetes(name: str, stack: str) -> None:
    assert stack_name_of(name) == stack


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"labels": {"aiperf.dev/stack": "x"}}, "aiperf.dev/stack is set by this tool"),
        ({"labels": {"app.kubernetes.io/name": "x"}}, "is set by this tool"),
        ({"labels": {"owner": "team a"}}, "a value has at most 63 letters"),
        ({"labels": {"a b": "x"}}, "'a b' is not a key"),
        ({"annotations": {"pulumi.com/skipAwait": "true"}}, "is set by this tool"),
        ({"hold_drains": False, "max_drain_hold": "5m"}, "max_drain_hold has no effect"),
    ],
)
def test_invalid_labels_and_drain_holds_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_config(**keys)


def test_a_drain_waits_no_longer_than_its_cap() -> None:
    bounded = {"concurrency": 1, "duration": "10m"}
    for load in (bounded, {"concurrency": 1, "requests": 10}):
        budget = to_plan(make_config(load=load, ttl="2h", max_drain_hold="2m")).budget
        assert budget is not None
        assert budget.hold == 120 * 10**9


def test_api_server_address_keeps_the_run_id() -> None:
    one, other = (to_plan(make_config(api_server_cidrs=each)) for each in ([], ["10.0.0.1/32"]))
    assert one.identity.run_id == other.identity.run_id
