"""Grants and returns of one phase, and their invariant."""

import random
from collections import Counter

import pytest

from aiperf_svc.core.control.control_intervals import lookahead_s
from aiperf_svc.core.load.credit_ledger import MAX_LOOKAHEAD, MIN_LOOKAHEAD, CreditLedger, Grant
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.reports import WorkerCounts

P = Phase.PROFILING


def ended(
    ledger: CreditLedger, worker: str, completed: int, *, now: int, idle: bool = False
) -> None:
    ledger.returned(worker, WorkerCounts(P, completed=completed), is_idle=idle, taken_mono_ns=now)


def test_every_user_gets_a_credit_before_extra_ones() -> None:
    ledger = CreditLedger(P, users={"a": 50, "b": 50}, total=100)
    grants = ledger.closed_loop_grants()
    assert {grant.worker: grant.count for grant in grants} == {"a": 50, "b": 50}


def test_indexes_are_assigned_once_and_in_order() -> None:
    ledger = CreditLedger(P, users={"a": 3, "b": 4, "c": 5}, total=1_000)
    granted: list[int] = []
    done = dict.fromkeys("abc", 0)
    for step in range(1, 2_000):
        for grant in ledger.closed_loop_grants():
            granted += range(grant.first, grant.first + grant.count)
        for name in done:
            done[name] = ledger.counts()[name].granted
            ended(ledger, name, done[name], now=step * 10**7, idle=True)
        if ledger.remaining == 0:
            break
    assert granted == list(range(1_000))
    assert ledger.is_settled


def test_credits_held_ahead_follow_the_workers_rate() -> None:
    ledger = CreditLedger(P, users={"a": 10}, total=None)
    (first,) = ledger.closed_loop_grants()
    assert first.count == 10 + MIN_LOOKAHEAD
    done = 0
    for step in range(1, 200):
        done = min(done + 1_000, ledger.granted)
        ended(ledger, "a", done, now=step * 10**7)
        ledger.closed_loop_grants()
    # 1,000 in 10 ms are 100,000 per second. Half a second of that is granted ahead.
    assert ledger.granted - done == pytest.approx(50_000, rel=0.6)


@pytest.mark.parametrize(
    ("total", "counts", "has_run_out"),
    [
        (10, WorkerCounts(P, completed=10), True),
        (10, WorkerCounts(P, completed=8, revoked=2), False),
        (10, WorkerCounts(P, completed=9, unsent=1), False),
        (1_000, WorkerCounts(P, completed=10), False),
        (None, WorkerCounts(P, completed=10), False),
    ],
)
def test_credits_run_out_when_granted_and_used(
    total: int | None, counts: WorkerCounts, has_run_out: bool
) -> None:
    ledger = CreditLedger(P, users={"a": 10}, total=total)
    ledger.closed_loop_grants()
    ledger.returned("a", counts, is_idle=True, taken_mono_ns=10**9)
    assert ledger.has_run_out is has_run_out


def test_no_worker_hoards_credits_near_the_end() -> None:
    ledger = CreditLedger(P, users={"a": 10, "b": 10}, total=60)
    counts: Counter[str] = Counter()
    for grant in ledger.closed_loop_grants():
        counts[grant.worker] += grant.count
    assert counts == {"a": 20, "b": 20}


