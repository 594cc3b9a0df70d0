"""Which pods may connect to which."""

from typing import Any

import pytest

from aiperf_svc.config.secret_names import PAGES_KEY_ENV, TARGET_KEY_ENV
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.network import (
    LabelledPods,
    NamespacePods,
    OutsideUrl,
    Policy,
    Range,
    Rule,
    StackPods,
    rank_policies,
)
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.protocol.ports import BOUND_BY, CONNECTED_BY, Port
from aiperf_svc.runner.stack.request import secrets_from
from tests.support.plans import make_config, to_plan, with_keys


def policy(plan: StackPlan, name: str) -> Policy:
    return next(p for p in plan.policies if p.name == name)


def _ways(plan: StackPlan, *, direction: str) -> set[tuple[str, str, int]]:
    """Return (from, to, port) between the stack's pods as the policies of one side allow them."""
    return {
        (own, other, port) if direction == "egress" else (other, own, port)
        for p in plan.policies
        for rule in getattr(p, direction)
        for peer in rule.peers
        if isinstance(peer, StackPods)
        for own in p.components
        for other in peer.components
        for port in rule.ports
        if own != other
    }


def test_every_port_between_services_is_accounted_for() -> None:
    assert set(CONNECTED_BY) == set(BOUND_BY) - {Port.RESULTS_API}


@pytest.mark.parametrize("layout", ["per-service", "compact"])
@pytest.mark.parametrize("route", ["proxy", "direct"])
def test_every_ingress_rule_has_its_egress_rule(layout: str, route: str) -> None:
    plan = to_plan(make_config(layout=layout, raw_route=route))
    assert _ways(plan, direction="ingress") <= _ways(plan, direction="egress")


def test_services_connect_to_bound_ports_only() -> None:
    plan = to_plan(make_config(raw_route="direct"))
    bound = tuple(sorted(int(port) for port in CONNECTED_BY))
    binders = tuple(sorted({service.value for service in BOUND_BY.values()}))
    assert policy(plan, "services").egress == (Rule((StackPods(binders),), bound),)


def test_service_rules_follow_the_port_map() -> None:
    plan = to_plan(make_config(raw_route="direct"))
    between = {way for way in _ways(plan, direction="ingress") if way[1] != "target"}
    expected = {
        (client.value, BOUND_BY[port].value, int(port))
        for port, clients in CONNECTED_BY.items()
        for client in clients
        if client is not BOUND_BY[port]
    }
    assert between == expected


def test_services_in_one_pod_need_no_rules() -> None:
    plan = to_plan(make_config(layout="compact", raw_route="proxy"))
    assert {(a, b) for a, b, _ in _ways(plan, direction="ingress")} == {
        ("record-processor", "control"),
        ("worker", "control"),
        ("worker", "target"),
        ("control", "target"),
        ("preflight", "target"),
    }


def test_unlisted_traffic_except_dns_is_denied() -> None:
    default = policy(to_plan(make_config()), "default")
    assert (default.components, default.ingress) == ((), ())
    assert default.egress == (Rule(ports=(53, 5353), protocols=("UDP", "TCP")),)


def test_deadline_pod_reaches_named_ranges_only() -> None:
    plan = to_plan(make_config(api_server_cidrs=["10.1.0.1/32", "10.1.0.2/32"]))
    ranges = (Range("10.1.0.1/32"), Range("10.1.0.2/32"))
    assert policy(plan, "deadline").egress == (Rule(ranges),)


def test_only_deadline_pod_reaches_the_api_server() -> None:
    plan = to_plan(make_config())
    open_rules = {p.name: rule.ports for p in plan.policies for rule in p.egress if not rule.peers}
    assert open_rules == {"default": (53, 5353), "deadline": ()}
    assert policy(plan, "deadline").components == ("deadline",)
    assert policy(plan, "deadline").ingress == ()


@pytest.mark.parametrize(
    ("url", "target", "rule", "note"),
    [
        ("https://10.1.2.3", {}, Rule((Range("10.1.2.3/32"),), (443,)), None),
        ("http://[2001:db8::1]:8000", {}, Rule((Range("2001:db8::1/128"),), (8000,)), None),
        (
            "http://api.team.svc:80",
            {"pods": {"namespace": "team", "labels": {"app": "api"}, "port": 8080}},
            Rule((NamespacePods("team", {"app": "api"}),), (8080,)),
            None,
        ),
        (
            "http://api.team.svc.cluster.local",
            {},
            Rule((NamespacePods("team"),)),
            "every pod of namespace team",
        ),
        ("http://api:8000", {}, Rule((NamespacePods(None),)), "every pod of their namespace"),
        ("https://api.example", {}, Rule(ports=(443,)), "port 443 of every address"),
        (
            "https://api.example:8443",
            {"egress_cidrs": ["192.0.2.0/24"]},
            Rule((Range("192.0.2.0/24"),), (8443,)),
            None,
        ),
    ],
)
def test_target_rule_is_as_narrow_as_possible(
    url: str, target: dict[str, Any], rule: Rule, note: str | None
) -> None:
    plan = to_plan(make_config(url=url, target=target))
    way = policy(plan, "to-target")
    assert way.components == ("worker", "preflight", "records-manager")
    assert way.egress == (rule,)
    assert len(plan.notes) == (0 if note is None else 1)
    assert note is None or note in plan.notes[0]


