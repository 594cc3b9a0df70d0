"""The clock of a user determines when its next turn is due, and stops while the turn waits."""

from typing import cast

from aiperf_svc.adapters.inference.entry_cache import Entry
from aiperf_svc.protocol.records import Flag
from aiperf_svc.services.sessions import Session

GAP = 100


def test_ready_turn_is_due_by_the_users_clock() -> None:
    session = Session(0, cast("Entry", None), 4, 0, 1_000)
    assert session.next_by_clock(1_020, GAP) == 1_100
    assert session.next_by_clock(1_200, GAP) == 1_200
    assert session.flags == 0


def test_late_turn_is_flagged_and_moves_the_clock() -> None:
    session = Session(0, cast("Entry", None), 4, int(Flag.CAPPED), 1_000)
    assert session.next_by_clock(1_250, GAP) == 1_250
    assert session.flags == Flag.CAPPED | Flag.BLOCKED
    assert session.next_by_clock(1_260, GAP) == 1_350
    assert session.flags == Flag.CAPPED