def test_first_credits_cover_all_users() -> None:
    ledger = CreditLedger(P, users={"a": 3, "b": 2}, total=None)
    first, second, *_ = ledger.closed_loop_grants()
    assert (first, second) == (Grant("a", 0, 3), Grant("b", 3, 2))


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("users", [1, 10, 50, 300])
def test_users_that_end_together_never_wait_for_credits(workers: int, users: int) -> None:
    names = [f"w{number}" for number in range(workers)]
    total = 20 * users * workers
    ledger = CreditLedger(P, users=dict.fromkeys(names, users), total=total)
    for completed in range(0, total // workers, users):
        ledger.closed_loop_grants()
        for name in names:
            # Each user needs its next credit before the end of its last request is reported.
            needed = min(completed + 2 * users, total // workers)
            assert ledger.counts()[name].granted >= needed
            ended(ledger, name, completed + users, now=(completed + users) * 10**6)
    assert ledger.remaining == 0


def test_late_report_of_lost_worker_is_ignored() -> None:
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


def test_reports_close_together_yield_no_rate() -> None:
    ledger = CreditLedger(P, users={"a": 10}, total=None)
    ledger.closed_loop_grants()
    rate_hz, done, at_ns = 10_000, 0, 0
    for step in range(200):
        at_ns += 10_000 if step % 2 else 20_000_000
        # A burst of ends falls between two reports that are handled one right after the other.
        done = min(ledger.granted, round(at_ns / 1e9 * rate_hz) + (100 if step % 2 else 0))
        ended(ledger, "a", done, now=at_ns)
        ledger.closed_loop_grants()
    ahead = ledger.granted - done - 10
    assert ahead <= 1.5 * rate_hz * lookahead_s(1)


def test_credits_held_ahead_are_bounded_at_any_rate() -> None:
    ledger = CreditLedger(P, users={"a": 10}, total=None)
    for step in range(1, 1_000):
        ledger.closed_loop_grants()
        ended(ledger, "a", ledger.granted, now=step * 10**7)
    ledger.closed_loop_grants()
    assert ledger.granted - ledger.counts()["a"].completed <= 10 + MAX_LOOKAHEAD


def test_older_report_is_ignored() -> None:
    ledger = CreditLedger(P, users={"a": 5}, total=None)
    ledger.closed_loop_grants()
    ended(ledger, "a", 4, now=2 * 10**9)
    ended(ledger, "a", 3, now=1 * 10**9)
    assert ledger.counts()["a"].completed == 4


class _Reporting:
    """A worker with a constant rate, whose reports arrive late, together, twice or out of order,
    and whose clock may be stepped."""

    def __init__(self, chance: random.Random, *, sets_clock: bool) -> None:
        self.chance = chance
        self.users = chance.randrange(1, 50)
        self.rate_hz = 10 ** chance.uniform(0, 5)
        self.sets_clock = sets_clock
        self.now_ns = chance.randrange(10**9)
        self.clock_ns = 0
        self.done = 0
        self.carry = 0.0
        self.on_the_way: list[tuple[int, int]] = []

    def work(self, granted: int) -> None:
        """Work for a while and report at the end."""
        elapsed_ns = self.chance.choice([10_000, 2_000_000, 20_000_000, 20_000_000, 300_000_000])
        self.now_ns += elapsed_ns
        if self.sets_clock and self.chance.random() < 0.05:
            self.clock_ns += round(self.chance.gauss(0, 10**9))
        self.carry += elapsed_ns / 1e9 * self.rate_hz
        ends = min(int(self.carry), granted - self.done)
        self.carry = min(self.carry - ends, 1.0)
        self.done += ends
        self.on_the_way.append((self.done, self.now_ns + self.clock_ns))

    def arriving(self) -> list[tuple[int, int]]:
        """Return the reports that arrive now."""
        if self.chance.random() < 0.3:
            return []  # they are delayed
        found, self.on_the_way = self.on_the_way, []
        found += [report for report in found if self.chance.random() < 0.1]
        if self.chance.random() < 0.2:
            self.chance.shuffle(found)
        return found


@pytest.mark.parametrize("sets_clock", [False, True])
def test_credits_held_ahead_are_bounded_for_any_reports(sets_clock: bool) -> None:
    chance = random.Random(7)
    for _ in range(150):
        workers = {
            f"w{i}": _Reporting(chance, sets_clock=sets_clock)
            for i in range(chance.randrange(1, 4))
        }
        ledger = CreditLedger(P, users={n: w.users for n, w in workers.items()}, total=None)
        for _ in range(100):
            ledger.closed_loop_grants()
            granted = {name: counts.granted for name, counts in ledger.counts().items()}
            for name, worker in workers.items():
                held = granted[name] - worker.done - worker.users
                by_rate = worker.rate_hz * lookahead_s(len(workers))
                # A credit that ends just within an interval counts for the whole interval.
                rounding = 100 * lookahead_s(len(workers))
                expected = max(MIN_LOOKAHEAD, 2 * worker.users, 1.01 * by_rate + rounding)
                assert held <= (MAX_LOOKAHEAD if sets_clock else min(MAX_LOOKAHEAD, expected))
                worker.work(granted[name])
                for done, taken_ns in worker.arriving():
                    ended(ledger, name, done, now=taken_ns)


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
