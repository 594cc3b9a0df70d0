"""The counters of one process: rows, limits and reset."""

import json
import random
from array import array

from aiperf_svc.mock_server.accounts import Account, RequestRows, RowOutcome, max_overlap


def _rows(rows: RequestRows) -> list[dict[str, object]]:
    return [json.loads(row) for row in rows.dumps(0)]


def test_row_holds_the_times_of_its_own_writes() -> None:
    rows = RequestRows(100)
    first = rows.open(b"a", 1, 200, 5)
    second = rows.open(None, 2, 200, 6)
    rows.sent(first, True, False, False)
    rows.sent(second, True, True, True)
    rows.sent(first, False, True, False)
    rows.sent(first, False, True, True)
    rows.close(first, RowOutcome.COMPLETED)
    a, b = _rows(rows)
    assert (a["request_id"], a["arrival_wall_ns"], a["outcome"]) == ("a", 5, "completed")
    assert len(a["chunk_wall_ns"]) == 2  # type: ignore[arg-type]
    assert a["head_wall_ns"] <= a["chunk_wall_ns"][0]  # type: ignore[index]
    assert a["end_wall_ns"] == a["chunk_wall_ns"][1]  # type: ignore[index]
    assert (b["request_id"], b["outcome"], b["chunk_wall_ns"]) == (None, "open", [b["end_wall_ns"]])


def test_rows_beyond_the_limit_are_counted() -> None:
    rows = RequestRows(2)
    numbers = [rows.open(None, 1, 200, 5) for _ in range(3)]
    for number in numbers:
        rows.sent(number, True, True, True)
        rows.sent(number, False, True, True)
    assert (numbers[2], rows.dropped, rows.chunks_dropped) == (-1, 1, 2)
    assert len(_rows(rows)) == 2


def test_row_from_before_a_reset_changes_nothing() -> None:
    rows = RequestRows(10)
    before = rows.open(b"before", 1, 200, 5)
    rows.clear()
    after = rows.open(b"after", 1, 200, 5)
    rows.sent(before, True, True, True)
    rows.close(before, RowOutcome.COMPLETED)
    [row] = _rows(rows)
    assert (row["request_id"], row["outcome"], row["chunk_wall_ns"]) == ("after", "open", [])
    rows.close(after, RowOutcome.CUT)
    assert _rows(rows)[0]["outcome"] == "cut"


def test_reset_keeps_open_requests() -> None:
    account = Account(row_limit=None)
    account.requests, account.in_flight, account.max_in_flight = 9, 2, 5
    account.open_connections = 3
    account.reset()
    counters = account.counters()
    assert {name: value for name, value in counters.items() if value} == {
        "in_flight": 2,
        "max_in_flight": 2,
        "open_connections": 3,
        "max_open_connections": 3,
    }


def test_max_overlap_agrees_with_counting_at_every_instant() -> None:
    rng = random.Random(3)
    for _ in range(200):
        spans = [(start, start + rng.randrange(1, 9)) for start in rng.choices(range(40), k=12)]
        counted = max(sum(a <= now < b for a, b in spans) for now in range(50))
        arrivals, ends = sorted(a for a, _ in spans), sorted(b for _, b in spans)
        assert max_overlap(arrivals, ends) == counted


def test_open_request_has_no_end_in_intervals() -> None:
    rows = RequestRows(10)
    rows.open(None, 1, 200, 7)
    assert rows.intervals() == (array("q", [7]), array("q"))
