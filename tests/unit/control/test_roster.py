"""Which members take part, which are lost, and which processor handles whose records."""

import sys
from collections import Counter
from collections.abc import Callable

import msgspec

from aiperf_svc.core.control.roster import CONTROL_SILENCE_NS, SILENCE_NS, ListeningClock, Roster
from aiperf_svc.protocol.messages.events import Heartbeat
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service

EXPECTED = {Service.WORKER: 3, Service.RECORD_PROCESSOR: 2}


def beat(name: str, *, epoch: int = 1) -> Heartbeat:
    service = Service.WORKER if name.startswith("worker") else Service.RECORD_PROCESSOR
    return Heartbeat(
        "run", name, epoch, service=service, seen_state=0, seen_roster=0, reached=RunState.PENDING
    )


def full_roster() -> Roster:
    roster = Roster(EXPECTED)
    for name in ("worker-10", "worker-2", "worker-1", "record-processor-1", "record-processor-0"):
        roster.handle_heartbeat(beat(name), 0)
    return roster


def processors(roster: Roster) -> dict[str, str]:
    return {m.id: m.processor for m in roster.members if m.service is Service.WORKER}


def test_ranks_follow_name_numbers_in_any_arrival_order() -> None:
    ranks = {m.id: m.rank for m in full_roster().members}
    assert ranks["worker-1"] == 0
    assert ranks["worker-2"] == 1
    assert ranks["worker-10"] == 2


def test_each_member_gets_its_peers() -> None:
    roster = Roster(EXPECTED | {Service.TIMING_MANAGER: 1})
    timing_manager = msgspec.structs.replace(beat("timing-manager"), service=Service.TIMING_MANAGER)
    roster.handle_heartbeat(timing_manager, 0)
    for member in full_roster().members:
        roster.handle_heartbeat(beat(member.id), 0)
    roster.freeze()
    around = {name: [m.id for m in members] for name, members in roster.around().items()}
    assert around == {
        "record-processor-0": ["record-processor-0", "worker-1", "worker-10"],
        "record-processor-1": ["record-processor-1", "worker-2"],
        "worker-1": ["worker-1", "record-processor-0"],
        "worker-2": ["worker-2", "record-processor-1"],
        "worker-10": ["worker-10", "record-processor-0"],
        "timing-manager": [m.id for m in roster.members],
    }


def test_processor_is_notified_of_gained_and_lost_workers() -> None:
    roster = full_roster()
    roster.freeze()
    alive = ("record-processor-1", "worker-1", "worker-2")
    for name in alive:
        roster.handle_heartbeat(beat(name), SILENCE_NS + 1)
    roster.lose_silent(SILENCE_NS + 1)
    around = roster.around()
    assert [m.id for m in around["record-processor-1"]][1:] == ["worker-1", "worker-2", "worker-10"]
    assert [m.lost for m in around["record-processor-1"]] == [False, False, False, True]


def test_missing_members_are_counted_by_service() -> None:
    roster = Roster(EXPECTED)
    roster.handle_heartbeat(beat("worker-0"), 0)
    assert roster.missing == ("record-processor (0 of 2)", "worker (1 of 3)")
    assert full_roster().missing == ()


def test_a_heartbeat_of_a_known_member_changes_nothing() -> None:
    roster = full_roster()
    number = roster.number
    assert not roster.handle_heartbeat(beat("worker-1"), 5)
    assert roster.number == number


def test_excess_instances_are_refused() -> None:
    roster = full_roster()
    assert not roster.handle_heartbeat(beat("worker-3"), 1)
    assert roster.refused == {"worker-3"}


def test_restarted_member_replaces_itself_before_the_freeze() -> None:
    roster = full_roster()
    assert roster.handle_heartbeat(beat("worker-1", epoch=2), 1)
    assert [m.epoch for m in roster.members if m.id == "worker-1"] == [2]


def test_restarted_member_stays_out_after_the_freeze() -> None:
    roster = full_roster()
    roster.freeze()
    assert not roster.handle_heartbeat(beat("worker-1", epoch=2), 1)
    assert roster.refused == {"worker-1"}
    roster.lose_silent(CONTROL_SILENCE_NS + 1)
    assert all(m.lost for m in roster.members)


def test_silent_members_are_lost_for_good() -> None:
    roster = full_roster()
    roster.freeze()
    for name in ("worker-1", "worker-2", "record-processor-0", "record-processor-1"):
        roster.handle_heartbeat(beat(name), SILENCE_NS)
    (lost,) = roster.lose_silent(SILENCE_NS + 1)
    assert lost.id == "worker-10"
    roster.handle_heartbeat(beat("worker-10"), SILENCE_NS + 2)
    assert [m.id for m in roster.members if m.lost] == ["worker-10"]


