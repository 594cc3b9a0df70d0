"""Which indexes run, shapes without results, and when an experiment in Jobs ends."""

import random

import pytest

from aiperf_svc.core.experiments.fan_out import (
    LOST,
    UNKNOWN,
    Cancelled,
    FailShape,
    FanOut,
    Finish,
    Instruction,
    JobFailed,
    JobSeen,
    JobShapes,
    OutOfTime,
    SetParallelism,
    ShapeEnded,
    ShapeTried,
    read_indexes,
)
from aiperf_svc.plan.fan_out import shares
from aiperf_svc.protocol.run_states import RunState

DONE = Finish(RunState.DONE, "")
JOBS = (JobShapes("a", (1, 3, 4)), JobShapes("b", (2,)))


def seen(
    name: str, completed: str = "", failed: str = "", *, pods: int = 0, problem: str = ""
) -> JobSeen:
    return JobSeen(name, read_indexes(completed), read_indexes(failed), pods, problem)


def begun(*, stops_on_failure: bool = False) -> FanOut:
    machine = FanOut(JOBS, limit=2, stops_on_failure=stops_on_failure)
    machine.begin()
    return machine


def test_indexes_of_a_status_are_numbers_and_ranges() -> None:
    assert read_indexes("") == frozenset()
    assert read_indexes("0,2-4,7") == {0, 2, 3, 4, 7}


@pytest.mark.parametrize(
    ("left", "limit", "wanted"),
    [
        ((50, 50), 10, (5, 5)),
        ((1, 50), 10, (1, 9)),
        ((5, 5, 5, 5, 5), 3, (1, 1, 1, 0, 0)),
        ((2, 0, 2), 10, (2, 0, 2)),
        ((3, 4), None, (3, 4)),
    ],
)
def test_a_limit_is_shared_equally(
    left: tuple[int, ...], limit: int | None, wanted: tuple[int, ...]
) -> None:
    names = [f"job-{number}" for number in range(len(left))]
    found = shares(dict(zip(names, left, strict=True)), limit)
    assert tuple(found.values()) == wanted


def test_share_never_shrinks_below_the_jobs_limit() -> None:
    """A smaller parallelism would end a pod during its measurement."""
    rng = random.Random(1)
    for _ in range(300):
        left = {str(job): rng.randrange(1, 9) for job in range(rng.randrange(1, 5))}
        limit = rng.randrange(1, 12)
        before = shares(left, limit)
        while any(left.values()):
            left[rng.choice([job for job, number in left.items() if number])] -= 1
            after = shares(left, limit)
            assert all(after[job] >= min(before[job], left[job]) for job in left)
            assert sum(after.values()) <= limit
            before = after


def test_every_job_begins_with_its_share() -> None:
    machine = FanOut(JOBS, limit=3, stops_on_failure=False)
    assert machine.begin() == [SetParallelism("a", 2), SetParallelism("b", 1)]


def test_finished_job_leaves_its_share_to_others() -> None:
    machine = begun()
    assert machine.handle(ShapeEnded(2, has_failed=False)) == []
    assert machine.handle(seen("b", completed="0")) == [
        SetParallelism("a", 2),
        SetParallelism("b", 0),
    ]


def test_experiment_ends_when_every_shape_has_an_outcome() -> None:
    machine = begun()
    for shape in (1, 2, 3):
        assert DONE not in machine.handle(ShapeEnded(shape, has_failed=shape == 2))
    assert machine.handle(ShapeEnded(4, has_failed=False))[-1] == DONE
    assert machine.handle(seen("a")) == []


def test_failed_index_fails_its_shape_with_a_reason() -> None:
    machine = begun()
    machine.handle(ShapeTried(3, "the server ended with exit code 1"))
    machine.handle(ShapeTried(3, "the server ended with exit code 2"))
    found = machine.handle(seen("a", failed="1"))
    assert found == [FailShape(3, "the server ended with exit code 2")]
    assert machine.handle(seen("a", failed="1-2")) == [FailShape(4, UNKNOWN)]


def test_missing_results_are_lost() -> None:
    assert begun().handle(seen("a", completed="0")) == [FailShape(1, LOST)]


def test_job_with_unstartable_pods_ends_alone() -> None:
    found = begun().handle(JobFailed("a", "no such image"))
    failed: list[Instruction] = [FailShape(shape, "no such image") for shape in (1, 3, 4)]
    assert found == [*failed, SetParallelism("a", 0)]


def test_failed_job_has_its_reason() -> None:
    found = begun().handle(seen("b", problem="its Job has failed: DeadlineExceeded"))
    assert found[0] == FailShape(2, "its Job has failed: DeadlineExceeded")


def test_failed_job_waits_for_its_pods() -> None:
    machine = begun()
    assert machine.handle(seen("a", pods=1, problem="deleted"))[0] == SetParallelism("a", 0)
    machine.handle(ShapeEnded(3, has_failed=False))
    found = machine.handle(seen("a", problem="deleted"))
    assert found == [FailShape(1, "deleted"), FailShape(4, "deleted")]


def test_cancelled_experiment_ends_when_its_pods_have_ended() -> None:
    machine = begun()
    machine.handle(seen("a", pods=1))
    machine.handle(seen("b", pods=1))
    assert machine.handle(Cancelled("by the user")) == [
        SetParallelism("a", 0),
        SetParallelism("b", 0),
    ]
    machine.handle(ShapeEnded(1, has_failed=False))
    assert machine.handle(seen("a", completed="0")) == []
    assert machine.handle(seen("b")) == [Finish(RunState.CANCELLED, "by the user")]


def test_timed_out_experiment_keeps_finished_trials() -> None:
    machine = begun()
    machine.handle(seen("a", pods=1))
    machine.handle(seen("b", pods=0))
    assert machine.handle(OutOfTime("too late")) == [SetParallelism("a", 0), SetParallelism("b", 0)]
    assert machine.is_ending
    machine.handle(ShapeEnded(1, has_failed=False))
    assert machine.handle(seen("a")) == [Finish(RunState.FAILED, "too late")]


def test_cancelled_experiment_has_no_failed_shape() -> None:
    machine = begun()
    machine.handle(seen("a", pods=1))
    machine.handle(Cancelled("by the user"))
    assert machine.handle(seen("a", failed="0")) == []


def test_first_failure_ends_all_jobs_on_stop() -> None:
    machine = begun(stops_on_failure=True)
    machine.handle(seen("a", pods=1))
    machine.handle(seen("b", pods=1))
    found = machine.handle(ShapeEnded(1, has_failed=True))
    assert found == [SetParallelism("a", 0), SetParallelism("b", 0)]
    machine.handle(seen("a"))
    (end,) = machine.handle(seen("b"))
    assert isinstance(end, Finish)
    assert end.state is RunState.FAILED
    assert "shape 1 failed" in end.reason
