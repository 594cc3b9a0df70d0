"""The stages of a phase, event by event."""

import pytest

from aiperf_svc.core.control.control_intervals import grant_interval_s
from aiperf_svc.core.load.phase_machine import (
    ANNOUNCE_NS,
    CONNECTS_PER_S,
    LOOK_EVERY_S,
    NEAR_ANNOUNCE_NS,
    NEAR_ANNOUNCE_PER_WORKER_NS,
    AnnouncePhase,
    GrantCredits,
    PhaseRequested,
    PublishReport,
    TimePassed,
    Wait,
)
from aiperf_svc.protocol.messages.reports import PhaseReport
from tests.support.phase_events import NOW, P, S, machine_of, returned, settle, started


def refill(workers: int, at_most_s: float = LOOK_EVERY_S) -> Wait:
    return Wait(at_most_s, ends_on_news=True, then_s=grant_interval_s(workers))


def test_counted_closed_loop_ends_when_all_returned() -> None:
    machine = machine_of("a", "b", credits=3, concurrency=2)
    start = NOW + ANNOUNCE_NS + S // CONNECTS_PER_S
    instructions = machine.handle(PhaseRequested(NOW))
    assert instructions == [AnnouncePhase(("a", "b"), start, 0), PublishReport()]
    instructions = machine.handle(TimePassed(NOW + 1))
    assert instructions == [GrantCredits("a", 0, 1), GrantCredits("b", 1, 1), refill(2)]
    assert machine.handle(returned("a", completed=1)) == []
    instructions = machine.handle(TimePassed(start))
    assert instructions == [GrantCredits("a", 2, 1), settle(2)]
    machine.handle(returned("a", completed=2))
    machine.handle(returned("b", errored=1))
    assert machine.handle(TimePassed(start + S)) == [PublishReport()]
    assert machine.has_ended
    assert machine.report() == PhaseReport(P, start, granted=3)


def test_closed_loop_without_returns_waits_for_its_end() -> None:
    machine = machine_of("a", concurrency=1, duration_ns=S)
    machine.handle(PhaseRequested(NOW))
    stop = machine.stop_wall_ns
    granted, wait = machine.handle(TimePassed(NOW))
    assert isinstance(granted, GrantCredits)
    assert wait == refill(1)
    assert machine.handle(TimePassed(stop - S // 5)) == [refill(1)]
    assert machine.handle(TimePassed(stop - S // 50)) == [refill(1, 0.02)]
    assert machine.handle(TimePassed(stop - 1)) == [refill(1, 0.001)]
    assert machine.handle(TimePassed(stop)) == [settle(1)]


def test_a_phase_with_many_users_is_announced_earlier() -> None:
    machine = machine_of("a", "b", concurrency=3 * CONNECTS_PER_S)
    machine.handle(PhaseRequested(NOW))
    assert machine.start_wall_ns == NOW + ANNOUNCE_NS + 3 * S // 2


def test_announcement_delay_grows_with_the_number_of_workers() -> None:
    near = started("a", "b", concurrency=0, is_target_near=True)
    assert near.start_wall_ns == NOW + NEAR_ANNOUNCE_NS + 2 * NEAR_ANNOUNCE_PER_WORKER_NS
    many = started(*(f"worker-{n}" for n in range(99)), concurrency=0, is_target_near=True)
    assert many.start_wall_ns == NOW + ANNOUNCE_NS


def test_phase_starts_with_other_runs_unless_too_soon() -> None:
    for requested, start in ((NOW + 3 * S, NOW + 3 * S), (NOW + 1, NOW + ANNOUNCE_NS)):
        machine = machine_of("a", concurrency=0, duration_ns=S)
        instructions = machine.handle(PhaseRequested(NOW, requested))
        assert instructions == [AnnouncePhase(("a",), start, start + S), PublishReport()]


def test_event_in_the_wrong_stage_raises_with_history() -> None:
    with pytest.raises(AssertionError, match=r"in profiling: .*planned: TimePassed"):
        machine_of("a").handle(TimePassed(NOW))
    with pytest.raises(AssertionError, match=r"planned: PhaseRequested.*granting: PhaseRequested"):
        started("a").handle(PhaseRequested(NOW))
