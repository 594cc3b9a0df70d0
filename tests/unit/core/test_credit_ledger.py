"""Grants and returns of one phase, and the identity that they keep."""

import random

import pytest

from aiperf_svc.core.credit_ledger import LEAST_LOOKAHEAD, CreditLedger
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages import WorkerCounts

P = Phase.PROFILING


def ended(
    ledger: CreditLedger, worker: str, completed: int, *, now: int, idle: bool = False
) -> None:
    ledger.returned(worker, WorkerCounts(P, completed=completed), is_idle=idle, now_mono_ns=now)


def test_every_user_gets_a_credit_before_anybody_gets_one_ahead() -> None:
    ledger = CreditLedger(P, users={"a": 50, "b": 50}, total=100)
    grants = ledger.closed_loop_grants()
    assert {grant.worker: grant.count for grant in grants} == {"a": 50, "b": 50}


def test_indexes_are_given_out_once_and_in_order() -> None:
    ledger = CreditLedger(P, users={"a": 3, "b": 4, "c": 5}, total=1_000)
    given: list[int] = []
    done = dict.fromkeys("abc", 0)
    for step in range(1, 2_000):
        for grant in ledger.closed_loop_grants():
            given += range(grant.first, grant.first + grant.count)
        for name in done:
            done[name] = ledger.counts()[name].granted
            ended(ledger, name, done[name], now=step * 10**7, idle=True)
        if ledger.remaining == 0:
            break
    assert given == list(range(1_000))
    assert ledger.is_settled


def test_credits_held_ahead_follow_the_workers_rate() -> None:
    ledger = CreditLedger(P, users={"a": 10}, total=None)
    (first,) = ledger.closed_loop_grants()
    assert first.count == 10 + LEAST_LOOKAHEAD
    done = 0
    for step in range(1, 200):
        done = min(done + 1_000, ledger.granted)
        ended(ledger, "a", done, now=step * 10**7)
        ledger.closed_loop_grants()
    # 1,000 in 10 ms are 100,000 a second; half a second of that is held ahead.
    assert ledger.granted - done == pytest.approx(50_000, rel=0.6)


def test_near_the_end_no_worker_hoards_what_another_could_send() -> None:
    ledger = CreditLedger(P, users={"a": 10, "b": 10}, total=60)
    counts = {grant.worker: grant.count for grant in ledger.closed_loop_grants()}
    assert counts == {"a": 20, "b": 20}


def test_what_a_lost_worker_did_not_report_stays_unreported() -> None:
    ledger = CreditLedger(P, users={"a": 5, "b": 5}, total=10)
    ledger.closed_loop_grants()
    ended(ledger, "a", 5, now=1, idle=True)
    ended(ledger, "b", 2, now=2)
    assert not ledger.is_settled
    ledger.lose("b")
    ended(ledger, "b", 5, now=3, idle=True)
    assert ledger.is_settled
    assert ledger.counts()["b"].completed == 2
    assert ledger.workers == ["a"]


def test_a_repeated_return_changes_nothing() -> None:
    ledger = CreditLedger(P, users={"a": 5}, total=None)
    ledger.closed_loop_grants()
    ended(ledger, "a", 3, now=1)
    before = ledger.counts()
    ended(ledger, "a", 3, now=1)
    assert ledger.counts() == before


def test_random_histories_end_with_every_credit_accounted_for() -> None:
    chance = random.Random(4)
    for _ in range(200):
        total = chance.randrange(1, 500)
        names = [f"w{i}" for i in range(chance.randrange(1, 5))]
        ledger = CreditLedger(P, users={n: chance.randrange(1, 20) for n in names}, total=total)
        done = dict.fromkeys(names, 0)
        lost: set[str] = set()
        for step in range(1, 10_000):
            ledger.closed_loop_grants()
            counts = ledger.counts()
            for name in set(names) - lost:
                done[name] = chance.randint(done[name], counts[name].granted)
                idle = done[name] == counts[name].granted
                ended(ledger, name, done[name], now=step, idle=idle)
            if len(lost) < len(names) - 1 and chance.random() < 0.001:
                lost.add(chance.choice(sorted(set(names) - lost)))
                for name in lost:
                    ledger.lose(name)
            if ledger.is_settled and ledger.remaining == 0:
                break
        counts = ledger.counts()
        assert sum(c.granted for c in counts.values()) == total
        assert all(counts[n].completed == counts[n].granted for n in set(names) - lost)
