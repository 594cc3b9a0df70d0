"""The exact instructions of the schedule for each event."""

from collections.abc import Sequence

import pytest

from aiperf_svc.core.experiments.machine import (
    BeginTrial,
    EndExperiment,
    ExperimentMachine,
    Finding,
    PlannedTrials,
    TrialEnded,
)
from aiperf_svc.core.experiments.schedule import (
    AFTER_END,
    OUT_OF_TIME,
    STOPPED,
    AssignStart,
    CloseRound,
    EndSession,
    FindRoom,
    Instruction,
    Interrupted,
    LookAgain,
    OutOfTime,
    Part,
    PartAwaited,
    PartEnded,
    PartReady,
    RoomFailed,
    RoomFound,
    RoundClosed,
    Schedule,
    SkipPart,
    StartPart,
    WaitForRoom,
)
from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.protocol.run_states import RunState

ONE, TWO, THREE = Part(1), Part(2), Part(3)


def ended(schedule: Schedule, *parts: Part, **options: bool) -> list[Instruction]:
    """End the parts of a round and store its results. Return the next instructions."""
    for part in parts[:-1]:
        assert schedule.handle(PartEnded(part)) == []
    *found, last = schedule.handle(PartEnded(parts[-1], **options))
    assert last == CloseRound(parts[-1].round)
    return [*found, *schedule.handle(RoundClosed(parts[-1].round))]


def begun(
    rounds: list[int], members: Sequence[str] = ("",), *, stops_on_failure: bool = False
) -> Schedule:
    schedule = Schedule(rounds, members, stops_on_failure=stops_on_failure)
    schedule.begin()
    return schedule


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_rounds_begin_in_order_up_to_the_limit(limit: int) -> None:
    schedule, parts = Schedule([1, 2, 3], limit=limit), [ONE, TWO, THREE]
    assert schedule.begin() == [StartPart(part) for part in parts[:limit]]
    found = ended(schedule, ONE)
    assert found == [StartPart(part) for part in parts[limit : limit + 1]]
    assert ended(schedule, TWO) == [StartPart(THREE)] * (limit == 1)
    assert ended(schedule, THREE) == [EndSession()]


def test_rounds_of_a_shared_stack_keep_their_order() -> None:
    # The part that a killed runner left running comes first.
    schedule = Schedule([2, 1, 3])
    assert schedule.begin() == [StartPart(TWO)]
    assert ended(schedule, TWO) == [StartPart(ONE)]
    assert ended(schedule, ONE, has_failed=True) == [StartPart(THREE)]
    assert ended(schedule, THREE) == [EndSession()]


def test_round_closes_with_its_last_member() -> None:
    schedule = Schedule([1, 2], ["eu", "us"])
    eu, us = Part(1, "eu"), Part(1, "us")
    assert schedule.begin() == [StartPart(eu), StartPart(us)]
    assert ended(schedule, us, eu) == [StartPart(Part(2, "eu")), StartPart(Part(2, "us"))]


def test_interrupt_skips_waiting_rounds() -> None:
    schedule = begun([1, 2, 3])
    assert schedule.handle(Interrupted()) == [SkipPart(TWO, STOPPED), SkipPart(THREE, STOPPED)]
    assert ended(schedule, ONE) == [EndSession()]


def test_time_limit_skips_waiting_rounds() -> None:
    schedule = begun([1, 2])
    assert schedule.handle(OutOfTime()) == [SkipPart(TWO, OUT_OF_TIME)]


def test_failure_ends_session_only_if_configured() -> None:
    goes_on, stops = (begun([1, 2], stops_on_failure=each) for each in (False, True))
    assert ended(goes_on, ONE, has_failed=True) == [StartPart(TWO)]
    assert ended(stops, ONE, has_failed=True) == [SkipPart(TWO, AFTER_END), EndSession()]


def test_kept_stack_ends_the_session() -> None:
    schedule = begun([1, 2])
    assert ended(schedule, ONE, is_last=True) == [SkipPart(TWO, AFTER_END), EndSession()]


# --- room ----------------------------------------------------------------------------------------


def roomy() -> Schedule:
    """Return a schedule whose first round runs and that waits for room for the second and third."""
    schedule = Schedule([1, 2, 3], limit=9, asks_for_room=True)
    assert schedule.begin() == [StartPart(ONE), FindRoom((1,), (2, 3))]
    return schedule


