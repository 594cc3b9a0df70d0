"""The results of one run that are common to all kinds of benchmark.

The records manager creates an `InferenceResult` or a `ToolResult`. Tables, exports, reports,
comparisons and experiments use these. Only `adapters/exports/result_files.py` converts them to JSON
and back.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.results.slo_results import MISSED, NOT_JUDGED, ObjectiveResult, outcome_of_all
from aiperf_svc.core.verdict.check_result import Reason, Severity
from aiperf_svc.domain.exit_codes import ExitCode

INFERENCE: Literal["inference"] = "inference"
"""Kind of a run that measured an inference server; other runs have the kind of their workload."""
SLO_CODES = {MISSED: ExitCode.SLO_MISSED, NOT_JUDGED: ExitCode.SLO_NOT_JUDGED}

Statistic = float | None | UnsetType


class MetricStats(msgspec.Struct, frozen=True, kw_only=True):
    """Unit and statistics of a metric. A statistic that the metric lacks is UNSET; a statistic with
    an unknown value is None."""

    name: str | UnsetType = UNSET
    """Name for people, only for metrics outside the catalog."""
    unit: str
    avg: Statistic = UNSET
    p1: Statistic = UNSET
    p5: Statistic = UNSET
    p10: Statistic = UNSET
    p25: Statistic = UNSET
    p50: Statistic = UNSET
    p75: Statistic = UNSET
    p90: Statistic = UNSET
    p95: Statistic = UNSET
    p99: Statistic = UNSET
    min: Statistic = UNSET
    max: Statistic = UNSET
    std: Statistic = UNSET
    count: int | UnsetType = UNSET
    sum: Statistic = UNSET
    p99_9: Statistic = UNSET
    unreliable: tuple[str, ...] | UnsetType = UNSET
    """Percentiles beyond which fewer than one request is expected."""
    censored_share: float | UnsetType = UNSET
    """Share of the requests that were cut before their responses ended."""
    beyond: dict[str, float] | UnsetType = UNSET
    """For percentiles among these requests: a lower bound."""
    relative_error: float | UnsetType = UNSET

    def stat(self, name: str) -> float | None:
        """Return a statistic such as `avg` or `p99`; None without a value."""
        value: float | UnsetType | None = getattr(self, name)
        return None if isinstance(value, UnsetType) else value

    @property
    def is_single(self) -> bool:
        return self.p50 is UNSET

    def is_unreliable(self, stat: str) -> bool:
        """True if too few requests lie beyond this percentile."""
        return stat in (self.unreliable or ())


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    name: str
    """Name of the benchmark in its config."""
    workload: str
    """`INFERENCE`, or the kind of the tool's workload."""
    version: str
    """Version of this program."""
    cli_command: str = ""
    start_wall_ns: int = 0
    end_wall_ns: int = 0
    was_cancelled: bool = False
    verdict: Severity
    cause: str
    """Cause of an invalid run, if known."""
    slo: tuple[ObjectiveResult, ...]
    config: dict[str, Any]
    """The resolved config, as in config.yaml."""

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The checks that did not pass, worst first."""
        raise NotImplementedError

    @property
    def has_succeeded(self) -> bool:
        """True if a request completed; for a tool, if all steps did."""
        raise NotImplementedError

    @property
    def first_failure(self) -> str:
        """The first part that failed, with its reason; empty if none is recorded."""
        raise NotImplementedError

    @property
    def missed_quality(self) -> str:
        """Why the quality gate is not passed; empty if it is passed or absent."""
        return ""

    @property
    def slo_outcome(self) -> str:
        """`held`, `missed` or `not judged`; empty without an SLO. A quality gate that is not passed
        counts as missed."""
        return MISSED if self.missed_quality else outcome_of_all(self.slo)

    @property
    def token_source(self) -> str:
        """Who counted the tokens, as a sentence; empty without token counts."""
        return ""

    @property
    def system_reasons(self) -> tuple[Reason, ...]:
        """The checks of the system under test that did not pass."""
        return ()

    @property
    def stats(self) -> Mapping[str, MetricStats]:
        raise NotImplementedError

    @property
    def infos(self) -> dict[str, MetricInfo]:
        raise NotImplementedError

    @property
    def headline(self) -> tuple[tuple[str, str], ...]:
        """Tag and statistic of the headline values, most important first."""
        raise NotImplementedError

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of these results."""
        if not self.has_succeeded:
            return ExitCode.BENCHMARK_FAILED
        if self.verdict is Severity.INVALID:
            return ExitCode.VERDICT_INVALID
        return SLO_CODES.get(self.slo_outcome, ExitCode.OK)

    @property
    def problem(self) -> str:
        """Reason for a nonzero exit code; empty if it is 0."""
        match self.exit_code:
            case ExitCode.OK:
                return ""
            case ExitCode.VERDICT_INVALID:
                return f"the verdict is invalid: {self._invalid_checks}"
            case ExitCode.BENCHMARK_FAILED:
                return self.first_failure or "no request completed"
            case _:
                failed = [f"{o.metric} {o.stat} {o.reason}" for o in self.slo if not o.ok]
                parts = [f"SLO {outcome_of_all(self.slo)}: {'; '.join(failed)}"] if failed else []
                parts += [f"quality: {self.missed_quality}"] if self.missed_quality else []
                return "; ".join(parts)

    @property
    def invalid_checks(self) -> tuple[str, ...]:
        """Names of the checks that make the run invalid."""
        return tuple(each.check for each in self.reasons if each.severity is Severity.INVALID)

    @property
    def _invalid_checks(self) -> str:
        """The texts of the checks that made the run invalid."""
        texts = (each.text for each in self.reasons if each.severity is Severity.INVALID)
        return next(texts, "") or self.cause or "see verdict.json"

    def numbers(self) -> Iterator[tuple[str, str, float]]:
        """Yield tag, statistic and value of all measurements."""
        return numbers_of(self.stats)


def numbers_of(metrics: Mapping[str, MetricStats]) -> Iterator[tuple[str, str, float]]:
    """Yield tag, statistic and value of metrics."""
    for tag, stats in metrics.items():
        for stat in STATS:
            value = stats.stat(stat)
            if value is not None:
                yield tag, stat, float(value)


STATS = (
    "avg", "min", "max", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p99_9",
    "std", "sum", "count",
)  # fmt: skip
"""Statistics of a metric, in the order of the columns of tables."""
