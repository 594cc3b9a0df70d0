"""Accounts balance for every consistent history, and for no inconsistent one."""

import random
from typing import Any

import pytest
from msgspec.structs import replace

from aiperf_svc.core.records.accounts import Accounts, WorkerAccount, account_of_live, balance
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.reports import WorkerCounts

OUTCOMES = ("completed", "errored", "cancelled", "abandoned", "unsent", "revoked")


def honest(seed: int, worker: str = "worker-0", *, is_lost: bool = False) -> WorkerAccount:
    """Return the account of a worker after a random history of single-turn credits."""
    dice = random.Random(seed)
    counts = dict.fromkeys((*OUTCOMES, "granted", "requests_sent", "retries", "records_dropped"), 0)
    records = lost = 0
    for _ in range(dice.randrange(400)):
        counts["granted"] += 1
        if is_lost and dice.random() < 0.2:
            continue  # lost with the worker
        outcome = dice.choice(OUTCOMES)
        counts[outcome] += 1
        if outcome not in ("unsent", "revoked"):
            is_retried = dice.random() < 0.1
            counts["retries"] += is_retried
            counts["requests_sent"] += 1 + is_retried
            fate = dice.random()
            counts["records_dropped"] += fate < 0.05
            lost += 0.05 <= fate < 0.10
            records += fate >= 0.10
    return WorkerAccount(
        worker=worker,
        counts=replace(WorkerCounts(Phase.PROFILING), **counts),
        records=records,
        records_lost=lost,
        is_lost=is_lost,
    )


def test_random_honest_histories_balance() -> None:
    for seed in range(50):
        workers = [honest(seed * 10 + i, f"worker-{i}", is_lost=i == 3) for i in range(4)]
        granted = sum(w.counts.granted for w in workers)
        books = balance(Phase.PROFILING, workers, granted=granted)
        assert books.violations == (), seed
        assert books.issued == books.granted - books.revoked, seed
        ended = books.completed + books.errored + books.cancelled + books.abandoned
        ended += books.unsent + books.lost
        assert books.issued == ended, seed
        arrived = books.records + books.records_lost + books.retries
        assert books.requests_sent == arrived, seed


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("granted", "without an outcome"),
        ("completed", "more outcomes than credits"),
        ("requests_sent", "requests sent"),
        ("retries", "retries"),
        ("in_flight", "in flight"),
    ],
)
def test_one_excess_in_any_count_is_found(field: str, message: str) -> None:
    for seed in range(1, 50):
        account = honest(seed)
        counts = replace(account.counts, **{field: getattr(account.counts, field) + 1})
        books = balance(Phase.PROFILING, [replace(account, counts=counts)])
        assert any(message in violation for violation in books.violations)
        assert all(violation.startswith("profiling: worker-0: ") for violation in books.violations)


def test_a_missing_record_is_found() -> None:
    account = honest(5)
    books = balance(Phase.PROFILING, [replace(account, records=account.records - 1)])
    assert len(books.violations) == 1


def test_the_timing_managers_own_total_must_agree() -> None:
    account = honest(5)
    books = balance(Phase.WARMUP, [account], granted=account.counts.granted + 3)
    assert "timing manager" in books.violations[0]


def lost_worker(records: int, **counts: Any) -> Accounts:
    """Return the accounts of a lost worker with this many records."""
    known = WorkerCounts(phase=Phase.PROFILING, granted=100, completed=60, **counts)
    account = WorkerAccount(worker="worker-1", counts=known, records=records, is_lost=True)
    return balance(Phase.PROFILING, [account])


def test_lost_workers_credits_violate_nothing() -> None:
    books = lost_worker(58, requests_sent=75, in_flight=15)
    assert books.violations == ()
    assert (books.lost, books.records_lost, books.requests_sent) == (40, 17, 75)


def test_lost_workers_retries_lose_no_records() -> None:
    books = lost_worker(58, requests_sent=75, retries=5)
    assert (books.records_lost, books.requests_sent, books.retries) == (12, 75, 5)


def test_records_after_lost_workers_report_are_sent() -> None:
    books = lost_worker(64, requests_sent=60)
    assert (books.requests_sent, books.records, books.records_lost) == (64, 64, 0)


@pytest.mark.parametrize(
    ("arrived", "completed", "errored"),
    [
        # All responses were good, but a record processor was lost with its unkept records.
        ({"records": 470, "whole": 470, "lost": 30}, 500, 0),
        ({"records": 490, "whole": 485, "lost": 10}, 495, 5),
    ],
)
def test_dropped_records_are_lost_unless_they_arrived(
    arrived: dict[str, int], completed: int, errored: int
) -> None:
    counts = WorkerCounts(
        Phase.PROFILING, granted=500, completed=500, requests_sent=500, records_dropped=30
    )
    account = account_of_live("worker-0", counts, **arrived)
    books = balance(Phase.PROFILING, [account], granted=500)
    assert (books.completed, books.errored) == (completed, errored)
    assert (books.records_lost, books.violations) == (arrived["lost"], ())
