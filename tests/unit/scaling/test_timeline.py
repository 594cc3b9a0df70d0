"""Which change of the load caused which decision, and its result."""

from typing import Any

import pytest

from aiperf_svc.config.load import Load
from aiperf_svc.core.scaling.report import DesiredChange, Replica, ScalingReport, ScalingResult
from aiperf_svc.core.scaling.timeline import (
    FollowedLoad,
    LoadChange,
    load_changes,
    scaling_of,
    scaling_scalars,
)

BEGIN_S = 1_000
STEP = (LoadChange(0.0, True), LoadChange(60.0, True), LoadChange(180.0, False))


def at(second: float) -> int:
    return round((BEGIN_S + second) * 1e9)


def change(second: float, before: int, after: int, source: str = "Deployment llm") -> DesiredChange:
    return DesiredChange(at_wall_ns=at(second), source=source, before=before, after=after)


def replica(name: str, *, gpus: int = 1, gone: float = 0, **moments: float) -> Replica:
    return at_moments(name, moments, gpus=gpus, gone=gone)


def at_moments(name: str, moments: dict[str, float], *, gpus: int = 1, gone: float = 0) -> Replica:
    wall_ns = {moment: at(second) for moment, second in moments.items()}
    return Replica(name=name, gpus=gpus, wall_ns=wall_ns, gone_wall_ns=at(gone) if gone else 0)


def there(name: str) -> Replica:
    return Replica(name=name, was_there=True, wall_ns={"created": at(-50), "ready": at(-50)})


def coming(name: str, created: float, **more: float) -> Replica:
    defaults = {
        "created": created, "scheduled": created + 1, "pulled": created + 4,
        "running": created + 5, "loaded": created + 20, "ready": created + 22,
        "first_token": created + 24,
    }  # fmt: skip
    return at_moments(name, defaults | more)


def result(
    decisions: tuple[DesiredChange, ...], replicas: tuple[Replica, ...], **load: Any
) -> ScalingResult:
    defaults = {"begin_ns": at(0), "changes": STEP, "end_s": 240.0, **load}
    return scaling_of(
        ScalingReport(changes=decisions, replicas=replicas),
        FollowedLoad(**defaults),
        lambda begin_s, end_s: begin_s + 45 if end_s - begin_s > 50 else None,
        limit="p",
    )


def test_scale_up_times_follow_from_recorded_moments() -> None:
    replicas = there("a"), coming("b", 70.5), coming("c", 71.0)
    (up,) = result((change(70, 1, 3),), replicas).scale_ups
    assert (up.before, up.after, up.replicas) == (1, 3, ("b", "c"))
    assert (up.load_changed_s, up.decision_s) == (60.0, 10.0)
    assert (up.scale_up_s, up.use_s) == (23.0, 2.0)
    assert (up.recovery_s, up.judged_s) == (45.0, 120.0)


@pytest.mark.parametrize(("since_s", "not_watched"), [(-30, ()), (4, ()), (70, "70 s")])
def test_start_before_the_watch_is_reported(since_s: int, not_watched: Any) -> None:
    report = ScalingReport(since_wall_ns=at(since_s))
    load = FollowedLoad(begin_ns=at(0), changes=STEP, end_s=240.0)
    found = scaling_of(report, load, lambda *_: None, limit="").not_watched
    assert found == ((f"the first {not_watched} of the load",) if not_watched else ())


def test_replicas_belong_to_the_decision_before_them() -> None:
    changes = change(70, 1, 2), change(100, 2, 4)
    replicas = coming("b", 69.0), coming("c", 101.0), coming("d", 102.0), coming("e", 130.0)
    first, second = result(changes, replicas).scale_ups
    assert first.replicas == ("b",)
    assert second.replicas == ("c", "d"), "e replaces a pod, and no decision asked for it"


def test_scale_up_with_missing_replicas_is_unreached() -> None:
    (up,) = result((change(70, 1, 3),), (coming("b", 70.5),)).scale_ups
    assert (up.scale_up_s, up.use_s) == (None, None)


def test_replica_without_first_token_is_not_useful() -> None:
    late = replica("b", created=71, scheduled=72, ready=90)
    (up,) = result((change(70, 1, 2),), (late,)).scale_ups
    assert (up.scale_up_s, up.use_s) == (20.0, None)