def test_service_like_host_names_the_pods_key() -> None:
    (note,) = to_plan(make_config(url="http://llm.models")).notes
    assert "if it is Service llm of namespace models, with deployment.target.pods" in note
    (note,) = to_plan(make_config(url="http://api.example.com")).notes
    assert "deployment.target.pods" not in note


def test_note_on_ranks_names_one_key() -> None:
    _, notes = rank_policies(set(), (OutsideUrl("https://huggingface.co", "HF_HUB_OFFLINE"),))
    reach = "ranks may reach port 443 of every address, for huggingface.co"
    assert notes == [f"{reach}; narrow it with HF_HUB_OFFLINE"]


def test_workers_reach_own_target_pod_port() -> None:
    plan = to_plan(make_config(target={"kind": "mock", "port": 9000}))
    assert policy(plan, "to-target").egress == (Rule((StackPods(("target",)),), (9000,)),)
    assert policy(plan, "target").egress == ()


@pytest.mark.parametrize("layout", ["per-service", "compact"])
def test_page_reader_reaches_the_target(layout: str) -> None:
    reader = "control" if layout == "compact" else "records-manager"
    plan = to_plan(make_config(target={"kind": "mock", "port": 9000}, layout=layout))
    assert policy(plan, "to-target").components == ("worker", "preflight", reader)
    pods = StackPods(("worker", "preflight", reader))
    assert policy(plan, "target").ingress == (Rule((pods,), (9000,)),)
    # It reads nothing else.
    assert "to-metrics" not in {each.name for each in plan.policies}


def test_only_workers_reach_target_without_its_page() -> None:
    config = make_config(target={"kind": "mock", "port": 9000})
    plan = to_plan(with_keys(config, telemetry={"target": False}))
    assert policy(plan, "to-target").components == ("worker", "preflight")
    assert policy(plan, "target").ingress == (Rule((StackPods(("worker", "preflight")),), (9000,)),)


def test_each_named_page_gets_one_rule() -> None:
    config = make_config(
        url="http://vllm.serving.svc:8000",
        target={"pods": {"namespace": "serving", "labels": {"app": "vllm"}, "port": 8000}},
    )
    found = {
        "namespace": "gpu-operator",
        "labels": {"app": "nvidia-dcgm-exporter"},
        "port": 9400,
        "pages": ["http://10.0.0.7:9400/metrics"],
        "users": ["vllm-"],
    }
    plan = to_plan(
        with_keys(
            config,
            telemetry={
                "server_metrics": ["http://vllm.serving.svc:8001", "http://router.web.svc"],
                "gpu_telemetry": ["http://192.0.2.7:9400"],
                "exporters": [found, found | {"host_network": True}],
            },
        )
    )
    way = policy(plan, "to-metrics")
    assert way.components == ("records-manager",)
    assert way.egress == (
        Rule((NamespacePods("serving", {"app": "vllm"}),)),
        Rule((NamespacePods("web"),)),
        Rule((Range("192.0.2.7/32"),), (9400,)),
        Rule((NamespacePods("gpu-operator", {"app": "nvidia-dcgm-exporter"}),), (9400,)),
        Rule((Range("10.0.0.7/32"),), (9400,)),
    )
    (note,) = plan.notes
    assert note == (
        "records-manager may reach every pod of namespace web, for router.web.svc; narrow it with "
        "an address in telemetry.server_metrics"
    )


def test_page_port_is_open_to_reader_only() -> None:
    config = make_config(target={"kind": "mock", "port": 9000})
    pages = {"server_metrics": ["http://target:9100", "http://target"]}
    plan = to_plan(with_keys(config, telemetry=pages))
    assert plan.inference.telemetry.server_metrics == (
        "http://target-bench:9100/metrics",
        "http://target-bench:9000/metrics",
    )
    pods = StackPods(("worker", "preflight", "records-manager"))
    reader = StackPods(("records-manager",))
    assert policy(plan, "target").ingress == (Rule((pods,), (9000,)), Rule((reader,), (9100,)))
    to_target = StackPods(("target",))
    assert policy(plan, "to-metrics").egress == (Rule((to_target,), (9100,)),)


