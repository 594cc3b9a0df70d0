"""Whether the client was good enough to be believed.

Each check holds one kind of evidence against a limit. A load generator deceives in three ways: it
offers less load than it says, it reports times that its own slowness made, or it leaves out the bad
cases. `effect_checks` look for those in the numbers themselves and can say *invalid*.
`cause_checks` look at CPU, clock and limits: a cause without an effect is a warning.

All checks are listed, the passed ones too, so that a report can show what was looked at.
"""

import msgspec

from aiperf_svc.core.cause_checks import CAUSE_CHECKS
from aiperf_svc.core.effect_checks import EFFECT_CHECKS, LOAD_SHORTFALL
from aiperf_svc.core.evidence import Evidence
from aiperf_svc.core.reasons import Reason, Severity

CLIENT_EFFECTS = ("concurrency", "rate", "stamp_uncertainty", "schedule_lag")
"""What an overloaded client does to a run."""


class Verdict(msgspec.Struct, frozen=True):
    """The worst of all checks."""

    verdict: Severity
    cause: str
    """`client-bound` when the client was the limit, else empty."""
    checks: tuple[Reason, ...]

    @property
    def label(self) -> str:
        """`valid`, `degraded`, `invalid` or `invalid: client-bound`."""
        return f"{self.verdict}: {self.cause}" if self.cause else str(self.verdict)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The checks that did not pass, the worst first."""
        failed = [check for check in self.checks if not check.ok]
        return tuple(sorted(failed, key=lambda check: check.severity is not Severity.INVALID))


def judge(evidence: Evidence) -> Verdict:
    """The verdict, with every check that applies to this run."""
    checks = tuple(
        reason
        for check in (*EFFECT_CHECKS, *CAUSE_CHECKS)
        if (reason := check(evidence)) is not None
    )
    order = list(Severity)
    worst = max((check.severity for check in checks), key=order.index, default=Severity.VALID)
    return Verdict(worst, _cause(evidence, checks), checks)


def _cause(evidence: Evidence, checks: tuple[Reason, ...]) -> str:
    """Whether the client alone explains an invalid run: its own effects are invalid, and neither a
    lost process nor the server's errors nor a cap that was asked for made them."""
    bad = [c for c in checks if c.check in CLIENT_EFFECTS and c.severity is Severity.INVALID]
    elsewhere = (
        evidence.lost_services
        or evidence.share(evidence.errored) > LOAD_SHORTFALL[1]
        or evidence.share(evidence.capped) > LOAD_SHORTFALL[1]
    )
    return "client-bound" if bad and not elsewhere else ""
