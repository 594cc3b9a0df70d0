"""The timing manager's credit accounts of one phase: what each worker was granted and what it
returned.

A grant assigns credits to a worker, whose cumulative counts report how they ended. At the end

    issued = granted - revoked = completed + errored + cancelled + abandoned + unsent + lost

holds for every worker, where `lost` are the credits that a lost worker never reported.

In closed loop the ledger also sizes the grants. A worker must always hold more credits than it has
free users, or a user would wait for a grant instead of the server. All users of a worker can become
free at once, namely with a server whose responses all take the same time. So a worker holds at
least one credit for each user ahead. But other workers cannot use these credits, so near the end
of a counted phase grants shrink with the remaining number (guided self-scheduling: Polychronopoulos
and Kuck, IEEE Trans. Computers C-36(12), 1987), down to each worker's share of the last round.
"""

import msgspec

from aiperf_svc.core.control.control_intervals import lookahead_s
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.reports import WorkerCounts

MIN_LOOKAHEAD = 64
"""Credits granted ahead while a worker's rate is unknown."""
MAX_LOOKAHEAD = 131_072
"""Maximum credits that a worker holds ahead, whatever its reported rate: three seconds of the rate
of a fast core."""
RATE_INTERVAL_NS = 10_000_000
"""Minimum interval for computing a rate. Over a shorter interval, a few requests that end together
look like a high rate."""
RATE_WEIGHT = 0.3
"""Weight of the newest interval in a worker's smoothed rate."""


class Grant(msgspec.Struct, frozen=True):
    """Grant of the indexes `first .. first + count - 1` to one worker."""

    worker: str
    first: int
    count: int


class _Account(msgspec.Struct):
    users: int
    counts: WorkerCounts
    granted: int = 0
    rate: float = 0.0
    """Credits that end per second; 0 if unknown."""
    rated_mono_ns: int | None = None
    """End of the last interval of `rate`, by the worker's clock; None before the first
    report."""
    rated_ended: int = 0
    """Value of `ended` at that time."""
    is_idle: bool = True
    is_lost: bool = False

    @property
    def ended(self) -> int:
        return ended_credits(self.counts)

    def rate_until(self, taken_mono_ns: int) -> None:
        """Update the rate from the time since the last interval, if it is long enough."""
        if self.rated_mono_ns is not None:
            elapsed_ns = taken_mono_ns - self.rated_mono_ns
            if 0 <= elapsed_ns < RATE_INTERVAL_NS:
                return
            if elapsed_ns > 0:
                newest = (self.ended - self.rated_ended) / (elapsed_ns / 1e9)
                self.rate += (RATE_WEIGHT if self.rate else 1.0) * (newest - self.rate)
        self.rated_mono_ns, self.rated_ended = taken_mono_ns, self.ended


def ended_credits(counts: WorkerCounts) -> int:
    """Return the number of credits whose outcome these counts report."""
    ended = counts.completed + counts.errored + counts.cancelled + counts.abandoned
    return ended + counts.unsent + counts.revoked


class CreditLedger:
    def __init__(self, phase: Phase, *, users: dict[str, int], total: int | None) -> None:
        """Open an account for each worker. `users` is by worker (0 in open loop). `total` is the
        number of credits, None for no limit."""
        self.phase = phase
        self.next_index = 0
        self.remaining = total
        """Credits not yet granted; None without a limit."""
        self._accounts = {
            name: _Account(users=count, counts=WorkerCounts(phase)) for name, count in users.items()
        }

    @property
    def workers(self) -> list[str]:
        """Workers that can be granted credits."""
        return [name for name, account in self._accounts.items() if not account.is_lost]

    @property
    def lost_workers(self) -> list[str]:
        """Workers whose unreported credits are lost."""
        return [name for name, account in self._accounts.items() if account.is_lost]

    def end_at_multiple(self, size: int) -> None:
        """Limit the credits to the lowest positive multiple of `size` that covers the granted
        ones, unless they are already limited."""
        if self.remaining is None:
            self.remaining = -self.next_index % size if self.next_index else size

    @property
    def has_run_out(self) -> bool:
        """True if all of a limited number of credits were granted and used. Any stop then came too
        late to change the phase."""
        counts = [account.counts for account in self._accounts.values()]
        return self.remaining == 0 and not any(c.revoked or c.unsent for c in counts)

    @property
    def granted(self) -> int:
        return sum(account.granted for account in self._accounts.values())

    def grant(self, worker: str, count: int) -> Grant:
        """Grant the next `count` indexes to a worker."""
        account = self._accounts[worker]
        account.granted += count
        account.is_idle = False
        grant = Grant(worker, self.next_index, count)
        self.next_index += count
        if self.remaining is not None:
            self.remaining -= count
        return grant

    def closed_loop_grants(self) -> list[Grant]:
        """Grant the credits needed now so that no user waits."""
        live = {name: self._accounts[name] for name in self.workers}
        if not live or self.remaining == 0:
            return []
        # Users come first, so that even a short run reaches its concurrency, and the first credits
        # cover all users.
        wanted = {
            name: max(0, account.users - (account.granted - account.ended))
            for name, account in live.items()
        }
        further = dict.fromkeys(live, 0)
        spare = None if self.remaining is None else max(0, self.remaining - sum(wanted.values()))
        ahead_s = lookahead_s(len(live))
        all_users = sum(account.users for account in live.values())
        for name, account in live.items():
            users = account.users
            ahead = max(0, account.granted - account.ended - users)
            by_rate = min(MAX_LOOKAHEAD, round(account.rate * ahead_s))
            target = max(MIN_LOOKAHEAD, by_rate, 2 * users)
            if spare is not None:
                last_round = min(users, spare * users // max(1, all_users))
                target = min(target, max(spare // (2 * len(live)), last_round))
            if ahead <= target // 2 or ahead < min(users, target):
                further[name] = target - ahead
        if len(live) == 1:
            (name,) = live
            wanted, further = {name: wanted[name] + further[name]}, {}
        grants = []
        for name, count in (*wanted.items(), *further.items()):
            allowed = count if self.remaining is None else min(count, self.remaining)
            if allowed > 0:
                grants.append(self.grant(name, allowed))
        return grants

    def returned(
        self, worker: str, counts: WorkerCounts, *, is_idle: bool, taken_mono_ns: int
    ) -> None:
        """Record a worker's cumulative counts, taken at `taken_mono_ns` by its own monotonic clock.
        A rate cannot use the arrival time of a report, since delayed reports arrive
        together.

        Reports of a lost worker are ignored, and so are reports older than the last.
        """
        account = self._accounts.get(worker)
        if account is None or account.is_lost or ended_credits(counts) < account.ended:
            return
        account.counts = counts
        account.is_idle = is_idle
        account.rate_until(taken_mono_ns)

    def lose(self, worker: str) -> None:
        """Mark a worker as lost, together with its unreported credits."""
        account = self._accounts.get(worker)
        if account is not None:
            account.is_lost = True

    @property
    def is_settled(self) -> bool:
        """True if every granted credit has come back or is lost."""
        return all(
            account.is_lost or (account.is_idle and account.ended == account.granted)
            for account in self._accounts.values()
        )

    def counts(self) -> dict[str, WorkerCounts]:
        """Return the newest counts of each worker, with the number granted to it."""
        return {
            name: msgspec.structs.replace(account.counts, granted=account.granted)
            for name, account in self._accounts.items()
        }