def test_page_of_absent_target_is_an_error() -> None:
    config = make_config(url="http://a.example")
    with pytest.raises(ConfigError, match="`target` stands for a target in the stack, and there"):
        to_plan(with_keys(config, telemetry={"server_metrics": ["http://target:1"]}))


def test_prometheus_reaches_limited_results_on_request() -> None:
    limited = {"allow_cidrs": ["192.0.2.0/24"]}
    prometheus = LabelledPods({"app.kubernetes.io/name": "prometheus"})
    for monitoring, peers in (
        ("none", (Range("192.0.2.0/24"),)),
        ("annotations", (Range("192.0.2.0/24"), prometheus)),
        ("prometheus-operator", (Range("192.0.2.0/24"), prometheus)),
    ):
        plan = to_plan(make_config(results=limited, monitoring=monitoring))
        assert policy(plan, "records-manager").ingress[-1] == Rule(peers, (9090,))


def test_downloading_target_may_reach_https() -> None:
    target = {"kind": "vllm", "downloads": True}
    assert policy(to_plan(make_config(target=target)), "target").egress == (Rule(ports=(443,)),)


def test_the_results_can_be_limited_to_ranges() -> None:
    everybody = policy(to_plan(make_config()), "records-manager")
    assert everybody.ingress[-1] == Rule((), (9090,))
    some = to_plan(make_config(results={"allow_cidrs": ["10.0.0.0/8"]}))
    last = policy(some, "records-manager").ingress[-1]
    assert last == Rule((Range("10.0.0.0/8"),), (9090,))


def test_host_network_pods_are_admitted_without_label() -> None:
    plan = to_plan(make_config(pods={"worker": {"placement": {"host_network": True}}}))
    drop = next(r for r in policy(plan, "timing-manager").ingress if 5562 in r.ports)
    assert drop.peers == ()
    plan = to_plan(make_config(pods={"timing-manager": {"placement": {"host_network": True}}}))
    *_, hosted = policy(plan, "services").egress
    assert hosted == Rule((), (5562, 5563))
    assert any("no NetworkPolicy applies" in note for note in plan.notes)


def test_networks_without_policies_are_noted() -> None:
    plan = to_plan(make_config(pods={"worker": {"placement": {"networks": [{"name": "fast"}]}}}))
    assert "worker is also in network fast, to which no NetworkPolicy applies" in plan.notes


def test_downloads_are_allowed_and_noted() -> None:
    config = make_config()
    plan = to_plan(with_keys(config, tokenizer={"name": "org/model"}))
    assert policy(plan, "downloads").components == ("dataset-manager", "record-processor")
    assert any("org/model" in note for note in plan.notes)
    local = to_plan(with_keys(config, tokenizer={"name": "/data/tokenizer.json"}))
    assert "downloads" not in {p.name for p in local.policies}


def test_pages_in_the_nodes_network_are_reached() -> None:
    pods = {"namespace": "serving", "port": 8000, "host_network": True}
    config = make_config(url="http://llm.serving", target={"kind": "none", "pods": pods})
    page = "http://llm.serving:9090/metrics"
    plan = to_plan(with_keys(config, telemetry={"server_metrics": [page]}))
    assert policy(plan, "to-target").egress == (Rule(ports=(8000,)),)
    assert policy(plan, "to-metrics").egress == (Rule(ports=(9090,)),)


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("http://minio.storage.svc:9000/a.json", Rule((NamespacePods("storage"),))),
        ("http://10.0.0.1/a.json", Rule((Range("10.0.0.1/32"),), (80,))),
        ("https://mirror.example:8443/a.json", Rule(ports=(8443,))),
    ],
)
def test_dataset_of_a_mirror_is_reached(url: str, rule: Rule) -> None:
    dataset = {"kind": "sharegpt", "public": "sharegpt", "url": url}
    plan = to_plan(with_keys(make_config(), dataset=dataset))
    found = policy(plan, "dataset")
    assert (found.components, found.egress) == (("dataset-manager",), (rule,))
    assert "downloads" not in {p.name for p in plan.policies}


@pytest.mark.parametrize("url", ["mirror/a.json", "ftp://mirror/a", "http:///a", "http://m:x/"])
def test_address_of_a_dataset_needs_a_host(url: str) -> None:
    dataset = {"kind": "sharegpt", "public": "sharegpt", "url": url}
    with pytest.raises(ValueError, match="expected http:// or https:// and a host"):
        with_keys(make_config(), dataset=dataset)


