"""A closed loop is judged by the slots that it kept full. The drain at its end does not count."""

import numpy as np
import pytest

from aiperf_svc.core.stats import concurrency as stats
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.core.stats.concurrency import ClosedLoop, SlotUse, slot_use
from aiperf_svc.core.stats.totals import add_up
from aiperf_svc.domain.outcomes import Outcome
from aiperf_svc.protocol.records import Flag, Rows
from tests.support import fake_run


def use(
    rows: Rows,
    *,
    concurrency: int = 1,
    workers: int = 1,
    begin_ms: float = 0,
    stop_ms: float | None = None,
    longest_pause_ms: float = 0,
    prefill: int | None = None,
    begun: int = 0,
) -> SlotUse:
    phase, clocks = PhaseRows(fake_run.columns_of(rows)), ClockMap()
    loop = ClosedLoop(
        concurrency=concurrency,
        prefill_concurrency=prefill,
        worker_count=workers,
        begin_ns=fake_run.START_NS + round(begin_ms * fake_run.MS),
        stop_ns=0 if stop_ms is None else fake_run.START_NS + round(stop_ms * fake_run.MS),
        longest_pause_ns=round(longest_pause_ms * fake_run.MS),
        begun=begun,
    )
    found = slot_use(phase, add_up(phase, clocks), clocks, loop)
    assert found is not None
    return found


def a_request(
    start_ms: float, end_ms: float, *, due_ms: float | None = None, **columns: int
) -> Rows:
    return fake_run.request(
        start_ms=start_ms, due_ms=due_ms, ttft_ms=end_ms - start_ms, tokens=1, gap_ms=0, **columns
    )


LAST_TURN = int(Flag.STREAMED | Flag.LAST_TURN)


def test_gaps_between_requests_are_lost_slot_time() -> None:
    rows = np.concatenate([a_request(0, 40), a_request(50, 90), a_request(100, 140)])
    assert use(rows).ratio == pytest.approx(0.8)  # 80 of the 100 ms until the last start
    assert use(rows, stop_ms=140).ratio == pytest.approx(120 / 140)


def test_drain_after_the_last_start_does_not_count() -> None:
    # Two users. One has nothing left to send while the other's last response is still running.
    rows = np.concatenate([a_request(0, 100), a_request(0, 10), a_request(10, 50)])
    rows = np.concatenate([rows, a_request(50, 500)])
    assert use(rows, concurrency=2).ratio == pytest.approx(1.0)


def test_each_worker_has_its_own_window() -> None:
    # Worker 1 runs out of credits at 50 ms and is idle afterwards. Worker 0 continues to 100 ms.
    mine = np.concatenate([a_request(0, 100), a_request(100, 150)])
    other = np.concatenate([a_request(0, 50, worker=1), a_request(50, 60, worker=1)])
    assert use(np.concatenate([mine, other]), concurrency=2, workers=2).ratio == pytest.approx(1.0)


def test_worker_without_requests_has_its_slots() -> None:
    rows = np.concatenate([a_request(0, 100), a_request(100, 150)])
    assert use(rows, concurrency=2, workers=2).ratio == pytest.approx(0.5)


def test_connecting_holds_the_slot() -> None:
    rows = np.concatenate([a_request(0, 50, connect_ns=10_000_000), a_request(60, 90)])
    assert use(rows).ratio == pytest.approx(50 / 60)


def test_the_ramp_does_not_count() -> None:
    rows = np.concatenate([a_request(50, 100), a_request(100, 150)])
    assert use(rows, begin_ms=50).ratio == pytest.approx(1.0)
    assert use(rows).ratio == pytest.approx(0.5)


def test_first_starts_are_no_lost_slot_time() -> None:
    # Two users of a short run whose first requests are sent 4 and 6 ms after the phase's start.
    rows = np.concatenate(
        [a_request(4 + n, 104 + n) for n in (0, 100, 200)]
        + [a_request(6 + n, 106 + n) for n in (0, 100, 200)]
    )
    assert use(rows, concurrency=2).ratio > 0.99
    assert use(rows, concurrency=2, stop_ms=306).ratio > 0.99
    assert use(rows, concurrency=2, stop_ms=306, prefill=2).ratio > 0.99


