"""The grants of a phase: how many, when, and to which workers."""

from typing import Any

import numpy as np
import pytest

from aiperf_svc.config.load_shapes import Arrival, Bursts, UserCentric
from aiperf_svc.core.load.phase_machine import (
    ANNOUNCE_NS,
    GRANT_EVERY_S,
    GrantCredits,
    PhaseStage,
    StopRequested,
    TimePassed,
    Wait,
)
from tests.support.phase_events import MS, NOW, S, at_rate, due, returned, settle, started

STEP = ((0, 10.0), (S, 10.0), (S, 1.0), (9 * S, 1.0))
BURSTS = Bursts.model_validate({"rate": 100, "length": "100ms", "every": "1s"})


def test_replay_grants_its_times_and_then_ends() -> None:
    times = [0, 240, 260, 900]
    schedule = due(*(time * MS for time in times))
    machine = started("a", "b", concurrency=0, schedule_ns=schedule, credits=4)
    start = NOW + ANNOUNCE_NS
    assert machine.handle(TimePassed(start)) == [
        GrantCredits("a", 0, 1, 2, due(start)),
        GrantCredits("b", 1, 1, 2, due(start + 240 * MS)),
        Wait(GRANT_EVERY_S),
    ]
    instructions = machine.handle(TimePassed(start + 850 * MS))
    assert instructions == [
        GrantCredits("a", 2, 1, 2, due(start + 260 * MS)),
        GrantCredits("b", 3, 1, 2, due(start + 900 * MS)),
        settle(2),
    ]
    machine.handle(returned("a", completed=2))
    machine.handle(returned("b", completed=2))
    machine.handle(TimePassed(start + S))
    report = machine.report()
    assert (report.granted, report.scheduled) == (4, 4)
    assert report.scheduled_rate == pytest.approx(3 / 0.9)


def test_stages_are_granted_at_their_planned_rates() -> None:
    points = ((0, 10.0), (S, 10.0), (S, 20.0), (2 * S, 20.0))
    arrival = Arrival(pattern="constant")
    machine = started("a", concurrency=0, rate_points=points, arrival=arrival, duration_ns=2 * S)
    first = machine.handle(TimePassed(machine.start_wall_ns + S))
    assert isinstance(first[0], GrantCredits)
    # 10 in the first second, and 5 of the next 250 ms.
    assert first[0].count == 15
    assert machine.report().scheduled == 30
    assert machine.report().scheduled_rate == pytest.approx(15)


@pytest.mark.parametrize(
    ("load", "scheduled", "rate"),
    [
        ({"rate_points": STEP, "duration_ns": 9 * S, "credits": 5}, 5, 10.0),
        ({"rate_points": STEP, "duration_ns": 9 * S, "credits": 10}, 10, 10.0),
        ({"rate_points": STEP, "duration_ns": 9 * S, "credits": 50}, 18, 2.0),
        ({"bursts": BURSTS, "request_rate": 10.0, "credits": 38}, 38, 19.0),
        ({"bursts": BURSTS, "credits": 20}, 20, 10.0),
        ({"bursts": BURSTS, "credits": 20, "duration_ns": 3 * S}, 20, 10.0),
        ({"bursts": BURSTS, "duration_ns": 2 * S}, 20, 10.0),
    ],
)
def test_changing_rate_is_planned_until_its_request_count(
    load: dict[str, Any], scheduled: int, rate: float
) -> None:
    report = started("a", concurrency=0, **load).report()
    assert (report.scheduled, report.scheduled_rate) == (scheduled, pytest.approx(rate))


def test_users_in_mid_conversation_get_the_remaining_turns() -> None:
    users = UserCentric(rate=100, users=4)  # a turn every 40 ms
    turns = np.array([5], dtype="<u2").tobytes()
    machine = started("a", "b", concurrency=0, user_centric=users, turns=turns, credits=9)
    start = machine.start_wall_ns
    granted = [g for g in machine.handle(TimePassed(start)) if isinstance(g, GrantCredits)]
    assert [(g.worker, g.first, g.count, g.last_turns) for g in granted] == [
        *(("a", 0, 1, 0), ("b", 1, 1, 1), ("a", 2, 1, 2), ("b", 3, 1, 3)),
        *(("a", 4, 2, 0), ("b", 5, 2, 0)),
    ]
    begins = [np.frombuffer(g.due_wall_ns, dtype="<i8") - start for g in granted]
    assert [int(at[0]) // MS for at in begins[:4]] == [0, 10, 20, 30]
    # The user with one turn left starts again 40 ms after it; the one with two starts after 80 ms.
    assert (begins[4] // MS).tolist() == [50, 150]
    assert (begins[5] // MS).tolist() == [100, 200]


def test_stopped_replay_was_planned_until_the_stop() -> None:
    schedule = due(*(time * S for time in range(100)))
    machine = started("a", concurrency=0, schedule_ns=schedule, credits=100, duration_ns=4 * S)
    machine.handle(TimePassed(machine.start_wall_ns))
    assert machine.report().scheduled == 4
    assert machine.report().scheduled_rate == 1.0
    machine.handle(StopRequested())
    machine.handle(TimePassed(machine.start_wall_ns + 2 * S))
    assert machine.report().scheduled == 2


def test_open_loop_grants_arrivals_ahead_in_turn() -> None:
    machine = at_rate(10, "a", "b", duration_ns=S // 2)
    start = NOW + ANNOUNCE_NS
    assert machine.handle(TimePassed(NOW)) == [Wait(GRANT_EVERY_S)]
    # Requests that are due within 250 ms are granted.
    assert machine.handle(TimePassed(start)) == [
        GrantCredits("a", 0, 2, 2, due(start, start + 200 * MS)),
        GrantCredits("b", 1, 1, 2, due(start + 100 * MS)),
        Wait(GRANT_EVERY_S),
    ]
    assert machine.handle(TimePassed(start + 50 * MS)) == [Wait(GRANT_EVERY_S)]
    # The horizon is now the stop, and the arrival at 500 ms is not before it.
    assert machine.handle(TimePassed(start + 400 * MS)) == [
        GrantCredits("b", 3, 1, 2, due(start + 300 * MS)),
        GrantCredits("a", 4, 1, 2, due(start + 400 * MS)),
        settle(2),
    ]
    assert machine.stage is PhaseStage.SETTLING


def test_open_loop_with_a_count_grants_no_more() -> None:
    machine = at_rate(1_000, "a", credits=3)
    start = NOW + ANNOUNCE_NS
    instructions = machine.handle(TimePassed(start))
    times = due(start, start + MS, start + 2 * MS)
    assert instructions == [GrantCredits("a", 0, 3, 1, times), settle(1)]


def test_only_the_last_conversation_is_cut_short() -> None:
    closed = started("a", "b", credits=2, last_turns=1)
    assert closed.handle(TimePassed(NOW)) == [
        GrantCredits("a", 0, 1),
        GrantCredits("b", 1, 1, last_turns=1),
        settle(2),
    ]
    opened = at_rate(1_000, "a", "b", credits=3, last_turns=2)
    grants = opened.handle(TimePassed(NOW + ANNOUNCE_NS))[:-1]
    assert [g.last_turns for g in grants if isinstance(g, GrantCredits)] == [2, 0]
