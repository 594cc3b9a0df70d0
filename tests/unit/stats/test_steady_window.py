"""The steady part of a load, by shares of its time and by its concurrency."""

import numpy as np
import pytest
from pydantic import ValidationError

from aiperf_svc.config.load_shapes import SteadyState
from aiperf_svc.core.results.slices import steady_part, steady_window
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.core.stats.load_window import LoadWindow, PhaseTimes, load_window
from aiperf_svc.core.stats.totals import add_up
from aiperf_svc.domain.metric_catalog import CATALOG, METRICS, Kind
from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from tests.support import fake_run
from tests.support.fake_results import avg_of

S = 10**9


def window(sent_until_s: float, end_s: float = 100.0) -> LoadWindow:
    return LoadWindow(
        begin_ns=0,
        ramp_ns=0,
        stop_ns=0,
        sent_until_ns=round(sent_until_s * S),
        end_ns=round(end_s * S),
    )


def rule(**keys: float | str) -> SteadyState:
    return SteadyState.model_validate(keys)


def found(
    steady_state: SteadyState, spans: list[tuple[float, float]], sent_s: float = 0.0
) -> list[float]:
    """Return the steady part in seconds of requests with these starts and ends."""
    starts, ends = (np.rint(np.array(x) * S).astype(np.int64) for x in zip(*spans, strict=True))
    return [time / S for time in steady_window(steady_state, window(sent_s), starts, ends)]


def test_shares_are_of_the_time_of_sending() -> None:
    steady_state = rule(skip_start="10%", skip_end="25%")
    assert found(steady_state, [(0, 5), (80, 100)], sent_s=60) == [6.0, 45.0]


@pytest.mark.parametrize("stop_s", [0.0, 0.5])
def test_load_ends_with_stop_or_last_request(stop_s: float) -> None:
    rows = fake_run.closed_loop(requests=100)
    totals = add_up(PhaseRows(fake_run.columns_of(rows)), ClockMap([]))
    begin_ns = int(rows["start_wall_ns"].min())
    stop_ns = begin_ns + round(stop_s * S) if stop_s else 0
    times = PhaseTimes(start_wall_ns=begin_ns, stop_wall_ns=stop_ns)
    made = load_window(times, totals, has_failed=False)
    assert made.sent_until_ns == (stop_ns or rows["start_wall_ns"].max())


def test_ramp_and_drain_are_not_at_peak() -> None:
    users = [(float(n), 50.0 + n) for n in range(10)]
    assert found(rule(concurrency="100%"), users) == [9.0, 50.0]
    assert found(rule(concurrency="50%"), users) == [4.0, 55.0]


def test_refills_do_not_interrupt() -> None:
    turns = [(n * 10.0 + 0.005 * (n > 0), (n + 1) * 10.0) for n in range(5)]
    assert found(rule(concurrency="100%"), turns) == [0.0, 50.0]


def test_pauses_interrupt_and_the_longest_counts() -> None:
    spans = [(0.0, 10.0), (12.0, 30.0), (31.0, 35.0)]
    assert found(rule(concurrency="100%"), spans) == [12.0, 30.0]


def test_requests_count_by_their_starts() -> None:
    rows = fake_run.closed_loop(requests=2_000)
    columns, clocks = fake_run.columns_of(rows), ClockMap([])
    begin = int(rows["start_wall_ns"].min())
    last, end = int(rows["start_wall_ns"].max()), int(rows["end_wall_ns"].max())
    every = LoadWindow(begin_ns=begin, ramp_ns=0, stop_ns=0, sent_until_ns=last, end_ns=end)
    part = steady_part(columns, clocks, every, rule(skip_start="20%", skip_end="20%"), {})
    starts = (rows["start_wall_ns"] - begin) / S
    inside = (starts >= part.begin_s) & (starts < part.end_s)
    assert avg_of(part.metrics, "request_count") == inside.sum()
    length = part.end_s - part.begin_s
    assert avg_of(part.metrics, "request_throughput") == pytest.approx(inside.sum() / length)
    tokens = rows["output_tokens"][inside].sum()
    assert avg_of(part.metrics, "output_token_throughput") == pytest.approx(tokens / length)


def test_unconnected_requests_count_by_their_due_times() -> None:
    rows = fake_run.closed_loop(requests=2_000)
    begin, last = int(rows["due_wall_ns"].min()), int(rows["start_wall_ns"].max())
    away = rows["index"] % 4 == 0
    rows["outcome"][away], rows["error"][away] = Outcome.ERRORED, ErrorKind.CONNECT
    rows["start_wall_ns"][away] = 0
    every = LoadWindow(begin_ns=begin, ramp_ns=0, stop_ns=0, sent_until_ns=last, end_ns=last)
    steady_state = rule(skip_start="20%", skip_end="20%")
    part = steady_part(fake_run.columns_of(rows), ClockMap([]), every, steady_state, {})
    due = (rows["due_wall_ns"][away] - begin) / S
    failed = np.count_nonzero((due >= part.begin_s) & (due < part.end_s))
    assert failed > 100
    assert avg_of(part.metrics, "error_request_count") == failed


def test_every_metric_of_requests_has_a_steady_part() -> None:
    rows = fake_run.closed_loop(requests=2_000)
    config = fake_run.config(concurrency=20, requests=2_000, steady_state={"skip_start": "10%"})
    summary = fake_run.results(rows, config=config)
    steady = summary.steady_state
    assert steady is not None
    expected = {m.tag for m in METRICS if m.kind is Kind.RECORD and m.tag in summary.metrics}
    assert {tag for tag in steady.metrics if CATALOG[tag].kind is Kind.RECORD} == expected
    assert fake_run.results(rows).steady_state is None


def test_every_number_of_requests_has_a_steady_part() -> None:
    rows = fake_run.closed_loop(requests=2_000)
    load = {"concurrency": 20, "requests": 2_000, "steady_state": {"skip_start": "10%"}}
    goodput = {"goodput": {"request_latency": 250.0}}
    summary = fake_run.results(rows, config=fake_run.config(**load, slo=goodput))
    assert summary.steady_state is not None
    part = {tag: each.avg or 0.0 for tag, each in summary.steady_state.metrics.items()}
    assert 0 < part["good_request_count"] < part["request_count"]
    assert part["goodput"] == pytest.approx(part["good_request_count"] / part["benchmark_duration"])
    assert summary.scalars.keys() - part.keys() == {
        "concurrency_achievement",
        "lost_request_count",
        "max_concurrency",
        "retried_request_count",
        "steady_state_request_throughput",
        "unsent_request_count",
    }


def test_unsent_request_does_not_improve_steady_part() -> None:
    rows = fake_run.closed_loop(requests=500)
    config = fake_run.config(concurrency=20, requests=500, steady_state={"skip_start": "10%"})
    tag = "intended_request_latency"
    for unsent, has_tag in ((0, True), (5, False)):
        summary = fake_run.results(rows, config=config, unsent=unsent)
        assert tag in summary.metrics
        assert summary.steady_state is not None
        assert (tag in summary.steady_state.metrics) == has_tag
        assert "request_latency" in summary.steady_state.metrics


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({}, "needs either"),
        ({"skip_start": "10%", "concurrency": "90%"}, "needs either"),
        ({"skip_start": "60%", "skip_end": "40%"}, "leave out 100% of the load"),
    ],
)
def test_other_rules_are_refused(keys: dict[str, str], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        rule(**keys)