def test_late_starting_user_is_lost_slot_time() -> None:
    rows = np.concatenate([a_request(1, 500), a_request(50, 500)])
    assert use(rows, concurrency=2, stop_ms=500).ratio == pytest.approx(949 / 1000)


def test_starts_during_the_ramp_do_not_count() -> None:
    rows = np.concatenate([a_request(0, 105), a_request(110, 200)])
    assert use(rows, begin_ms=100, stop_ms=200).ratio == pytest.approx(0.95)


def test_think_time_holds_the_slot() -> None:
    first = a_request(0, 40, index=0, turn=0)
    second = a_request(90, 100, index=0, turn=1, flags=LAST_TURN)
    following = a_request(100, 120, index=1, turn=0, flags=LAST_TURN)
    assert use(np.concatenate([first, second, following])).ratio == pytest.approx(1.0)


def test_a_late_turn_is_lost_slot_time() -> None:
    # Due after 10 ms of think time, and sent 40 ms later by a stalled client.
    first = a_request(0, 40, index=0, turn=0)
    second = a_request(90, 100, due_ms=50, index=0, turn=1, flags=LAST_TURN)
    rows = np.concatenate([first, second])
    assert use(rows, stop_ms=100).ratio == pytest.approx(0.6)
    assert use(rows, begin_ms=60, stop_ms=100).ratio == pytest.approx(0.25)
    assert use(rows, stop_ms=70).ratio == pytest.approx(50 / 70)


def test_conversation_beginning_with_pause_holds_its_slot() -> None:
    rows = np.concatenate([a_request(60, 80, flags=LAST_TURN), a_request(80, 100, index=1)])
    assert use(rows, stop_ms=100, longest_pause_ms=1).ratio == pytest.approx(0.4)
    assert use(rows, stop_ms=100, longest_pause_ms=1, begun=1).ratio == pytest.approx(1.0)


def test_think_time_at_the_stop_holds_the_slot() -> None:
    # Think times of 50 ms. The stop is 45 ms after the last response.
    first = a_request(0, 10, index=0, turn=0)
    second = a_request(60, 70, index=0, turn=1)
    rows = np.concatenate([first, second])
    assert use(rows, stop_ms=115, longest_pause_ms=50).ratio == pytest.approx(1.0)
    # No think time is that long, so a turn was due and not sent.
    assert use(rows, stop_ms=150, longest_pause_ms=50).ratio == pytest.approx(120 / 150)


def test_think_time_beyond_run_holds_slot() -> None:
    rows = a_request(0, 10)
    assert use(rows, stop_ms=100, longest_pause_ms=1000).ratio == pytest.approx(1.0)
    assert use(rows, stop_ms=100, longest_pause_ms=1000, prefill=1).ratio == pytest.approx(1.0)


def test_drain_after_the_last_conversation_does_not_count() -> None:
    # Two users and three conversations. One user has nothing left while the other takes its turns.
    others = [
        a_request(0, 40, index=0, flags=LAST_TURN),
        a_request(40, 50, index=2, flags=LAST_TURN),
    ]
    long = [a_request(n * 50, n * 50 + 50, index=1, turn=n) for n in range(10)]
    rows = np.concatenate([*others, *long])
    assert use(rows, concurrency=2).ratio == pytest.approx(1.0)


@pytest.mark.parametrize(
    "end", [{"flags": LAST_TURN}, {"outcome": Outcome.ERRORED}], ids=["last", "failed"]
)
def test_ended_conversation_has_no_think_time(end: dict[str, int]) -> None:
    first = a_request(0, 10, index=0, turn=0)
    second = a_request(60, 70, index=0, turn=1, **end)
    assert use(np.concatenate([first, second]), stop_ms=140).ratio == pytest.approx(0.5)


