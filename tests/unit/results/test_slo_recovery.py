"""When the SLO is met again, computed from the requests of a load."""

from typing import Any

import numpy as np
import pytest

from aiperf_svc.config.load_config import parse_config
from aiperf_svc.config.slo import Slo
from aiperf_svc.core.events.report import EventReport
from aiperf_svc.core.results.slo import first_token_limit_ms, limits_of
from aiperf_svc.core.results.summarise import summarise
from aiperf_svc.core.scaling.report import DesiredChange, Replica, ScalingReport, ScalingResult
from aiperf_svc.core.stats.load_window import PhaseTimes
from aiperf_svc.domain.errors import ConfigError
from tests.support import fake_run
from tests.support.small_configs import small_benchmark

LOAD = {"stages": [{"rate": 5, "duration": "20s"}, {"rate": 10, "duration": "100s"}]}
SECOND = 10**9


def scaled(slow_until_s: float, *events: dict[str, Any], **slo: Any) -> ScalingResult:
    """Return a load whose rate doubles after 20 s, with slow requests from then until a time."""
    columns = fake_run.closed_loop(requests=1_100)
    due_s = np.concatenate([np.arange(100) / 5, 20 + np.arange(1_000) / 10])
    shift = fake_run.START_NS + (due_s * SECOND).astype(np.int64) - columns["due_wall_ns"]
    is_slow = (due_s >= 20) & (due_s < slow_until_s)
    for name in columns.dtype.names or ():
        if name.endswith("wall_ns"):
            columns[name] += np.where(columns[name] != 0, shift, 0)
            if name in ("first_token_wall_ns", "second_token_wall_ns", "end_wall_ns"):
                columns[name] += np.where(is_slow, 3 * SECOND, 0)
    report = ScalingReport(
        replicas=(Replica(name="b", wall_ns={"created": fake_run.START_NS + 26 * SECOND}),),
        changes=(
            DesiredChange(
                at_wall_ns=fake_run.START_NS + 25 * SECOND, source="d", before=1, after=2
            ),
        ),
    )
    context = fake_run.context(
        columns,
        config=fake_run.config(**LOAD, slo=slo, events=events),
        profiling=PhaseTimes(
            start_wall_ns=fake_run.START_NS, stop_wall_ns=fake_run.START_NS + 120 * SECOND
        ),
        scaling=report,
        events=(
            EventReport(
                number=0,
                begin_wall_ns=fake_run.START_NS + 25 * SECOND,
                evidence="2 replicas",
                is_over=True,
            ),
        ),
    )
    found = summarise(fake_run.columns_of(columns), None, context).scaling
    assert found is not None
    return found


def test_slo_holds_again_when_requests_are_fast_again() -> None:
    found = scaled(52.0, goodput={"time_to_first_token": "1s"})
    (up,) = found.scale_ups
    assert (up.load_changed_s, up.decision_s) == (20.0, 5.0)
    assert up.recovery_s == pytest.approx(32.0, abs=1.0)
    assert "time_to_first_token 1s" in found.limit


def test_replicas_of_an_event_answer_no_load() -> None:
    scale = {"at": "25s", "do": "scale", "replicas": 2}
    (up,) = scaled(52.0, scale, goodput={"time_to_first_token": "1s"}).scale_ups
    assert (up.load_changed_s, up.decision_s) == (None, None)
    assert up.recovery_s == pytest.approx(27.0, abs=1.0)


def test_slo_missed_to_the_end_never_recovers() -> None:
    (up,) = scaled(115.0, goodput={"time_to_first_token": "1s"}).scale_ups
    assert (up.recovery_s, up.judged_s) == (None, 100.0)


def test_nothing_is_judged_without_a_limit() -> None:
    found = scaled(52.0)
    assert (found.scale_ups[0].recovery_s, found.limit) == (None, "")


def test_limits_of_objectives_count_without_a_goodput() -> None:
    objectives = [
        {"metric": "time_to_first_token", "stat": "p95", "max": "1s"},
        {"metric": "request_throughput", "min": 5},
    ]
    assert limits_of(Slo.model_validate({"objectives": objectives})) == {
        "time_to_first_token": "1s"
    }


@pytest.mark.parametrize("order", [1, -1])
def test_highest_limit_of_a_metric_counts(order: int) -> None:
    objectives = [
        {"metric": "time_to_first_token", "stat": "p50", "max": 200},
        {"metric": "time_to_first_token", "stat": "p99", "max": "1s"},
    ]
    found = Slo.model_validate({"objectives": objectives[::order]})
    assert limits_of(found) == {"time_to_first_token": "1s"}
    assert first_token_limit_ms(found) == 1000.0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"scaling": {"loaded": "("}}, "loaded"),
        ({"scaling": {"pods": {"namespace": ""}}}, "namespace"),
        (
            {"scaling": {}, "targets": [{"name": "a", "endpoint": {"url": "http://a"}},
                                        {"name": "b", "endpoint": {"url": "http://b"}}]},
            "watches one server",
        ),
    ],
)  # fmt: skip
def test_unwatchable_scaling_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(small_benchmark(**more), "")
