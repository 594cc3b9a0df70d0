"""The results of an experiment: its trials, the means over repetitions, and the best combinations.

The fields have the names and the order of the keys of experiment.json.
"""

from typing import Any, ClassVar

import msgspec

from aiperf_svc.core.experiments.search_report import Ending, SearchReport
from aiperf_svc.core.qualify.result import Qualification
from aiperf_svc.core.results.run_result import SLO_CODES
from aiperf_svc.core.results.slo_results import MISSED, NOT_JUDGED
from aiperf_svc.core.verdict.check_result import ENDED_EARLY, Reason
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.json_objects import Parameters
from aiperf_svc.protocol.run_states import RunState

SCHEMA = "experiment/1"
"""`schema_version` of experiment.json. It is raised when a key changes its meaning."""
_REQUESTS = "request_count_avg"


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """A finished trial."""

    number: int
    repetition: int
    parameters: Parameters
    state: str
    """`done`, `failed` or `cancelled`."""
    reason: str
    verdict: str = ""
    cause: str = ""
    checks: str = ""
    """Names of the verdict's checks that did not pass."""
    slo: str = ""
    """The outcome of its SLO; empty if it has none."""
    system: str = ""
    """Names of the checks of the system under test that did not pass."""
    run_id: str = ""
    folder: str
    """Name of its folder, below `trials`."""
    left_out: str = ""
    """Reason for excluding its numbers; empty if they count."""
    replaced: tuple[str, ...] = ()
    """Why earlier attempts do not count."""
    values: dict[str, float] = {}
    """Its numbers by AIPerf's statistic names: `time_to_first_token_p99`."""


class ParameterValues(msgspec.Struct, frozen=True):
    """A key of the config that differs between trials."""

    name: str
    values: tuple[Any, ...]


class ShownMetric(msgspec.Struct, frozen=True):
    """A metric of the trials."""

    name: str
    unit: str
    better: str


class MeanValue(msgspec.Struct, frozen=True, kw_only=True):
    """A value over the repetitions of a combination."""

    n: int
    mean: float
    sd: float | None
    ci_low: float | None
    """95% interval of the mean; None for a single run."""
    ci_high: float | None


class LeftOut(msgspec.Struct, frozen=True):
    """A trial whose numbers are excluded."""

    number: int
    reason: str


class CombinationResult(msgspec.Struct, frozen=True, kw_only=True):
    """Trials with the same parameters."""

    parameters: Parameters
    trials: tuple[int, ...]
    left_out: tuple[LeftOut, ...]
    values: dict[str, MeanValue]


class BestResult(msgspec.Struct, frozen=True, kw_only=True):
    """The combination with the best mean of a metric."""

    metric: str
    parameters: Parameters
    n: int
    mean: float
    sd: float | None
    ci_low: float | None
    ci_high: float | None
    overlaps: tuple[Parameters, ...]
    """Combinations whose intervals overlap with its own."""


class FrontResult(msgspec.Struct, frozen=True, kw_only=True):
    """Combinations without a failure that no other beats in both throughput and latency."""

    throughput: str
    latency: str
    optimal: tuple[Parameters, ...]


class ExperimentNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The trials and their common results."""

    parameters: tuple[ParameterValues, ...] = ()
    metrics: dict[str, ShownMetric] = {}
    best: tuple[BestResult, ...] = ()
    front: FrontResult | None = None
    combinations: tuple[CombinationResult, ...] = ()
    trials: tuple[TrialResult, ...]


class ExperimentResult(ExperimentNumbers, frozen=True, kw_only=True):
    """The results of an experiment."""

    schema_version: str = SCHEMA
    version: str = "unknown"
    """Version of this program."""
    name: str = ""
    search: SearchReport | None = None
    qualification: Qualification | None = None
    """Verdicts on the nodes of a qualification."""
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    verdict: ClassVar[None] = None
    """Only trials have a verdict, a cause and reasons."""
    cause: ClassVar[str] = ""
    reasons: ClassVar[tuple[Reason, ...]] = ()
    invalid_checks: ClassVar[tuple[str, ...]] = ()

    @property
    def has_succeeded(self) -> bool:
        """True if a request completed in any trial. Trials of tools have no requests; their states
        are their outcomes."""
        return any(trial.values.get(_REQUESTS) != 0 for trial in self.trials)

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of these results. It is OK if at least one valid trial holds its SLO (for a
        search, unless its lowest load breaks) and no trial is unfinished. If trials have no SLO, a
        load of the search must hold."""
        if not self.has_succeeded or any(trial.state != RunState.DONE for trial in self.trials):
            return ExitCode.BENCHMARK_FAILED
        if self.qualification is not None:
            return ExitCode.SLO_MISSED if self.qualification.has_failed else ExitCode.OK
        # A load that a search ended early is not a measurement, but certainly misses its objective.
        used = [t for t in self.trials if not t.left_out or t.cause == ENDED_EARLY]
        if not used:
            return ExitCode.VERDICT_INVALID
        if self._breaking_search:
            return ExitCode.SLO_MISSED
        if self._undecided_search:
            return ExitCode.SLO_NOT_JUDGED
        found = {trial.slo for trial in used}
        if found <= {MISSED, NOT_JUDGED}:
            return SLO_CODES[NOT_JUDGED if NOT_JUDGED in found else MISSED]
        return ExitCode.OK

    @property
    def problem(self) -> str:
        """Reason for a nonzero exit code; empty if it is 0."""
        match self.exit_code:
            case ExitCode.OK:
                return ""
            case ExitCode.VERDICT_INVALID:
                return "the verdict is invalid: no trial has a usable result"
            case ExitCode.BENCHMARK_FAILED:
                return self.first_failure or "no request completed"
            case _ if self.qualification is not None:
                return self.qualification.result
            case _ if self._breaking_search:
                return f"no load holds: {self._breaking_search}"
            case _ if self._undecided_search:
                return f"no load certainly holds: {self._undecided_search}"
            case _:
                return self._missed_slo

    @property
    def _breaking_search(self) -> str:
        """The result of a search whose lowest load breaks, either by a share of good requests,
        which is not a trial's SLO, or by all trials of this load together. Otherwise empty."""
        search = self.search
        if search is None or search.ending is not Ending.BREAKS_AT_ONCE:
            return ""
        return f"{search.parameter} {search.result}"

    @property
    def _undecided_search(self) -> str:
        """The result of a search for a share of good requests where no load certainly holds. All
        trials of other searches have an SLO, which decides. In this search, only trials that miss
        their quality gate have one. Empty for other results."""
        search = self.search
        if search is None or search.holds is not None or all(each.slo for each in self.trials):
            return ""
        return f"{search.parameter} {search.result}"

    @property
    def first_failure(self) -> str:
        """The first trial that failed, with its reason; empty if none did."""
        failed = (trial for trial in self.trials if trial.state != RunState.DONE)
        parts = ((f"trial {trial.number}", trial.reason) for trial in failed)
        return next((": ".join(filter(None, each)) for each in parts), "")

    @property
    def _missed_slo(self) -> str:
        unknown = [str(trial.number) for trial in self.trials if trial.slo == NOT_JUDGED]
        if not unknown:
            return "SLO missed: by all trials with a usable result"
        return f"SLO not judged: no trial certainly holds it, see trial {', '.join(unknown)}"
