"""The outcome of a trial and its measurements, on which all results of an experiment are
based."""

from typing import NamedTuple

from aiperf_svc.core.compare.measured_run import RowKey
from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.core.verdict.check_result import Reason, Severity

DONE = "done"
"""State of a finished trial."""


class TrialOutcome(NamedTuple):
    """An ended trial."""

    trial: Trial
    state: str
    """`done`, `failed` or `cancelled`."""
    reason: str
    """Why it failed or was cancelled."""
    results: RunResult | None
    """None if nothing was measured."""
    attempt_folder: str = ""
    """Name of its folder if it differs from the trial's own."""
    replaced: tuple[str, ...] = ()
    """Why earlier attempts were invalid or failed, in order."""

    @property
    def folder(self) -> str:
        """Name of its folder, below `trials`."""
        return self.attempt_folder or self.trial.folder


class Measured(NamedTuple):
    """The numbers of one trial of any kind."""

    run_id: str
    kind: str
    """`inference`, or the kind of the workload."""
    verdict: str
    cause: str
    slo: str
    """`held`, `missed` or `not judged`; empty without an SLO."""
    values: dict[RowKey, float]
    """A metric with a single number has the statistic `avg`."""
    metrics: dict[str, MetricInfo]
    headline: tuple[RowKey, ...]
    """The most important values."""
    not_held: tuple[str, ...] = ()
    """The missed objectives, each with its reason."""
    token_source: str = ""
    """Who counted the tokens, as a sentence; empty without token counts."""
    reasons: tuple[Reason, ...] = ()
    """The verdict's checks that did not pass, worst first."""
    system: tuple[Reason, ...] = ()
    """The checks of the system under test that did not pass."""

    @property
    def is_usable(self) -> bool:
        """False if the numbers must not be used."""
        return self.verdict != Severity.INVALID

    @property
    def label(self) -> str:
        """Verdict and cause or, without a cause, the decisive checks: `degraded: rate`."""
        checks = ", ".join(each.check for each in self.reasons if each.severity == self.verdict)
        return f"{self.verdict}: {self.cause or checks}".removesuffix(": ")


def measured_in(results: RunResult) -> Measured:
    return Measured(
        run_id=results.run_id,
        kind=results.workload,
        verdict=results.verdict,
        cause=results.cause,
        slo=results.slo_outcome,
        values={RowKey(tag, stat): value for tag, stat, value in results.numbers()},
        metrics=results.infos,
        headline=tuple(RowKey(tag, stat) for tag, stat in results.headline),
        not_held=(
            *(each.text for each in results.slo if not each.ok),
            *((f"quality: {results.missed_quality}",) if results.missed_quality else ()),
        ),
        token_source=results.token_source,
        reasons=results.reasons,
        system=results.system_reasons,
    )