def test_a_round_with_room_begins_before_one_without() -> None:
    schedule = roomy()
    found = schedule.handle(RoomFound(3))
    assert found == [StartPart(THREE), FindRoom((1, 3), (2,))]
    assert schedule.handle(RoomFound(None)) == [WaitForRoom()]
    assert schedule.handle(LookAgain()) == [FindRoom((1, 3), (2,))]
    assert ended(schedule, ONE) == []
    assert schedule.handle(RoomFound(2)) == [StartPart(TWO)]


def test_round_needs_no_room_if_none_runs() -> None:
    schedule = roomy()
    schedule.handle(RoomFound(None))
    assert ended(schedule, ONE) == [StartPart(TWO), FindRoom((2,), (3,))]


def test_room_found_after_an_interrupt_is_unused() -> None:
    schedule = roomy()
    schedule.handle(Interrupted())
    assert ended(schedule, ONE) == [EndSession()]
    assert schedule.handle(RoomFound(2)) == []


def test_error_while_finding_room_fails_waiting_rounds() -> None:
    schedule = roomy()
    expected = [SkipPart(part, "KeyError", has_failed=True) for part in (TWO, THREE)]
    assert schedule.handle(RoomFailed("KeyError")) == expected


# --- the common start ----------------------------------------------------------------------------


def starts(schedule: Schedule, *events: tuple[str, int, bool]) -> list[list[Instruction]]:
    """Return the instructions when parts of round 1 are ready for, or awaited from, a trial."""
    found = []
    for name, trial, is_ready in events:
        part, instructions = Part(1, name), []
        instructions += schedule.handle(PartAwaited(part, trial + is_ready))
        if is_ready:
            instructions += schedule.handle(PartReady(part, trial))
        found.append(instructions)
    return found


def test_no_part_starts_before_the_last_is_ready() -> None:
    schedule = begun([1], ["eu", "us", "asia"])
    assert starts(schedule, ("eu", 1, True), ("us", 1, False), ("us", 1, True)) == [[], [], []]
    assert schedule.handle(PartEnded(Part(1, "asia"))) == [AssignStart(1, 1)]


def test_each_trial_has_one_start() -> None:
    schedule = begun([1], ["eu", "us"])
    found = starts(
        schedule,
        ("eu", 1, True),
        ("us", 1, True),
        ("eu", 2, False),
        ("eu", 2, True),
        ("us", 2, True),
    )
    assert found == [[], [AssignStart(1, 1)], [], [], [AssignStart(1, 2)]]


def test_part_beyond_a_trial_is_not_waited_for() -> None:
    schedule = begun([1], ["eu", "us"])
    assert starts(schedule, ("eu", 1, True), ("us", 2, False)) == [[], [AssignStart(1, 1)]]


# --- a driver ------------------------------------------------------------------------------------


def driven(trials: Sequence[Trial], **options: int) -> tuple[Schedule, list[Trial]]:
    machine = ExperimentMachine(PlannedTrials(trials), on_failure="continue", **options)
    return Schedule([], ["eu", "us"], driver=machine), list(trials)


def over(schedule: Schedule, serial: int, state: RunState = RunState.DONE) -> list[Instruction]:
    for name in ("eu", "us"):
        schedule.handle(PartEnded(Part(serial, name)))
    finding = Finding("valid") if state is RunState.DONE else None
    trial = TrialEnded(serial, state, "", finding)
    return schedule.handle(RoundClosed(serial, trial))


def test_driver_names_a_trial_after_the_last_ended() -> None:
    schedule, (one, two) = driven([Trial(1, {}), Trial(2, {})])
    first, second = BeginTrial(1, one, 1), BeginTrial(2, two, 1)
    assert schedule.begin() == [StartPart(Part(1, n), first) for n in ("eu", "us")]
    assert over(schedule, 1) == [StartPart(Part(2, n), second) for n in ("eu", "us")]
    assert over(schedule, 2) == [EndSession(EndExperiment(RunState.DONE, ""))]


def test_failed_trial_is_run_again_by_all_members() -> None:
    schedule, (one,) = driven([Trial(1, {})], retries=1)
    schedule.begin()
    again = BeginTrial(2, one, 2)
    found = over(schedule, 1, RunState.FAILED)
    assert found == [StartPart(Part(2, n), again) for n in ("eu", "us")]


def test_an_interrupt_ends_the_trials_of_a_driver() -> None:
    schedule, _ = driven([Trial(1, {}), Trial(2, {})])
    schedule.begin()
    assert schedule.handle(Interrupted()) == []
    assert over(schedule, 1) == [EndSession(EndExperiment(RunState.CANCELLED, STOPPED))]