def test_silent_members_are_forgotten_before_the_freeze() -> None:
    roster = full_roster()
    assert roster.lose_silent(SILENCE_NS + 1) == {}
    assert roster.members == ()


def test_workers_are_dealt_to_processors_in_turn() -> None:
    assert processors(full_roster()) == {
        "worker-1": "record-processor-0",
        "worker-2": "record-processor-1",
        "worker-10": "record-processor-0",
    }


def test_only_workers_of_a_lost_processor_are_reassigned() -> None:
    roster = full_roster()
    roster.freeze()
    for name in ("worker-1", "worker-2", "worker-10", "record-processor-1"):
        roster.handle_heartbeat(beat(name), SILENCE_NS)
    roster.lose_silent(SILENCE_NS + 1)
    assert set(processors(roster).values()) == {"record-processor-1"}


def test_busy_singleton_is_not_lost() -> None:
    roster = Roster({Service.RECORDS_MANAGER: 1})
    manager = Heartbeat(
        "run",
        "records-manager",
        1,
        service=Service.RECORDS_MANAGER,
        seen_state=0,
        seen_roster=0,
        reached=RunState.PENDING,
    )
    roster.handle_heartbeat(manager, 0)
    roster.freeze()
    assert roster.lose_silent(SILENCE_NS + 1) == {}
    assert [m.id for m in roster.lose_silent(CONTROL_SILENCE_NS + 1)] == ["records-manager"]


def test_silent_processors_without_a_substitute_are_awaited() -> None:
    roster = full_roster()
    roster.freeze()
    for name in ("worker-1", "worker-2", "worker-10"):
        roster.handle_heartbeat(beat(name), SILENCE_NS)
    assert roster.lose_silent(SILENCE_NS + 1) == {}
    roster.handle_heartbeat(beat("record-processor-1"), SILENCE_NS + 2)
    assert [m.id for m in roster.lose_silent(SILENCE_NS + 2)] == ["record-processor-0"]
    for name in ("worker-1", "worker-2", "worker-10"):
        roster.handle_heartbeat(beat(name), SILENCE_NS + CONTROL_SILENCE_NS + 3)
    (lost,) = roster.lose_silent(SILENCE_NS + CONTROL_SILENCE_NS + 3)
    assert lost.id == "record-processor-1"


def test_registration_cost_is_independent_of_registered_members() -> None:
    """Counts calls instead of time: thousands of simultaneous joins must not cost quadratically."""
    calls = {}
    for count in (100, 400):
        roster = Roster({Service.WORKER: count})
        beats = [beat(f"worker-{number}") for number in range(count)]
        calls[count] = calls_of(
            lambda r=roster, b=beats: [r.handle_heartbeat(each, 0) for each in b]  # type: ignore[misc]
        )
        assert len(roster.members) == count
    assert calls[400] < 4.2 * calls[100]


def calls_of(action: Callable[[], object]) -> int:
    """Return the number of function calls of an action, including built-in functions."""
    counter = Counter[str]()
    sys.setprofile(lambda _frame, event, _arg: counter.update((event,)))
    try:
        action()
    finally:
        sys.setprofile(None)
    return counter["call"] + counter["c_call"]


def test_members_on_shared_cores_may_be_silent_longer() -> None:
    roster = Roster({Service.WORKER: 2}, workers_per_core=26.5)
    for name in ("worker-0", "worker-1"):
        roster.handle_heartbeat(beat(name), 0)
    roster.freeze()
    roster.handle_heartbeat(beat("worker-1"), 6 * SILENCE_NS)
    assert roster.lose_silent(6 * SILENCE_NS) == {}
    assert [m.id for m in roster.lose_silent(7 * SILENCE_NS)] == ["worker-0"]


SECOND_NS = 1_000_000_000


def test_paused_listener_counts_no_member_as_silent() -> None:
    clock, roster = ListeningClock(), full_roster()
    for second in range(3):
        clock.handle_own_heartbeat(second * SECOND_NS)
    for member in roster.members:
        roster.handle_heartbeat(beat(member.id), clock.ns)
    roster.freeze()
    clock.handle_own_heartbeat(60 * SECOND_NS)
    assert roster.lose_silent(clock.ns) == {}


def test_silence_counts_while_others_respond() -> None:
    clock, roster = ListeningClock(), full_roster()
    roster.freeze()
    for second in range(100, 106):
        clock.handle_own_heartbeat(second * SECOND_NS)
        for name in ("worker-1", "worker-10", "record-processor-0", "record-processor-1"):
            roster.handle_heartbeat(beat(name), clock.ns)
    assert [m.id for m in roster.lose_silent(clock.ns)] == ["worker-2"]
