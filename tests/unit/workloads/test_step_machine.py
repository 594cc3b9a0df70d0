"""The order of a run's steps."""

from collections.abc import Sequence
from random import Random

import pytest

from aiperf_svc.protocol.messages.steps import RankStatus, StepStage
from aiperf_svc.workloads.step_machine import (
    FINISH_NS,
    PREPARE_NS,
    REPEAT_NS,
    START_AHEAD_NS,
    Attempted,
    Instruction,
    OrderRank,
    RankLost,
    StatusReceived,
    StepMachine,
    StepsEnd,
    StopRequested,
    TimePassed,
)
from aiperf_svc.workloads.steps import Command, PlannedStep, Step

S = 10**9
PREPARE, RUN, FINISH = StepStage


def step(name: str, *ranks: int, measured: bool = True, group: int = 0) -> Step:
    return Step(
        name=name,
        group=group,
        commands=tuple(Command(rank=rank, argv=("tool",)) for rank in ranks or (0, 1)),
        is_measured=measured,
        timeout_ns=10 * S,
    )


def machine(*steps: Step, repetitions: int = 1, retries: int = 0) -> StepMachine:
    return StepMachine(steps, repetitions=repetitions, retries=retries)


def done(m: StepMachine, stage: StepStage, *ranks: int, problem: str = "") -> None:
    for rank in ranks:
        number = next(plan.number for plan in m.plans if rank in plan.step.ranks)
        status = RankStatus("run", "c", 1, step=number, stage=stage, problem=problem)
        assert m.handle(StatusReceived(rank, status)) == []


def orders(instructions: Sequence[Instruction]) -> list[tuple[int, StepStage, bool]]:
    return [
        (i.rank, i.stage, bool(i.abort_reason)) for i in instructions if isinstance(i, OrderRank)
    ]


def attempted(instructions: Sequence[Instruction]) -> list[Attempted]:
    return [i for i in instructions if isinstance(i, Attempted)]


