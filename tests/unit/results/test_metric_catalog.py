"""The catalog agrees with AIPerf, and every metric in it is computed and documented."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from aiperf_svc.core.events.disturbance import event_scalars
from aiperf_svc.core.events.report import Disturbance
from aiperf_svc.core.quality.gate import Answer, score
from aiperf_svc.core.results import scalars
from aiperf_svc.core.results.scalars import derived
from aiperf_svc.core.results.summarise import summarise
from aiperf_svc.core.results.telemetry import economic_numbers
from aiperf_svc.core.scaling.timeline import scaling_scalars
from aiperf_svc.core.stats.load_window import PhaseTimes
from aiperf_svc.domain.metric_catalog import (
    CATALOG,
    METRICS,
    Count,
    Derived,
    Kind,
    Rate,
    nearest_tags,
)
from aiperf_svc.protocol.records import Flag
from tests.support import fake_run, printed_tables
from tests.support.scaled import FOUND, UP

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "tests" / "data" / "aiperf_sample"
MARK = "<!-- tables: printed from the catalog -->\n"


def test_tags_are_unique() -> None:
    assert len(CATALOG) == len(METRICS)


def test_names_and_units_are_aiperfs() -> None:
    sample = json.loads((SAMPLE / "profile_export_aiperf.json").read_text())
    with (SAMPLE / "profile_export_aiperf.csv").open() as file:
        headers = {row[0] for row in csv.reader(file) if row}
    known = {tag for tag in CATALOG if isinstance(sample.get(tag), dict)}
    assert len(known) >= 45
    for tag in known:
        assert CATALOG[tag].unit == sample[tag]["unit"]
        assert CATALOG[tag].header in headers


def test_only_left_out_metrics_are_missing_from_aiperfs() -> None:
    sample = json.loads((SAMPLE / "profile_export_aiperf.json").read_text())
    metrics = {tag for tag, entry in sample.items() if isinstance(entry, dict) and "avg" in entry}
    missing = {tag for tag in metrics if tag not in CATALOG}
    # Other levels than the concurrency, and parts of an exchange that do not apply to a worker with
    # its own sockets.
    levels = {tag for tag in missing if tag.startswith(("active_", "effective_", "tokens_in_"))}
    parts = {"http_req_blocked", "http_req_dns_lookup", "http_req_chunks_sent"}
    assert missing - levels == parts


QUALITY = score(
    ["exact"],
    [Answer(question=0, repeat=0, text="yes", is_right=True)],
    file="q.jsonl",
    sha256="0",
    concurrency=1,
    min_score=None,
)

KILLED = Disturbance(
    do="kill",
    what="",
    begin_s=60,
    end_s=60,
    is_verified=True,
    evidence="gone",
    problem="",
    judged_s=60,
    longest_gap_s=1,
    throughput_recovery_s=1,
    latency_recovery_s=1,
)


SCALED = structs.replace(FOUND, scale_ups=(structs.replace(UP, recovery_s=40.0),))


def test_every_metric_is_computed() -> None:
    closed = fake_run.closed_loop(requests=200)
    closed["reasoning_tokens"] = closed["hidden_tokens"] = 3
    closed["usage_prompt_tokens"], closed["cached_tokens"] = 500, 100
    closed["cache_write_tokens"] = 50
    closed["spec_steps"], closed["spec_drafted_tokens"] = 10, 30
    closed["spec_accepted_tokens"] = 20
    closed["flags"][0] |= Flag.ABANDONS | Flag.BLOCKED
    economics = {"gpus": 4, "price_per_gpu_hour": 2.5, "kw_per_gpu": 1.7}
    slo = {"goodput": {"time_to_first_token": 35}}
    found = set(scaling_scalars(SCALED)) | set(event_scalars([KILLED]))
    for load in ({"concurrency": 20, "requests": 200}, {"request_rate": 90, "duration": "30s"}):
        config = fake_run.config(**load, slo=slo, economics=economics)
        times = PhaseTimes(start_wall_ns=fake_run.START_NS)
        context = fake_run.context(closed, config=config, profiling=times, quality=QUALITY)
        summary = summarise(fake_run.columns_of(closed), None, context)
        numbers = economic_numbers(config, counted=4, joules=9000.0).scalars
        found |= set(derived(summary.scalars | numbers))
        found |= set(summary.metrics) | set(summary.scalars) | {"effective_concurrency"}
    assert found == {metric.tag for metric in METRICS if metric.kind is not Kind.POOLED}


def test_metrics_have_the_formula_of_their_kind() -> None:
    for metric in METRICS:
        assert (metric.compute is not None) == (metric.kind is Kind.RECORD), metric.tag
        assert (metric.scalar is not None) == (metric.kind is Kind.SCALAR), metric.tag


def test_counts_that_need_something_are_absent_without() -> None:
    for metric in METRICS:
        assert not (isinstance(metric.scalar, Count) and metric.needs), metric.tag


def test_rates_are_of_counts_that_add_up() -> None:
    for metric in METRICS:
        if isinstance(metric.scalar, Rate):
            assert all(CATALOG[tag].is_additive for tag in metric.scalar.tags), metric.tag


def test_a_number_may_follow_from_a_later_one() -> None:
    numbers = {"request_count": 3.0, "error_request_count": 1.0}
    assert derived(numbers)["request_error_rate"] == 25.0
    assert derived({"request_count": 3.0}) == {"request_count": 3.0}


def test_a_number_divided_by_zero_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    each = replace(CATALOG["request_error_rate"], scalar=Derived(lambda n: 1 / n["a"]))
    monkeypatch.setattr(scalars, "METRICS", (each,))
    assert derived({"a": 0.0}) == {"a": 0.0}
    assert derived({"a": 2.0})["request_error_rate"] == 0.5


def test_shares_of_nothing_are_absent() -> None:
    counts = ("request_count", "error_request_count", "total_draft_tokens",
              "total_accepted_draft_tokens", "total_spec_decode_steps",
              "total_usage_prompt_cache_read_tokens",
              "total_usage_prompt_cache_miss_tokens")  # fmt: skip
    assert derived(dict.fromkeys(counts, 0.0)).keys() - counts == {"completed_request_count"}


def test_the_nearest_tag_is_found() -> None:
    assert nearest_tags("time-to-first-tokn")[0] == "time_to_first_token"
    assert nearest_tags("TTFT") == ["time_to_first_token"]
    assert nearest_tags("itl") == ["inter_token_latency"]
    assert nearest_tags("xyzzy") == []


def test_the_documented_tables_are_the_catalogs(
    assert_printed: Callable[[Path, str, str], None],
) -> None:
    assert_printed(ROOT / "docs" / "metrics.md", MARK, printed_tables.metric_tables())


def test_aiperfs_own_sample_is_explained_by_our_rules() -> None:
    # 10 of its 100 requests opened a connection, so this metric has 10 zeros and 90 ones. This is
    # enough to determine the interpolation and the divisor of std.
    sample = json.loads((SAMPLE / "profile_export_aiperf.json").read_text())
    theirs = sample["http_req_connection_reused"]
    rows = np.concatenate([fake_run.request() for _ in range(100)])
    rows["flags"][:10] = 64
    context = fake_run.context(rows)
    ours = summarise(fake_run.columns_of(rows), None, context).metrics["http_req_connection_reused"]
    for stat in ("avg", "p1", "p5", "p10", "p25", "p50", "p99", "min", "max", "std", "sum"):
        assert ours.stat(stat) == pytest.approx(theirs[stat]), stat
