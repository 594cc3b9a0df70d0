"""Limits are read in any unit, refused with the nearest name, and held exactly."""

import fake_run
import numpy as np
import pytest

from aiperf_svc.config.models import Slo
from aiperf_svc.core.columns import PhaseRows, columns_of
from aiperf_svc.core.slo import check_slo, count_good, judge, limit_of
from aiperf_svc.domain.metric_catalog import CATALOG
from aiperf_svc.domain.outcomes import Phase


def slo(**parts: object) -> Slo:
    return Slo.model_validate(parts)


@pytest.mark.parametrize(
    ("tag", "limit", "expected"),
    [
        ("time_to_first_token", "250ms", 250.0),
        ("time_to_first_token", "1.5s", 1500.0),
        ("time_to_first_token", 40, 40.0),
        ("time_to_first_token", "40", 40.0),
        ("benchmark_duration", "5m", 300.0),
        ("request_throughput", 100, 100.0),
    ],
)
def test_limits_are_in_the_metrics_unit(tag: str, limit: float | str, expected: float) -> None:
    assert limit_of(CATALOG[tag], limit) == expected


def test_a_good_slo_has_no_problems() -> None:
    objectives = [
        {"metric": "time_to_first_token", "stat": "p99", "max": "250ms"},
        {"metric": "request_throughput", "min": 100},
        {"metric": "effective_concurrency", "stat": "p50", "min": 10},
    ]
    assert check_slo(slo(objectives=objectives, goodput={"inter_token_latency": "20ms"})) == []


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            {"objectives": [{"metric": "time_to_frist_token", "max": 1}]},
            ["slo.objectives.0.metric", "'time_to_frist_token'", "time_to_first_token"],
        ),
        (
            {"objectives": [{"metric": "request_throughput", "stat": "p99", "min": 1}]},
            ["slo.objectives.0.stat", "one number"],
        ),
        (
            {"objectives": [{"metric": "request_latency", "max": "fast"}]},
            ["slo.objectives.0.max", "'fast'", "250ms"],
        ),
        (
            {"objectives": [{"metric": "request_throughput", "min": "10s"}]},
            ["slo.objectives.0.min", "'10s'", "requests/sec"],
        ),
        ({"goodput": {"latency": 1}}, ["slo.goodput.latency", "is not a metric"]),
        ({"goodput": {"request_count": 1}}, ["slo.goodput.request_count", "single request"]),
        ({"goodput": {"inter_chunk_latency": 1}}, ["single request"]),
        ({"goodput": {"request_latency": "soon"}}, ["slo.goodput.request_latency", "'soon'"]),
    ],
)
def test_a_bad_slo_names_key_value_and_what_was_expected(
    parts: dict[str, object], words: list[str]
) -> None:
    (problem,) = check_slo(slo(**parts))
    assert all(word in problem for word in words), problem


def test_objectives_hold_up_to_their_limit() -> None:
    objectives = slo(
        objectives=[
            {"metric": "time_to_first_token", "stat": "p99", "max": "50ms"},
            {"metric": "request_throughput", "min": 10, "max": 20},
            {"metric": "request_latency", "stat": "p99", "max": 9},
        ]
    ).objectives
    measured = {
        ("time_to_first_token", "p99"): 50.0,
        ("request_throughput", "avg"): 21.0,
        ("request_latency", "p99"): None,
    }
    results = judge(objectives, lambda tag, stat: measured[tag, stat])
    assert [(r.metric, r.bound, r.limit, r.ok) for r in results] == [
        ("time_to_first_token", "max", 50.0, True),
        ("request_throughput", "max", 20.0, False),
        ("request_throughput", "min", 10.0, True),
        ("request_latency", "max", 9.0, False),
    ]


def test_a_request_without_the_metric_is_bad() -> None:
    rows = np.concatenate(
        [
            fake_run.request(ttft_ms=20, tokens=10),  # ITL 5
            fake_run.request(ttft_ms=31, tokens=10),  # TTFT too high
            fake_run.request(ttft_ms=20, tokens=1),  # no ITL
            fake_run.request(ttft_ms=20, tokens=10, outcome=1),  # an error
        ]
    )
    phase = PhaseRows(columns_of(rows), phase=Phase.PROFILING)
    assert count_good(phase, {"time_to_first_token": "30ms"}) == 2
    assert count_good(phase, {"time_to_first_token": 30, "inter_token_latency": 5}) == 1
    # Where higher is better, the limit is the lowest good value.
    assert count_good(phase, {"output_token_throughput_per_user": 200}) == 2
    assert count_good(phase, {"output_token_throughput_per_user": 201}) == 0
