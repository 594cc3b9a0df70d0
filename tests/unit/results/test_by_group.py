"""Results by target and by model of one run."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from aiperf_svc.adapters.exports.aiperf_exports import result_of
from aiperf_svc.adapters.report import page
from aiperf_svc.config.slo import Slo
from aiperf_svc.core.results.distributions import network_times
from aiperf_svc.core.results.joint_result import of_groups, rows
from aiperf_svc.core.results.slo import Failures
from aiperf_svc.core.results.summarise import summarise
from aiperf_svc.core.results.summary import Summary
from aiperf_svc.core.stats.histogram import delta_of
from aiperf_svc.domain.metric_catalog import CATALOG
from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.protocol.messages.reports import HistogramDelta
from aiperf_svc.protocol.records import Rows
from tests.support import fake_run
from tests.support.fake_results import as_json, avg_of

URLS = ("http://a:1", "http://b:1/base", "http://c:1")


@pytest.fixture(scope="module")
def records() -> Rows:
    made = fake_run.closed_loop(requests=1_000, concurrency=10)
    made["target"] = (made["index"] + 1) % len(URLS)
    return made


def summary(
    records: Rows, *urls: str, models: tuple[str, ...] = ("m",), unsent: int = 0, **fields: Any
) -> Summary:
    context = fake_run.context(records, unsent=unsent)
    keys = {"url": urls[0], "urls": urls[1:], "model": models[0], "models": models[1:]}
    endpoint = context.config.endpoint.model_copy(update=keys)
    config = context.config.model_copy(update={"endpoint": endpoint})
    return summarise(fake_run.columns_of(records), None, replace(context, config=config, **fields))


def test_requests_are_in_one_target_and_add_up(records: Rows) -> None:
    found = summary(records, *URLS)
    assert [each.name for each in found.targets] == list(URLS)
    for tag in ("request_count", "error_request_count", "total_isl", "total_osl"):
        assert sum(avg_of(each.metrics, tag) for each in found.targets) == found.scalars[tag]
    counts = [each.metrics["request_latency"].count or 0 for each in found.targets]
    assert sum(counts) == found.metrics["request_latency"].distribution.count
    assert min(counts) > 0


def test_target_percentiles_cover_only_its_requests(records: Rows) -> None:
    found = summary(records, *URLS)
    done = records[
        (records["phase"] == Phase.PROFILING) & (records["outcome"] == Outcome.COMPLETED)
    ]
    for number, each in enumerate(found.targets):
        mine = done[done["target"] == number]
        latency_ms = (mine["last_token_wall_ns"] - mine["start_wall_ns"]) / 1e6
        assert avg_of(each.metrics, "request_latency") == pytest.approx(float(np.mean(latency_ms)))


def test_unsent_request_without_target_improves_no_target(records: Rows) -> None:
    tag = "intended_request_latency"
    assert all(tag in each.metrics for each in summary(records, *URLS).targets)
    found = summary(records, *URLS, unsent=5)
    assert tag in found.metrics
    for each in found.targets:
        assert tag not in each.metrics
        assert "request_latency" in each.metrics
        assert "unsent_request_count" not in each.metrics


def test_one_target_has_no_table(records: Rows) -> None:
    found = summary(records, URLS[0])
    assert found.targets == ()
    assert "targets" not in as_json(result_of(found))["aiperf_svc"]
    assert "<h2>Targets</h2>" not in page.render(found).decode()


def test_table_has_columns_of_targets_and_total(records: Rows) -> None:
    found = summary(records, *URLS)
    joint = of_groups(result_of(found), "targets")
    assert [member.name for member in joint.members] == ["a:1", "b:1/base", "c:1"]
    first = next(row for row in rows(joint, is_short=True) if row.name == "Request Count")
    assert (
        first.total == sum(value or 0 for value in first.values) == found.scalars["request_count"]
    )
    shown = page.render(found).decode()
    assert "<h2>Targets</h2>" in shown
    assert "<th>b:1/base</th>" in shown


def test_target_has_round_trips_of_its_connections(records: Rows) -> None:
    workers = [
        (_round_trips(1, 2), _round_trips(10), _round_trips(100)),
        (_round_trips(3), _round_trips(20), ()),
    ]
    found = summary(records, *URLS, network=network_times(workers))
    assert [avg_of(each.metrics, "network_rtt") for each in found.targets] == [2, 15, 100]
    total = found.metrics["network_rtt"].distribution
    assert (total.count, total.stats["min"], total.stats["max"]) == (6, 1, 100)
    assert total.stats["sum"] == 136


def _round_trips(*values_ms: int) -> tuple[HistogramDelta, ...]:
    values = np.array(values_ms, dtype=np.int64) * 1_000_000
    return (delta_of(values, phase=Phase.PROFILING, tag="network_rtt"),)


def test_objective_on_the_network_leaves_out_no_request() -> None:
    failures = Failures(completed=1, errored=99)
    assert failures.missing_from(CATALOG["network_rtt"]) == {}
    assert failures.missing_from(CATALOG["inter_chunk_latency"])["failed"] == 99


def test_requests_are_in_one_model_and_add_up(records: Rows) -> None:
    found = summary(records, URLS[0], models=("base", "org/lora-a", "org/lora-b"))
    assert [each.name for each in found.models] == ["base", "org/lora-a", "org/lora-b"]
    assert found.targets == ()
    for tag in ("request_count", "total_isl", "total_osl"):
        assert sum(avg_of(each.metrics, tag) for each in found.models) == found.scalars[tag]
    for number, each in enumerate(found.models):
        mine = records[records["entry"] % 3 == number]
        assert avg_of(each.metrics, "request_count") == len(mine)
    content = as_json(result_of(found))
    assert [each["model"] for each in content["aiperf_svc"]["models"]] == [
        "base",
        "org/lora-a",
        "org/lora-b",
    ]
    assert content["input_config"]["models"]["strategy"] == "round_robin"
    shown = page.render(found).decode()
    assert "<h2>Models</h2>" in shown
    assert "<th>org/lora-a</th>" in shown


def test_each_model_has_its_own_goodput(records: Rows) -> None:
    limits = Slo(goodput={"time_to_first_token": 30})
    context = fake_run.context(records)
    endpoint = context.config.endpoint.model_copy(update={"models": ("lora",)})
    config = context.config.model_copy(update={"endpoint": endpoint, "slo": limits})
    found = summarise(fake_run.columns_of(records), None, replace(context, config=config))
    for tag in ("good_request_count", "goodput"):
        each = [avg_of(model.metrics, tag) for model in found.models]
        assert min(each) > 0
        assert sum(each) == pytest.approx(found.scalars[tag])