# --- a limit on requests in prefill --------------------------------------------------------------


def a_prefill(start_ms: float, first_ms: float, end_ms: float, **columns: int) -> Rows:
    return fake_run.request(
        start_ms=start_ms,
        ttft_ms=first_ms - start_ms,
        tokens=2,
        gap_ms=end_ms - first_ms,
        **columns,
    )


def test_users_that_wait_for_a_slot_lose_nothing() -> None:
    # Four users, one slot. Each prefill begins with the previous one's first token.
    rows = np.concatenate([a_prefill(n * 10, n * 10 + 10, n * 10 + 30) for n in range(20)])
    assert use(rows, concurrency=4, prefill=1, stop_ms=200).ratio == pytest.approx(1.0)
    assert use(rows, concurrency=4, prefill=1).ratio == pytest.approx(1.0)


def test_free_slot_counts_unused_only_while_users_wait() -> None:
    rows = np.concatenate([a_prefill(0, 10, 100), a_prefill(10, 20, 100)])
    # Both users read their responses, so no user waits for the slot.
    assert use(rows, concurrency=2, prefill=1, stop_ms=100).ratio == pytest.approx(1.0)
    assert use(rows, concurrency=3, prefill=1, stop_ms=100).ratio == pytest.approx(0.2)
    # While the third user waits, one of two slots is free for 10 ms each, and both for 80 ms.
    assert use(rows, concurrency=3, prefill=2, stop_ms=100).ratio == pytest.approx(0.5)


def test_stalled_client_leaves_prefill_slots_unused() -> None:
    before = [a_prefill(n * 10, n * 10 + 10, n * 10 + 30) for n in range(10)]
    after = [a_prefill(n * 10, n * 10 + 10, n * 10 + 30) for n in range(15, 25)]
    rows = np.concatenate(before + after)
    # From 100 ms, when the last first token arrived, to 150 ms.
    assert use(rows, concurrency=4, prefill=1, stop_ms=250).ratio == pytest.approx(0.8)


def test_each_worker_has_its_own_prefill_slots() -> None:
    rows = np.concatenate(
        [a_prefill(n * 10, n * 10 + 10, n * 10 + 10, worker=0) for n in range(10)]
    )
    both = use(rows, concurrency=4, prefill=2, workers=2, stop_ms=100)
    assert both.ratio == pytest.approx(0.5)


def test_prefill_slot_is_held_to_end_without_token() -> None:
    row = a_prefill(0, 10, 50)
    row["first_token_wall_ns"] = 0
    assert use(row, concurrency=2, prefill=1, stop_ms=100).ratio == pytest.approx(0.5)


def test_only_late_users_wait_for_a_prefill_slot() -> None:
    first = a_prefill(0, 10, 20, index=0, turn=0)
    second = a_prefill(70, 80, 90, due_ms=60, index=0, turn=1, flags=LAST_TURN)
    rows = np.concatenate([first, second])
    # The turn is sent 10 ms after its due time. From 90 ms on the user is free.
    assert use(rows, prefill=1, stop_ms=90).ratio == pytest.approx(80 / 90)
    assert use(rows, prefill=1, stop_ms=100).ratio == pytest.approx(0.8)
    assert use(first, prefill=1, stop_ms=60).ratio == pytest.approx(20 / 60)


def test_prefill_slots_are_counted_the_same_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    rows, now = [], 0.0
    for _ in range(200):
        now += float(random.uniform(5, 15))
        rows.append(a_prefill(now, now + 5, now + float(random.uniform(10, 60))))
    joined = np.concatenate(rows)
    whole = use(joined, concurrency=4, prefill=2, stop_ms=now)
    monkeypatch.setattr(stats, "_MERGED_STARTS", 7)
    pieces = use(joined, concurrency=4, prefill=2, stop_ms=now)
    assert pieces.used_s == pytest.approx(whole.used_s)
    assert whole.ratio < 1