def test_autoscaler_and_workload_are_one_decision() -> None:
    hpa = change(71, 1, 2, "HorizontalPodAutoscaler hpa")
    hpa.reason = "cpu above target"
    (up,) = result((hpa, change(70, 1, 2)), (coming("b", 72),)).scale_ups
    assert up.source == "Deployment llm, HorizontalPodAutoscaler hpa"
    assert (up.desired_s, up.reason) == (70.0, "cpu above target")


def test_decision_of_an_event_answers_no_load() -> None:
    (up,) = result((change(70, 1, 2),), (coming("b", 72),), requested_s=(69.5,)).scale_ups
    assert (up.load_changed_s, up.decision_s) == (None, None)
    assert up.recovery_s == 45.0


def test_slo_is_judged_until_the_next_change() -> None:
    changes = (LoadChange(0.0, True), LoadChange(60.0, True), LoadChange(100.0, True))
    (up,) = result((change(70, 1, 2),), (coming("b", 72),), changes=changes).scale_ups
    assert (up.recovery_s, up.judged_s) == (None, 40.0)


def test_idle_gpu_time_ends_with_first_token() -> None:
    replicas = (
        coming("b", 70, first_token=100),
        replica("c", gpus=8, created=80, scheduled=81, gone=91),
        replica("d", gpus=2, created=200, scheduled=210),
        replica("e", created=200),
    )
    found = result((), replicas)
    assert [each.idle_s for each in found.replicas] == [29.0, 10.0, 30.0, None]
    assert found.idle_gpu_s == 29 + 80 + 60


def test_curves_begin_with_the_load() -> None:
    replicas = there("a"), coming("b", 70), coming("early", -30)
    down = change(200, 2, 1)
    found = result((change(70, 1, 2), down), replicas)
    assert found.desired == ((0.0, 1), (70.0, 2), (200.0, 1))
    assert found.ready == ((0.0, 2), (92.0, 3))
    assert [each.name for each in found.replicas] == ["b"]
    assert len(found.scale_ups) == 1


def test_initial_replica_counts_once_ready() -> None:
    late = Replica(name="b", was_there=True, wall_ns={"created": at(-50), "ready": at(30)})
    assert result((), (there("a"), late)).ready == ((0.0, 1), (30.0, 2))


@pytest.mark.parametrize(
    ("load", "changes"),
    [
        ({"concurrency": 4, "duration": "60s"}, [(0.0, True)]),
        (
            {"stages": [{"rate": r, "duration": "30s"} for r in (2, 8, 8, 2)]},
            [(0.0, True), (30.0, True), (90.0, False)],
        ),
        (
            {
                "rate_series": [
                    {"at": f"{at}s", "rate": r} for at, r in ((0, 2), (20, 2), (40, 9), (60, 9))
                ]
            },
            [(0.0, True), (20.0, True)],
        ),
        (
            {
                "request_rate": 2,
                "duration": "100s",
                "bursts": {"rate": 9, "length": "10s", "every": "40s"},
            },
            [(0.0, True), (30.0, True), (40.0, False), (70.0, True), (80.0, False)],
        ),
    ],
    ids=["constant", "stages", "series", "bursts"],
)
def test_load_changes_where_its_schedule_does(
    load: dict[str, Any], changes: list[tuple[float, bool]]
) -> None:
    expected = tuple(LoadChange(*each) for each in changes)
    assert load_changes(Load.model_validate(load), 100.0) == expected


def test_metrics_are_the_longest_times() -> None:
    changes = change(70, 1, 2), change(100, 2, 3)
    found = result(changes, (coming("b", 71), coming("c", 130)))
    assert scaling_scalars(found) == {
        "scale_decision_time": 40.0,
        "scale_up_time": 52.0,
        "scale_use_time": 2.0,
        "scale_recovery_time": 45.0,
        "idle_gpu_time": 46.0,
    }


def test_unreached_increase_has_no_metric() -> None:
    changes = change(70, 1, 2), change(100, 2, 4)
    found = scaling_scalars(result(changes, (coming("b", 71), coming("c", 130))))
    assert "scale_up_time" not in found
    assert found["scale_decision_time"] == 40.0
