"""The reviewer's summary agrees with the plan."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.config.load_config import load_config, parse_config
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.workloads.inference.preview import inference_rows
from aiperf_svc.workloads.previews.changes import Change, StackChanges, changes
from aiperf_svc.workloads.previews.review import facts, whole_cost
from aiperf_svc.workloads.previews.summary import FEW, WIDTH, as_markdown, as_text, totals_line
from tests.support.plans import to_plan
from tests.support.releases import deployment, release_plan, release_target
from tests.support.small_configs import small_benchmark

STACKS = Path(__file__).parents[3] / "stacks"
NEW = StackChanges(base="what is deployed")


def plan_of(name: str) -> StackPlan:
    config = load_config(STACKS / f"Pulumi.{name}.yaml")
    return to_plan(config, stack=name, version="1", image="registry/aiperf:1")


def plan_with(**deployment: Any) -> StackPlan:
    data = small_benchmark(
        "http://10.0.0.1:8000", load={"concurrency": 4, "requests": 8}, deployment=deployment
    )
    return to_plan(parse_config(data, ""), stack="s", version="1", image="registry/aiperf:1")


def deployed(*found: Change, is_new_run: bool = True) -> StackChanges:
    return StackChanges(base="it", is_deployed=True, changed=found, is_new_run=is_new_run)


def test_totals_are_the_plans() -> None:
    plan = plan_of("bench-100k")
    assert totals_line(plan).startswith(f"{plan.totals.pods:,} pods, ")
    assert f"{plan.totals.gpus} GPUs" in totals_line(plan)


def test_every_image_is_shown_with_its_digest() -> None:
    image, weights = (f"registry.example/{name}:v1@sha256:{'0a' * 32}" for name in ("s", "w"))
    volume = {"kind": "image", "source": weights, "path": "/weights"}
    data = small_benchmark(
        "http://target",
        load={"concurrency": 4, "requests": 8},
        deployment={"target": {"kind": "custom", "image": image, "volumes": [volume]}},
    )
    plan = to_plan(parse_config(data, ""), stack="s", version="1", image="registry/aiperf:1")
    for text in (as_text(plan, NEW), as_markdown(plan, NEW)):
        rows = ("  image ", "| target |", "| worker |")
        images = [line for line in text.splitlines() if line.startswith(rows)]
        for name in (image, weights, "registry/aiperf:1"):
            assert any(name in line for line in images)


def test_cost_is_shown_with_prices() -> None:
    assert "an hour" not in totals_line(plan_with())
    priced = plan_with(prices={"cpu": 1.0, "currency": "EUR"})
    assert f"{priced.totals.cost_per_hour:g} EUR an hour" in totals_line(priced)


@pytest.mark.parametrize(
    ("namespace", "expected"),
    [
        ({}, "aiperf-s-…: created, removed"),
        ({"mode": "create", "name": "n"}, "n: created, removed"),
        ({"mode": "existing", "name": "n"}, "n: exists and is kept"),
    ],
)
def test_fate_of_the_namespace_is_shown(namespace: dict[str, str], expected: str) -> None:
    text = as_text(plan_with(namespace=namespace), NEW)
    assert expected in text
    assert ("1 Namespace," in text) == (namespace.get("mode") != "existing")


def test_markdown_has_rows_of_pods_and_notes() -> None:
    plan = plan_of("bench-vllm")
    text = as_markdown(plan, NEW)
    assert all(f"| {pod.name} | {pod.replicas:,} |" in text for pod in plan.pods)
    assert plan.notes
    assert all(f"- {note}" in text for note in plan.notes)
    assert "Nothing to compare with: nothing is deployed." in text


def test_changes_are_shown_as_a_diff() -> None:
    found = changes({"load": {"concurrency": 8}}, {"load": {"concurrency": 9}, "name": "x"})
    assert found == (Change("load.concurrency", 8, 9), Change("name", None, "x"))
    text = as_markdown(plan_of("bench-smoke"), deployed(*found))
    assert "- load.concurrency: 8\n+ load.concurrency: 9\n" in text
    assert "2 keys of the benchmark changed: a new run; results that were not collected" in text


def test_unchanged_benchmark_is_reported() -> None:
    assert changes({"a": {"b": [1]}}, {"a": {"b": [1]}}) == ()
    text = as_text(plan_of("bench-smoke"), deployed(is_new_run=False))
    assert "The benchmark is unchanged: no new run" in text


@pytest.mark.parametrize("write", [as_text, as_markdown])
def test_changed_image_or_generation_discards_results(
    write: Callable[[StackPlan, StackChanges], str],
) -> None:
    text = " ".join(write(plan_of("bench-smoke"), deployed()).split())
    assert "generation changed; the benchmark did not: a new run; results that were not" in text
    assert "no new run" not in text


def test_comparison_of_files_does_not_mention_results() -> None:
    found = StackChanges(base="`old.yaml`", changed=(Change("name", "a", "b"),))
    text = as_markdown(plan_of("bench-smoke"), found)
    assert "1 key of the benchmark changed: a new run.\n" in text
    assert "discarded" not in text


@pytest.mark.parametrize("write", [as_text, as_markdown])
def test_failed_comparison_is_not_a_new_stack(
    write: Callable[[StackPlan, StackChanges], str],
) -> None:
    failed = StackChanges(base="what is deployed", not_compared="it needs a passphrase")
    text = write(plan_of("bench-smoke"), failed)
    assert "Not compared with what is deployed: it needs a passphrase. " in text
    assert "--against FILE" in text
    assert "Nothing to compare" not in text


def test_failed_comparison_is_reported_in_words() -> None:
    reason = "the state of the stack is encrypted, " * 5 + "with a passphrase"
    failed = StackChanges(base="what is deployed", not_compared=reason)
    lines = as_text(plan_of("bench-smoke"), failed).splitlines()
    at = next(n for n, line in enumerate(lines) if "Not compared" in line)
    shown = lines[at:]
    assert len(shown) > 2
    assert max(map(len, shown)) <= WIDTH
    assert shown[0].startswith("  Not compared with what is deployed: the state")
    assert f"what is deployed: {reason}. --against" in " ".join(line.strip() for line in shown)


def test_removed_key_is_a_change() -> None:
    assert changes({"a": {"b": 1}}, {}) == (Change("a.b", 1, None),)
    assert str(Change("a.b", 1, None)) == "a.b: 1 → (default)"


def test_many_changes_are_cut() -> None:
    found = tuple(Change(f"k{number}", 1, 2) for number in range(FEW + 3))
    assert "… and 3 more" in as_markdown(plan_of("bench-smoke"), deployed(*found))


def rows_of(**changes: Any) -> dict[str, str]:
    """Return the rows of a stack that differs from a small one in `changes`."""
    data = small_benchmark("http://10.0.0.1:8000", load={"concurrency": 4, "duration": "1m"})
    for key, value in changes.items():
        data[key] = {**data.get(key, {}), **value}
    plan = to_plan(parse_config(data, ""), stack="s", version="1", image="registry/aiperf:1")
    rows = dict(inference_rows(plan.inference)) | dict(facts(plan))
    rows |= {"cost": whole_cost(plan)}
    assert all(text in as_markdown(plan, NEW).replace("\\|", "|") for text in rows.values())
    return rows


@pytest.mark.parametrize(
    ("changes", "row", "text"),
    [
        ({}, "model", "m"),
        ({}, "tokens", "550 in"),
        ({}, "egress",
         "deadline: every address; worker, preflight, records-manager: 10.0.0.1/32 port 8000"),
        ({}, "results by", "port-forward"),
        ({"load": {"ramp": "10s", "warmup": {"requests": 40}}}, "load",
         "4 concurrent, for 1m, ramp 10s, after a warmup of 40 requests"),
        ({"dataset": {"output_tokens": {"mean": 100, "stddev": 5}}}, "tokens",
         "550 in, 100 ± 5 out, forced"),
        ({"dataset": {"input_tokens": {"mean": 1_000_000}}}, "tokens", "1,000,000 in"),
        ({"slo": {"objectives": [{"metric": "time_to_first_token", "stat": "p95", "max": "1s"}]}},
         "objectives", "time_to_first_token p95 <= 1s"),
        ({"endpoint": {"api_key_env": "KEY"}}, "secrets", "aiperf:targetApiKey"),
        ({"deployment": {"placement": {"priority_class": "high"}}}, "priority", "all pods: high"),
        ({"deployment": {"pods": {"worker": {"placement": {"node_selector": {"spot": "yes"}}}}}},
         "nodes", "worker: spot=yes"),
        ({"deployment": {"placement": {"prefer_nodes": {"zone": ["a", "b"]}}}}, "nodes",
         "all pods: prefers zone in a|b"),
        ({"endpoint": {"url": "http://target"},
          "deployment": {"target": {"kind": "custom", "image": "x:1", "writable": True}}},
         "writable root", "target"),
        ({"endpoint": {"url": "http://target"},
          "deployment": {"target": {"kind": "mock", "downloads": True}}},
         "downloads", "target may reach port 443 anywhere"),
        ({"endpoint": {"url": "http://target"},
          "deployment": {"namespace": {"mode": "existing", "name": "n"}, "target": {
              "kind": "custom", "image": "x:1", "volumes": [
                  {"kind": "claim", "source": "cache", "path": "/cache", "read_only": False},
                  {"kind": "image", "source": "w:1", "path": "/w"}]}}},
         "volumes",
         "claim cache at /cache, which the target may change; image w:1 at /w, read-only"),
        ({"artifacts": {"s3": {"url": "s3://bucket/nightly"}}}, "results by",
         "port-forward and upload to s3://bucket/nightly"),
        ({}, "node drains", "wait for the start and the load, at most 6m30s"),
        ({"load": {"requests": 9, "duration": None}}, "node drains",
         "wait until the stack is gone, at most 2h: load or warmup has no duration"),
        ({"deployment": {"hold_drains": False}}, "node drains", "evict pods, and the run fails"),
        ({"deployment": {"api_server_cidrs": ["10.1.0.1/32"]}}, "egress",
         "deadline: 10.1.0.1/32; worker, preflight, records-manager: 10.0.0.1/32 port 8000"),
        ({"deployment": {"monitoring": "annotations"}}, "monitoring",
         "anyone who can reach records-manager may read /metrics without a token"),
        ({"deployment": {"monitoring": "prometheus-operator",
                         "results": {"allow_cidrs": ["10.0.0.0/8"]}}},
         "monitoring",
         "a PodMonitor with a token for /metrics only, and a PrometheusRule; pods "
         "app.kubernetes.io/name=prometheus may reach it too"),
        ({"deployment": {"results": {"expose": "LoadBalancer", "allow_cidrs": ["10.0.0.0/8"]}}},
         "results by", "LoadBalancer without TLS from 10.0.0.0/8"),
    ],
)  # fmt: skip
def test_summary_has_rows_for_review(changes: dict[str, Any], row: str, text: str) -> None:
    assert rows_of(**changes)[row] == text


def test_admitted_namespaces_are_egress() -> None:
    admit = [{"namespace": "nats", "labels": {"app": "nats"}}]
    plan = release_plan(deployment("router"), target=release_target(admit=admit))
    egress = dict(facts(plan))["egress"]
    assert "worker, preflight, records-manager: pods of namespace nats app=nats" in egress
    assert "the release: pods of namespace nats app=nats" in egress


def test_run_costs_at_most_its_time_to_live() -> None:
    prices = {"cpu": 1.0, "currency": "EUR"}
    plan = plan_with(prices=prices, ttl="2h")
    most = f"at most {2 * plan.totals.cost_per_hour:.4g} EUR until it removes itself"
    assert whole_cost(plan) == most
    bounded = rows_of(deployment={"prices": prices})["cost"]
    assert " EUR for start and load (6m30s), at most " in bounded
    assert whole_cost(plan_with()) == ""