def test_stage_waits_for_all_ranks() -> None:
    m = machine(step("a"))
    assert orders(m.handle(TimePassed(0))) == [(0, PREPARE, False), (1, PREPARE, False)]
    done(m, PREPARE, 0)
    assert m.handle(TimePassed(S // 2)) == []
    done(m, PREPARE, 1)
    run = m.handle(TimePassed(S))
    assert orders(run) == [(0, RUN, False), (1, RUN, False)]
    assert {i.due_wall_ns for i in run if isinstance(i, OrderRank)} == {S + START_AHEAD_NS}
    done(m, RUN, 1)
    assert m.handle(TimePassed(S + 1)) == []
    done(m, RUN, 0)
    assert orders(m.handle(TimePassed(2 * S))) == [(0, FINISH, False), (1, FINISH, False)]
    done(m, FINISH, 0, 1)
    (end,) = m.handle(TimePassed(3 * S))
    assert isinstance(end, Attempted)
    assert (end.problem, end.lost_ranks) == ("", ())
    assert m.end is StepsEnd.COMPLETE


def test_order_is_repeated_to_ranks_behind() -> None:
    m = machine(step("a"))
    m.handle(TimePassed(0))
    done(m, PREPARE, 0)
    assert m.handle(TimePassed(REPEAT_NS - 1)) == []
    assert orders(m.handle(TimePassed(REPEAT_NS))) == [(1, PREPARE, False)]


def test_a_status_of_an_earlier_step_changes_nothing() -> None:
    m = machine(step("a"), step("b"))
    run_whole_step(m, 0)
    assert m.plan is not None
    assert m.plan.number == 2
    late = RankStatus("run", "c", 1, step=1, stage=FINISH, problem="late")
    m.handle(StatusReceived(0, late))
    assert m.handle(TimePassed(9)) == []


def run_whole_step(m: StepMachine, now: int, problem: str = "") -> list[Instruction]:
    """Run the next step to its end. Return the last instructions, which include the orders of the
    following step."""
    m.handle(TimePassed(now))
    ranks = m.ranks
    done(m, PREPARE, *ranks)
    m.handle(TimePassed(now))
    done(m, RUN, *ranks, problem=problem)
    m.handle(TimePassed(now))
    done(m, FINISH, *ranks)
    return m.handle(TimePassed(now))


def plans(m: StepMachine) -> list[tuple[str, int, int]]:
    """Run everything without a fault. Return name, repetition and attempt of each step."""
    found = []
    while m.end is None:
        for each in attempted(run_whole_step(m, 0)):
            found.append((each.plan.step.name, each.plan.repetition, each.plan.attempt))
    return found


def test_preparing_steps_run_first_and_once() -> None:
    m = machine(step("a"), step("mesh", measured=False), step("b"), repetitions=2)
    assert plans(m) == [("mesh", 0, 1), ("a", 1, 1), ("b", 1, 1), ("a", 2, 1), ("b", 2, 1)]
    assert (m.ended, m.total, m.failures) == (5, 5, [])


def test_problem_ends_the_attempt_and_repeats_the_step() -> None:
    m = machine(step("a"), retries=1)
    m.handle(TimePassed(0))
    done(m, PREPARE, 0, 1)
    m.handle(TimePassed(0))
    done(m, RUN, 1, problem="rank 1: exit code 1")
    # The other rank's command is still running and must be stopped.
    assert orders(m.handle(TimePassed(0))) == [(0, FINISH, True), (1, FINISH, True)]
    done(m, FINISH, 0, 1)
    (end,) = attempted(m.handle(TimePassed(0)))
    assert end.problem == "rank 1: exit code 1"
    assert m.plan is not None
    assert (m.plan.attempt, m.plan.number, m.plan.step.name) == (2, 2, "a")
    assert orders(m.handle(TimePassed(REPEAT_NS))) == [(0, PREPARE, False), (1, PREPARE, False)]


def test_failed_step_is_not_repeated_others_continue() -> None:
    m = machine(step("a"), step("b"), repetitions=2)
    run_whole_step(m, 0, problem="rank 1: exit code 1")
    assert plans(m) == [("b", 1, 1), ("b", 2, 1)]
    assert m.failures == ["a: rank 1: exit code 1"]
    assert (m.end, m.ended) == (StepsEnd.COMPLETE, 4)


def test_failed_preparing_step_ends_the_run() -> None:
    m = machine(step("mesh", measured=False), step("a"))
    run_whole_step(m, 0, problem="rank 1: exit code 1")
    assert m.end is StepsEnd.PREPARATION_FAILED
    assert m.handle(TimePassed(99 * S)) == []


@pytest.mark.parametrize(
    ("reached", "limit_ns", "expected"),
    [
        ((), PREPARE_NS, "rank 1: not ready after 60 s"),
        ((PREPARE,), START_AHEAD_NS + 10 * S, "rank 1: still running after 10 s"),
    ],
)
def test_stage_timeout_ends_the_attempt(
    reached: tuple[StepStage, ...], limit_ns: int, expected: str
) -> None:
    m = machine(step("a"))
    m.handle(TimePassed(0))
    for stage in reached:
        done(m, stage, 0, 1)
        m.handle(TimePassed(0))
    done(m, m.stage, 0)
    assert (1, FINISH, True) not in orders(m.handle(TimePassed(limit_ns - 1)))
    assert (1, FINISH, True) in orders(m.handle(TimePassed(limit_ns)))
    done(m, FINISH, 0, 1)
    (end,) = attempted(m.handle(TimePassed(limit_ns)))
    assert end.problem == expected


def test_rank_without_output_ends_the_run() -> None:
    m = machine(step("a"), step("b"))
    m.handle(TimePassed(0))
    done(m, PREPARE, 0, 1)
    m.handle(TimePassed(0))
    done(m, RUN, 0, 1)
    m.handle(TimePassed(0))
    done(m, FINISH, 0)
    (end,) = attempted(m.handle(TimePassed(FINISH_NS)))
    assert end.lost_ranks == (1,)
    assert end.problem == "rank 1: its output did not come after 120 s"
    assert m.end is StepsEnd.RANK_LOST


def test_lost_rank_ends_the_steps_that_need_it() -> None:
    m = machine(step("a", 0, 1), step("b", 0, 1))
    m.handle(TimePassed(0))
    done(m, PREPARE, 0, 1)
    m.handle(TimePassed(0))
    m.handle(RankLost(1))
    assert orders(m.handle(TimePassed(1))) == [(0, FINISH, True)]
    done(m, FINISH, 0)
    (end,) = attempted(m.handle(TimePassed(2)))
    assert (end.problem, end.lost_ranks) == ("rank 1 was lost", (1,))
    assert m.end is StepsEnd.RANK_LOST


def test_stop_ends_the_current_step_only() -> None:
    m = machine(step("a"), step("b"), retries=3)
    m.handle(TimePassed(0))
    done(m, PREPARE, 0, 1)
    m.handle(TimePassed(0))
    m.handle(StopRequested())
    assert orders(m.handle(TimePassed(1))) == [(0, FINISH, True), (1, FINISH, True)]
    done(m, FINISH, 0, 1)
    (end,) = attempted(m.handle(TimePassed(2)))
    assert end.problem == "stopped"
    assert m.end is StepsEnd.STOPPED


def test_a_stop_before_the_first_step_starts_nothing() -> None:
    m = machine(step("a"))
    m.handle(StopRequested())
    assert m.handle(TimePassed(0)) == []
    assert m.end is StepsEnd.STOPPED


def test_steps_of_group_start_at_one_time() -> None:
    m = machine(step("a", 0, 1, group=1), step("b", 2, 3, group=1), step("c", 0, 2, group=2))
    assert [rank for rank, _, _ in orders(m.handle(TimePassed(0)))] == [0, 1, 2, 3]
    done(m, PREPARE, 0, 1, 2)
    assert m.handle(TimePassed(1)) == []
    done(m, PREPARE, 3)
    run = [i for i in m.handle(TimePassed(S)) if isinstance(i, OrderRank)]
    assert [(i.rank, i.stage, i.due_wall_ns) for i in run] == [
        (rank, RUN, S + START_AHEAD_NS) for rank in range(4)
    ]
    done(m, RUN, 2, 3)
    assert orders(m.handle(TimePassed(2 * S))) == [
        (0, RUN, False), (1, RUN, False), (2, FINISH, False), (3, FINISH, False)
    ]  # fmt: skip
    done(m, FINISH, 2, 3)
    (end,) = attempted(m.handle(TimePassed(2 * S + 1)))
    assert end.plan.step.name == "b"
    done(m, RUN, 0, 1)
    m.handle(TimePassed(2 * S + 2))
    done(m, FINISH, 0, 1)
    assert [rank for rank, _, _ in orders(m.handle(TimePassed(2 * S + 3)))] == [0, 2]


def test_failed_step_does_not_stop_its_group() -> None:
    m = machine(step("a", 0, 1, group=1), step("b", 2, 3, group=1), retries=1)
    m.handle(TimePassed(0))
    done(m, PREPARE, 0, problem="port taken")
    done(m, PREPARE, 2, 3)
    assert orders(m.handle(TimePassed(0))) == [
        (0, FINISH, True), (1, FINISH, True), (2, RUN, False), (3, RUN, False)
    ]  # fmt: skip
    done(m, FINISH, 0, 1)
    (end,) = attempted(m.handle(TimePassed(0)))
    assert end.problem == "port taken"
    done(m, RUN, 2, 3)
    m.handle(TimePassed(0))
    done(m, FINISH, 2, 3)
    assert [each.plan.step.name for each in attempted(m.handle(TimePassed(0)))] == ["b"]
    assert [(plan.step.name, plan.attempt) for plan in m.plans] == [("a", 2)]


def test_failed_preparation_leaves_out_steps_of_its_ranks() -> None:
    m = machine(
        step("write 0", 0, measured=False, group=1),
        step("write 1", 1, measured=False, group=1),
        step("read 0", 0, group=2),
        step("read 1", 1, group=2),
    )
    m.handle(TimePassed(0))
    done(m, PREPARE, 0, 1)
    m.handle(TimePassed(0))
    done(m, RUN, 0, problem="disk full")
    done(m, RUN, 1)
    m.handle(TimePassed(0))
    done(m, FINISH, 0, 1)
    assert [rank for rank, _, _ in orders(m.handle(TimePassed(0)))] == [1]
    assert m.failures == ["write 0: disk full", "read 0: the step that prepares its ranks failed"]
    assert (m.end, m.ended, m.total) == (None, 3, 4)


def test_group_steps_sharing_a_rank_are_refused() -> None:
    with pytest.raises(ValueError, match="step 'b'"):
        machine(step("a", 0, 1, group=1), step("b", 1, 2, group=1))


@pytest.mark.parametrize("are_grouped", [False, True])
def test_random_events_end_every_attempt_exactly_once(are_grouped: bool) -> None:
    for seed in range(300):
        random = Random(seed)
        steps = [step(f"s{n}", *range(3), measured=n > 0) for n in range(4)]
        if are_grouped:
            steps = [step(f"s{n}", n % 3, measured=n > 2, group=1 + n // 3) for n in range(9)]
        m = machine(*steps, repetitions=2, retries=1)
        begun: list[PlannedStep] = []
        ended: list[int] = []
        now = 0
        for _ in range(400):
            now += random.choice((0, S // 3, 5 * S))
            for each in m.handle(TimePassed(now)):
                if isinstance(each, OrderRank) and each.plan not in begun:
                    begun.append(each.plan)
                if isinstance(each, Attempted):
                    ended.append(each.plan.number)
            if m.end is not None:
                break
            match random.randrange(40):
                case 0:
                    m.handle(RankLost(random.randrange(3)))
                case 1:
                    m.handle(StopRequested())
                case n if m.plan is not None and m.ranks:
                    problem = "failed" if n == 2 else ""
                    done(m, m.stage, random.choice(m.ranks), problem=problem)
        assert m.end is not None, seed
        assert sorted(ended) == [plan.number for plan in begun], seed
