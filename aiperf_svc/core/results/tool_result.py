"""The results of a benchmark that ran any tool on ranks."""

from collections.abc import Iterator, Sequence
from statistics import fmean, median, stdev
from typing import Self

import msgspec

from aiperf_svc.core.results.measured import MetricInfo, Series, Table
from aiperf_svc.core.results.run_result import MetricStats, RunResult
from aiperf_svc.core.verdict.check_result import Reason, Verdict
from aiperf_svc.domain.number_text import count, number, readable_unit, size_text
from aiperf_svc.protocol.messages.reports import RankInfo
from aiperf_svc.protocol.messages.steps import RankWitness

SCHEMA = "run-result/1"
"""`schema_version` of results.json. It is raised when a key changes its meaning."""
STATS = ("avg", "min", "max", "std", "p50")
"""Statistics of a metric, over all repetitions and measured steps."""


class MetricValue(msgspec.Struct, frozen=True, kw_only=True):
    """Value of a metric in one measured step."""

    step: str
    """Name of the step."""
    repetition: int
    labels: dict[str, str] = {}
    """Labels that distinguish the step's values from other steps': `{"from": "node-1", ...}`."""
    value: float


class MetricResult(msgspec.Struct, frozen=True, kw_only=True):
    """A metric with all its values and their statistics."""

    info: MetricInfo
    count: int
    avg: float
    min: float
    max: float
    std: float | None
    """Standard deviation of the sample; None for a single value."""
    p50: float
    values: tuple[MetricValue, ...]

    @classmethod
    def of(cls, info: MetricInfo, values: Sequence[MetricValue]) -> Self:
        """Return the statistics of these values, at least one."""
        numbers = [each.value for each in values]
        return cls(
            info=info,
            count=len(numbers),
            avg=fmean(numbers),
            min=min(numbers),
            max=max(numbers),
            std=stdev(numbers) if len(numbers) > 1 else None,
            p50=median(numbers),
            values=tuple(values),
        )

    def by_pair(self) -> dict[tuple[str, str], float]:
        """Return the average over repetitions of each pair of nodes, by labels `from` and `to`."""
        found: dict[tuple[str, str], list[float]] = {}
        for each in self.values:
            if "from" in each.labels and "to" in each.labels:
                found.setdefault((each.labels["from"], each.labels["to"]), []).append(each.value)
        return {pair: fmean(values) for pair, values in found.items()}

    def stat(self, name: str) -> float | None:
        """Return one of `STATS`; None if it is not defined."""
        value: float | None = getattr(self, name)
        return value

    @property
    def unit(self) -> tuple[float, str]:
        """Divisor and name of the unit that makes its values short."""
        return readable_unit(self.info.unit, self.max)

    @property
    def stats(self) -> MetricStats:
        """The statistics used in joint results."""
        return MetricStats(
            name=self.info.name,
            unit=self.info.unit,
            avg=self.avg,
            p50=self.p50,
            min=self.min,
            max=self.max,
            count=self.count,
        )


class StepSeries(msgspec.Struct, frozen=True, kw_only=True):
    """A series of one measured step."""

    step: str
    repetition: int
    labels: dict[str, str] = {}
    series: Series


class StepTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of one measured step."""

    step: str
    repetition: int
    labels: dict[str, str] = {}
    table: Table

    @property
    def name(self) -> str:
        return self.table.name.replace("_", " ")

    def shown(self) -> tuple[list[tuple[str, str]], list[list[str]]]:
        """Return name and unit of each column, and the cells of the rows, for people. In a table by
        size, each size has its own unit."""
        columns, rows = self.table.columns, self.table.rows
        is_size = columns[0].unit == "bytes"
        heads, texts = [], []
        for index, column in enumerate(columns):
            values = [row[index] for row in rows]
            per, unit = readable_unit(
                column.unit, max((abs(v or 0.0) for v in values), default=0.0)
            )
            is_first_size = is_size and not index
            heads.append((column.name.replace("_", " "), "" if is_first_size else unit))
            texts.append(
                [
                    size_text(v) if is_first_size and v is not None else number(v, per=per)
                    for v in values
                ]
            )
        return heads, [list(row) for row in zip(*texts, strict=True)]


class StepWitness(RankWitness, frozen=True, kw_only=True, array_like=False):
    """Measurements of one rank's courier during a step."""


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a step."""

    number: int
    """1, 2, … over all attempts of the run."""
    name: str
    repetition: int
    """1, 2, …; 0: a step that only prepares."""
    attempt: int
    folder: str
    """Folder of its raw output, below `raw/`."""
    is_measured: bool
    labels: dict[str, str] = {}
    problem: str = ""
    """Why it failed; empty if it did not."""
    was_retried: bool = False
    """Whether another attempt at the same step followed."""
    due_wall_ns: int = 0
    started_wall_ns: int = 0
    """When the last rank had started its commands; 0: none started."""
    ended_wall_ns: int = 0
    duration_s: float = 0.0
    """Time from the last rank's start to the end of the last command."""
    expected_s: float = 0.0
    """Expected time; 0: unknown."""
    start_skew_ms: float | None = None
    """Time from the first rank's start to the last one's; None with fewer than two."""
    values: dict[str, float] = {}
    """Metric tag to value."""
    tools: dict[int, str] = {}
    """Rank to the tool's name and version."""
    exit_codes: tuple[int, ...] = ()
    """Exit codes of its commands and servers; negative: number of the signal that ended one."""
    witnesses: tuple[StepWitness, ...] = ()

    @property
    def has_failed(self) -> bool:
        """True if no attempt at this step succeeded."""
        return bool(self.problem) and not self.was_retried


class StepAccounts(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of the steps: planned = completed + failed + lost."""

    planned: int
    """Steps of the run, repetitions included."""
    completed: int
    failed: int
    lost: int
    """Steps that did not run or have no record."""
    retried: int
    """Failed attempts that another attempt followed."""

    @property
    def text(self) -> str:
        """`3 planned = 2 completed + 1 failed; 1 attempt repeated`."""
        parts = [f"{self.completed:,} completed"]
        parts += [f"{self.failed:,} failed"] if self.failed else []
        parts += [f"{self.lost:,} not run"] if self.lost else []
        repeated = f"; {count(self.retried, 'attempt')} repeated" if self.retried else ""
        return f"{self.planned:,} planned = {' + '.join(parts)}{repeated}"


class RankLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Placement of a run's services and ranks."""

    layout: str = ""
    ranks: int = 0


class RankFacts(RankInfo, frozen=True, kw_only=True, array_like=False):
    """Placement of a rank."""


class ToolResult(RunResult, frozen=True, kw_only=True):
    """The results of a benchmark that ran a tool on ranks."""

    schema_version: str = SCHEMA
    failure: str = ""
    """Why the run failed; empty if it did not."""
    checks: tuple[Reason, ...]
    accounts: StepAccounts
    metrics: tuple[MetricResult, ...]
    """Metrics. The first one is the headline."""
    series: tuple[StepSeries, ...]
    tables: tuple[StepTable, ...]
    facts: dict[str, str]
    tools: tuple[str, ...]
    """Names and versions of the tools that ran."""
    ranks: tuple[RankFacts, ...]
    steps: tuple[StepResult, ...]
    topology: RankLayout

    @property
    def judgement(self) -> Verdict:
        """Verdict, cause and checks together."""
        return Verdict(self.verdict, self.cause, self.checks)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        return self.judgement.reasons

    @property
    def has_succeeded(self) -> bool:
        """True if there were steps and all completed."""
        is_whole = not self.accounts.failed and not self.accounts.lost
        return is_whole and bool(self.accounts.completed) and not self.failure

    @property
    def first_failure(self) -> str:
        failed = (step for step in self.steps if step.has_failed)
        return next((f"step {step.name}: {step.problem}" for step in failed), "")

    @property
    def _invalid_checks(self) -> str:
        return ", ".join(self.invalid_checks)

    @property
    def stats(self) -> dict[str, MetricStats]:
        return {metric.info.tag: metric.stats for metric in self.metrics}

    @property
    def infos(self) -> dict[str, MetricInfo]:
        return {metric.info.tag: metric.info for metric in self.metrics}

    @property
    def headline(self) -> tuple[tuple[str, str], ...]:
        infos = self.infos.values()
        shown = [info for info in infos if info.better and info.in_table] or infos
        return tuple((info.tag, "avg") for info in shown)

    def numbers(self) -> Iterator[tuple[str, str, float]]:
        for metric in self.metrics:
            for stat in STATS:
                value = metric.stat(stat)
                if value is not None:
                    yield metric.info.tag, stat, float(value)
