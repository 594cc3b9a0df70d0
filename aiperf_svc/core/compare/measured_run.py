"""A finished run of any kind, as input of comparisons."""

from collections.abc import Mapping
from typing import Any

import msgspec

from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.domain.json_objects import flat, json_text
from aiperf_svc.domain.metric_formulas import Floats


class RowKey(msgspec.Struct, frozen=True, order=True):
    """A statistic of a metric: a row of a comparison."""

    tag: str
    stat: str = ""
    """Empty for a metric with a single number."""

    def __str__(self) -> str:
        return f"{self.tag}:{self.stat}" if self.stat else self.tag


class RunValue(msgspec.Struct, frozen=True):
    value: float
    count: int = 0
    """Number of requests behind a percentile; 0: not a percentile."""
    batches: tuple[float, ...] = ()
    """The same statistic for consecutive parts of the run; empty if unknown."""


class MeasuredRun(msgspec.Struct, frozen=True, kw_only=True):
    """Data of one finished run for comparisons."""

    folder: str
    run_id: str
    kind: str
    verdict: Severity
    cause: str = ""
    failure: str = ""
    """State and reason of a trial that did not finish. It has no values and counts as
    invalid."""
    start_wall_ns: int = 0
    """When the load began."""
    block: int = 0
    """Block of its experiment, from 1; 0: none."""
    uptime_s: float | None = None
    """Uptime of the target when the load began; None: unknown."""
    warnings: tuple[str, ...] = ()
    """Why it is not comparable with other runs, by its checks of the system."""
    facts: dict[str, str]
    """Config, versions and other facts that may differ, by dotted key."""
    metrics: dict[str, MetricInfo]
    values: dict[RowKey, RunValue]
    questions: str = ""
    """Checksum of the questions of its quality gate; empty if it has none."""
    rule: str = ""
    """Its steady-state rule as text; empty if it has none."""
    headline: tuple[RowKey, ...]
    """Rows that are judged unless others are requested."""
    shifts: dict[str, dict[str, float]] = {}
    """Percentiles of the distributions, by tag and name."""
    curves: dict[str, tuple[Floats, Floats]] = {}
    """Shares and values of the distributions that are plotted, by tag."""

    @property
    def is_usable(self) -> bool:
        """False if the run's numbers must not be used."""
        return self.verdict is not Severity.INVALID

    @property
    def label(self) -> str:
        """Verdict and cause, or how the trial ended."""
        if self.failure:
            return self.failure
        return f"{self.verdict}: {self.cause}" if self.cause else str(self.verdict)


def common_facts(result: RunResult) -> dict[str, str]:
    """Return version, verdict and config of a run by dotted key."""
    facts = {"version": result.version, "verdict": str(result.verdict)}
    if result.was_cancelled:
        facts["was_cancelled"] = "true"
    return facts | flatten({key: v for key, v in result.config.items() if key != "artifacts"})


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the values of nested objects as texts by dotted key. Lists are one value."""
    found = flat(content, f"{prefix}." if prefix else "")
    return {
        key: "none" if value is None else json_text(value)
        for key, value in found.items()
        if value != {}
    }
