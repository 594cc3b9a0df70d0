"""The result of several simultaneous runs: a column for each, and one for their total."""

from typing import Literal

import msgspec

from aiperf_svc.core.results.cache_stats import CacheUse
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.run_result import MetricStats
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.domain.metric_catalog import CATALOG, METRICS, Kind
from aiperf_svc.domain.number_text import readable_unit

SCHEMA = "joint/1"
STATS = ("avg", "p50", "p90", "p95", "p99", "p99_9")
"""Statistics of a distribution in a long table."""
_WORSE = (Severity.INVALID, Severity.DEGRADED, Severity.VALID)

Metrics = dict[str, MetricStats]
"""Unit and statistics by tag."""


class MemberEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How one of the runs ended."""

    name: str
    where: str
    """The context of its cluster or the address of its target."""
    folder: str
    """Folder of its results, relative to the joint result's; empty without results."""
    stack: str = ""
    state: str
    reason: str
    """Why it failed or ended early."""
    exit_code: int


class JointMember(MemberEnd, frozen=True, kw_only=True):
    """One of the runs."""

    problem: str = ""
    """Why its records cannot be read, which excludes it from the total."""
    verdict: str | None
    cause: str = ""
    clock_ahead_ms: float | None = None
    """Time by which its clock is ahead of the clock of the machine that started all runs."""
    clock_uncertainty_ms: float | None = None
    metrics: Metrics = {}


class Joint(msgspec.Struct, frozen=True, kw_only=True):
    """All runs, and their total."""

    schema_version: str = SCHEMA
    kind: Literal["clusters", "targets", "models"]
    name: str
    exit_code: int
    verdict: str | None
    """The worst verdict; `invalid` if a run has none, since it has no results."""
    start_spread_ms: float | None = None
    """Time between the first requests of the first and the last run. Their clocks are known to
    `start_uncertainty_ms`."""
    start_uncertainty_ms: float | None = None
    interval_s: float | None = None
    """Length of the time common to all loads, over which the total's rates are computed."""
    total_of: tuple[str, ...] = ()
    """Names of the runs in the total."""
    total: Metrics = {}
    cache: CacheUse | None = None
    """Cached tokens by turn of all runs in the total; null without conversations, or if a server
    does not report cached tokens."""
    notes: tuple[str, ...] = ()
    members: tuple[JointMember, ...]


class JointRow(msgspec.Struct, frozen=True):
    """A statistic of a metric in every run and in total."""

    tag: str
    name: str
    unit: str
    values: tuple[float | None, ...]
    total: float | None

    @property
    def shown(self) -> "JointRow":
        """The row in the unit used by the tables of one run."""
        known = [abs(value) for value in (*self.values, self.total) if value is not None]
        metric = CATALOG.get(self.tag)
        per, unit = metric.scale if metric else readable_unit(self.unit, max(known, default=0.0))
        *values, total = (
            None if value is None else value / per for value in (*self.values, self.total)
        )
        return msgspec.structs.replace(self, unit=unit, values=tuple(values), total=total)


def of_groups(result: InferenceResult, kind: Literal["targets", "models"]) -> Joint:
    """Return the targets or the models of one run side by side."""
    groups = result.targets if kind == "targets" else result.models
    members = tuple(
        JointMember(
            name=each.name.partition("://")[2] or each.name,
            where=each.name,
            folder="",
            state="",
            reason="",
            exit_code=0,
            verdict=None,
            metrics=each.metrics,
        )
        for each in groups
    )
    return Joint(
        kind=kind, name="", exit_code=0, verdict=None, members=members, total=result.metrics
    )


def rows(joint: Joint, *, is_short: bool) -> list[JointRow]:
    """Return the rows of a table, without those that have no number."""
    found = [
        _row(joint, tag, stat, is_single=stats == ("avg",))
        for tag, stats in _wanted(joint, is_short=is_short).items()
        for stat in stats
    ]
    return [row for row in found if any(value is not None for value in (*row.values, row.total))]


def worst(verdicts: list[str | None]) -> str | None:
    """Return the worst of these verdicts; None if there are none."""
    return next((each.value for each in _WORSE if each in verdicts), None)


def _wanted(joint: Joint, *, is_short: bool) -> dict[str, tuple[str, ...]]:
    if is_short:
        chosen = sorted(
            (m for m in METRICS if m.side_by_side), key=lambda m: m.kind is not Kind.SCALAR
        )
        wanted = {m.tag: m.side_by_side for m in chosen}
    else:
        wanted = {m.tag: ("avg",) if m.kind is Kind.SCALAR else STATS for m in METRICS}
    tags = (tag for member in joint.members for tag in member.metrics)
    return wanted | {tag: ("avg",) for tag in tags if tag not in CATALOG}


def _row(joint: Joint, tag: str, stat: str, *, is_single: bool) -> JointRow:
    columns = [*(member.metrics for member in joint.members), joint.total]
    values = tuple(column[tag].stat(stat) if tag in column else None for column in columns)
    known = next((column[tag] for column in columns if tag in column), None)
    name = CATALOG[tag].name if tag in CATALOG else (known and known.name) or tag
    suffix = "" if is_single else f" {stat.replace('_', '.')}"
    return JointRow(tag, name + suffix, known.unit if known else "", values[:-1], values[-1])
