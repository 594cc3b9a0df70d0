"""The books of a run: nothing that was issued may be missing at the end.

    issued   = granted - revoked
    issued   = completed + errored + cancelled + unsent + lost          (credits)
    sent     = metric records + records lost + retries                  (requests)

A worker that is alive must account for every credit by itself. Of a lost worker only what had
arrived is known; the rest is lost, and that is no violation, but it is never hidden either.
"""

from collections.abc import Iterable

import msgspec

from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages import WorkerCounts


class WorkerAccount(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one worker's part of a phase when everything has arrived."""

    worker: str
    counts: WorkerCounts
    """The last that it said; for a lost worker, `granted` is what the timing manager granted."""
    records: int
    """Metric records of requests that were sent."""
    records_lost: int = 0
    """Declared lost by record processors or never arrived from a lost worker."""
    is_lost: bool = False


class Accounts(msgspec.Struct, frozen=True, kw_only=True):
    """The sums over all workers, and every identity that does not hold."""

    granted: int = 0
    revoked: int = 0
    issued: int = 0
    completed: int = 0
    errored: int = 0
    cancelled: int = 0
    unsent: int = 0
    lost: int = 0
    requests_sent: int = 0
    records: int = 0
    records_lost: int = 0
    retries: int = 0
    """Sent and without a record, since they were to be sent again."""
    violations: tuple[str, ...] = ()


COUNTED = ("granted", "revoked", "completed", "errored", "cancelled", "unsent", "retries")
"""What is added up as the workers say it."""


def balance(
    phase: Phase, workers: Iterable[WorkerAccount], *, granted: int | None = None
) -> Accounts:
    """Add up and check. `granted` is the timing manager's own total, when it is known."""
    sums = dict.fromkeys(Accounts.__struct_fields__[:-1], 0)
    violations: list[str] = []
    for account in workers:
        lost = _lost_credits(account)
        violations += _violations(account, lost)
        counts = account.counts
        for name in COUNTED:
            sums[name] += getattr(counts, name)
        sums["lost"] += max(0, lost)
        sums["requests_sent"] += _sent(account)
        sums["records"] += account.records
        sums["records_lost"] += _records_lost(account)
    sums["issued"] = sums["granted"] - sums["revoked"]
    if granted is not None and granted != sums["granted"]:
        violations.append(
            f"the timing manager granted {granted:,} credits, "
            f"the workers account for {sums['granted']:,}"
        )
    named = tuple(f"{phase.name.lower()}: {violation}" for violation in violations)
    return Accounts(**sums, violations=named)


def _lost_credits(account: WorkerAccount) -> int:
    """Credits without an outcome; of a worker that is alive there must be none."""
    c = account.counts
    return c.granted - c.revoked - c.completed - c.errored - c.cancelled - c.unsent


def _sent(account: WorkerAccount) -> int:
    # A lost worker's last word may be older than records that had already left it.
    sent = account.counts.requests_sent
    arrived = account.records + account.records_lost + account.counts.retries
    return max(sent, arrived) if account.is_lost else sent


def _records_lost(account: WorkerAccount) -> int:
    if account.is_lost:
        return _sent(account) - account.records - account.counts.retries
    return account.records_lost + account.counts.records_dropped


def _violations(account: WorkerAccount, lost: int) -> list[str]:
    counts, worker = account.counts, account.worker
    found = []
    if lost < 0:
        found.append(f"{worker}: {-lost:,} more outcomes than credits")
    if account.is_lost:
        return found
    if lost > 0:
        found.append(f"{worker}: {lost:,} credits without an outcome")
    if counts.in_flight:
        found.append(f"{worker}: {counts.in_flight:,} requests still in flight")
    arrived = account.records + _records_lost(account) + counts.retries
    if arrived != counts.requests_sent:
        found.append(
            f"{worker}: {counts.requests_sent:,} requests sent, but {account.records:,} metric "
            f"records, {_records_lost(account):,} lost and {counts.retries:,} retries"
        )
    return found
