"""The accounts of a run. At its end, every credit and every request must be accounted for.

    issued   = granted - revoked
    issued   = completed + errored + cancelled + abandoned + unsent + lost          (credits)
    sent     = metric records + records lost + retries                  (requests)

A live worker must account for every credit itself. For a lost worker, only the received data is
known. The rest counts as lost, which is reported but is not a violation.
"""

from collections.abc import Iterable

import msgspec

from aiperf_svc.core.load.credit_ledger import ended_credits
from aiperf_svc.domain.number_text import count
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.reports import WorkerCounts


class WorkerAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Accounts of one worker in one phase, after everything has arrived."""

    worker: str
    counts: WorkerCounts
    """Latest counts of the worker. For a lost worker, `granted` is the timing manager's number of
    granted credits."""
    records: int
    """Number of metric records of sent requests."""
    records_lost: int = 0
    """Records that record processors declared lost, or that never arrived from a lost worker."""
    is_lost: bool = False


class Accounts(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over all workers, and violated identities."""

    granted: int = 0
    revoked: int = 0
    issued: int = 0
    completed: int = 0
    errored: int = 0
    cancelled: int = 0
    abandoned: int = 0
    unsent: int = 0
    connecting: int = 0
    """Part of `unsent` whose connections were being made at the stop."""
    lost: int = 0
    requests_sent: int = 0
    records: int = 0
    records_lost: int = 0
    retries: int = 0
    """Sent requests without a record, since they were sent again."""
    violations: tuple[str, ...] = ()


def account_of_live(
    worker: str, counts: WorkerCounts, *, records: int, whole: int, lost: int
) -> WorkerAccount:
    """Return the account of a worker that is not lost. `whole` conversations have a record of a
    complete last response; `lost` records did not arrive or were declared lost.

    Records dropped by the worker are not counted again: they are among the lost records, except for
    those that had arrived but could not be confirmed.
    """
    # A worker sees complete responses; only their content shows that some were errors.
    bad = max(0, counts.completed - whole - lost)
    counts = msgspec.structs.replace(
        counts, completed=counts.completed - bad, errored=counts.errored + bad, records_dropped=0
    )
    return WorkerAccount(worker=worker, counts=counts, records=records, records_lost=lost)


COUNTED = (
    *("granted", "revoked", "completed", "errored", "cancelled", "abandoned", "unsent"),
    *("connecting", "retries"),
)
"""Counts that are summed over the workers' own reports."""


def balance(
    phase: Phase, workers: Iterable[WorkerAccount], *, granted: int | None = None
) -> Accounts:
    """Sum up the accounts and check the identities. `granted` is the timing manager's own total, if
    known."""
    sums = dict.fromkeys(Accounts.__struct_fields__[:-1], 0)
    violations: list[str] = []
    for account in workers:
        # Credits without an outcome. Live workers have none.
        lost = account.counts.granted - ended_credits(account.counts)
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


def _sent(account: WorkerAccount) -> int:
    # A lost worker's last report may be older than its last records.
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
        found.append(f"{worker}: {count(counts.in_flight, 'request')} still in flight")
    arrived = account.records + _records_lost(account) + counts.retries
    if arrived != counts.requests_sent:
        found.append(
            f"{worker}: {counts.requests_sent:,} requests sent, but {account.records:,} metric "
            f"records, {_records_lost(account):,} lost and {counts.retries:,} retries"
        )
    return found