@pytest.mark.parametrize(
    ("s3", "rule", "note"),
    [
        ({"endpoint_url": "http://10.0.0.7:9000"}, Rule((Range("10.0.0.7/32"),), (9000,)), None),
        (
            {"endpoint_url": "http://minio.storage.svc:9000"},
            Rule((NamespacePods("storage"),)),
            "every pod of namespace storage",
        ),
        ({}, Rule(ports=(443,)), "port 443 of every address"),
        ({"egress_cidrs": ["192.0.2.0/24"]}, Rule((Range("192.0.2.0/24"),), (443,)), None),
    ],
)
def test_results_pod_and_preflight_reach_the_bucket(
    s3: dict[str, Any], rule: Rule, note: str | None
) -> None:
    plan = to_plan(make_config(s3={"url": "s3://bucket", **s3}))
    way = policy(plan, "upload")
    assert (way.components, way.egress, way.ingress) == (
        ("records-manager", "preflight"),
        (rule,),
        (),
    )
    assert [n for n in plan.notes if "records-manager" in n] == (
        [] if note is None else [n for n in plan.notes if note in n]
    )
    assert note is None or len(plan.notes) == 1
    assert "upload" not in {p.name for p in to_plan(make_config()).policies}


@pytest.mark.parametrize("is_a_parameter", [False, True])
@pytest.mark.parametrize("layout", ["per-service", "compact"])
def test_hook_pod_reaches_target_with_key(layout: str, is_a_parameter: bool) -> None:
    caller = "control" if layout == "compact" else "timing-manager"
    config = make_config(target={"kind": "mock", "port": 9000}, layout=layout)
    parts: dict[str, Any] = {
        "endpoint": {"reset_kv_cache": not is_a_parameter, "api_key_env": "KEY"},
        "telemetry": {"target": False},
    }
    if is_a_parameter:
        parts["experiment"] = {"product": {"endpoint.reset_kv_cache": [True, False]}}
    plan = to_plan(with_keys(config, **parts))
    assert policy(plan, "to-target").components == ("worker", "preflight", caller)
    with_key = [pod.name for pod in plan.pods if TARGET_KEY_ENV in pod.secret_env]
    assert sorted(with_key) == sorted([caller, "worker"])


def test_quality_gate_pod_reaches_target_with_key() -> None:
    config = make_config(target={"kind": "mock", "port": 9000}, layout="per-service")
    parts = {"telemetry": {"target": False}, "quality": {"file": "/gate.jsonl"}}
    plan = to_plan(with_keys(config, endpoint={"api_key_env": "KEY"}, **parts))
    assert policy(plan, "to-target").components == ("worker", "preflight", "records-manager")
    with_key = [pod.name for pod in plan.pods if TARGET_KEY_ENV in pod.secret_env]
    assert sorted(with_key) == ["records-manager", "worker"]


def test_tasks_of_a_quality_gate_may_be_downloaded() -> None:
    config = make_config(target={"kind": "mock"}, layout="per-service")
    plan = to_plan(with_keys(config, quality={"lm_eval": {"tasks": ["gsm8k"]}}))
    assert policy(plan, "downloads").components == ("records-manager",)
    assert any("for quality.lm_eval: gsm8k" in note for note in plan.notes)


def test_page_key_reaches_the_reader_only() -> None:
    pages = {"server_metrics": ["http://target"], "key_env": "MY_PAGES"}
    config = with_keys(make_config(target={"kind": "mock"}), telemetry=pages)
    plan = to_plan(config)
    with_key = [pod.name for pod in plan.pods if PAGES_KEY_ENV in pod.secret_env]
    assert with_key == ["records-manager"]
    assert plan.secret_keys == {"pages": ("pagesKey",)}
    assert f"key_env: {PAGES_KEY_ENV}" in plan.files["config.yaml"]
    assert "MY_PAGES" not in plan.files["config.yaml"]
    assert secrets_from(config, {"MY_PAGES": "u:p"}) == {"pagesKey": "u:p"}


def test_workers_reach_only_the_proxy() -> None:
    proxy = {"proxy": "http://10.1.2.3:3128"}
    config = with_keys(make_config(url="https://api.example.com"), endpoint=proxy)
    plan = to_plan(config)
    assert policy(plan, "to-target").egress == (Rule((Range("10.1.2.3/32"),), (3128,)),)
    with pytest.raises(ConfigError, match="a stack has no secret for a proxy"):
        to_plan(with_keys(config, endpoint={"proxy_auth_env": "USER"}))
