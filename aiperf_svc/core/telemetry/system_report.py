"""The verdict on the system under test, in the form used in results. The runner imports it without
NumPy, which the modules that compute it need."""

import msgspec

from aiperf_svc.core.verdict.check_result import Reason, Severity


class SourceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One source of a run."""

    url: str
    is_gpu: bool
    reads: int
    failures: int
    latency_ms: float
    """Mean time for a page."""
    update_interval_s: float | None
    """Median time between pages on which a value changed under load; None with too few of them."""
    problem: str = ""
    """Why it is not used; empty if it is used."""
    notes: tuple[str, ...] = ()
    """Remarks for readers of its series."""
    gpus: tuple[str, ...] = ()
    """UUID and host of each GPU on its page whose UUID is reported."""

    @property
    def is_used(self) -> bool:
        """True if its series are shown and judged."""
        return not self.problem


class SystemReport(msgspec.Struct, frozen=True, kw_only=True):
    """The findings about the system under test."""

    verdict: Severity
    checks: tuple[Reason, ...]
    """Every check with data. Findings without a limit are `info`."""
    metrics: dict[str, float]
    """Numbers that combine client and server, by tag."""
    sources: tuple[SourceReport, ...]

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Checks that did not pass."""
        return tuple(check for check in self.checks if not check.ok)
