"""An idle cap shortens pauses only in its own scope, by one amount for all waiting requests."""

from aiperf_svc.core.load.idle_caps import NEVER, DueRequest, PendingRequests


def take_due(pending: PendingRequests, until: int = NEVER - 1) -> list[DueRequest]:
    found = []
    while (due := pending.take_due(until)) is not None:
        found.append(due)
    return found


def test_requests_come_at_their_times() -> None:
    pending = PendingRequests()
    pending.begin(1, 0)
    pending.add(1, 0, 50)
    pending.add(1, 1, 20)
    assert pending.next_due_ns == 20
    assert take_due(pending, 49) == [DueRequest(1, 1, 20)]
    assert pending.next_due_ns == 50


def test_waiting_requests_of_an_idle_tree_move_equally() -> None:
    pending = PendingRequests(tree_cap_ns=100)
    pending.begin(1, 0)
    pending.begin(2, 0)
    pending.add(1, 0, 500)
    pending.add(1, 1, 530)
    pending.add(2, 0, 90)
    pending.apply_caps(1)
    pending.apply_caps(2)
    assert take_due(pending) == [DueRequest(2, 0, 90), DueRequest(1, 0, 100), DueRequest(1, 1, 130)]


def test_tree_with_request_in_flight_keeps_times() -> None:
    pending = PendingRequests(tree_cap_ns=100)
    pending.begin(1, 0)
    pending.add(1, 0, 0)
    pending.add(1, 1, 900)
    assert take_due(pending, 0) == [DueRequest(1, 0, 0)]
    pending.apply_caps(1)
    assert pending.next_due_ns == 900
    pending.end_request(1, 300)
    pending.apply_caps(1)
    assert take_due(pending) == [DueRequest(1, 1, 400)]


def test_system_cap_applies_only_without_busy_trees() -> None:
    pending = PendingRequests(system_cap_ns=10)
    for tree in (1, 2, 3):
        pending.begin(tree, 0)
    pending.add(1, 0, 0)
    pending.add(2, 0, 500)
    pending.add(3, 0, 520)
    take_due(pending, 0)
    pending.apply_caps(2)
    assert pending.next_due_ns == 500
    pending.end_request(1, 40)
    pending.end(1)
    pending.apply_caps(1)
    assert take_due(pending) == [DueRequest(2, 0, 50), DueRequest(3, 0, 70)]


def test_pause_within_the_cap_is_unchanged() -> None:
    pending = PendingRequests(system_cap_ns=10, tree_cap_ns=10)
    pending.begin(1, 5)
    pending.add(1, 0, 15)
    pending.apply_caps(1)
    assert pending.next_due_ns == 15


def test_stop_removes_waiting_requests() -> None:
    pending = PendingRequests()
    pending.begin(1, 0)
    pending.begin(2, 0)
    pending.add(1, 0, 0)
    pending.add(1, 1, 9)
    pending.add(2, 0, 9)
    take_due(pending, 0)
    assert pending.clear() == {1: (1,), 2: (0,)}
    assert pending.next_due_ns == NEVER
    pending.end_request(1, 5)
