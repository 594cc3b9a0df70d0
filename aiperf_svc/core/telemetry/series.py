"""Computes portable quantities over time and over the load, for all sources of a run together."""

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from aiperf_svc.core.telemetry.duplicate_sources import CopyFinder, without_copies
from aiperf_svc.core.telemetry.families import (
    GPU_FIELDS,
    PORTABLE,
    SUPERSEDED,
    GpuExporter,
    GpuField,
    Kind,
    Portable,
    exporter_of,
    family_of,
    gpu_field_of,
)
from aiperf_svc.core.telemetry.log import (
    Curve,
    SourceLog,
    Times,
    Values,
    grown,
    held_until_ns,
    within,
)
from aiperf_svc.core.telemetry.page import Series

JOINED_NS = 1_000_000_000
"""Grid for adding the series of several sources, which are not read simultaneously."""


class Plotted(msgspec.Struct, frozen=True):
    """A quantity over time, for a plot."""

    name: str
    title: str
    unit: str
    lines: tuple[tuple[str, Times, Values], ...]
    """Label, times in ns and values of each line."""


class ServerHistogram(msgspec.Struct, frozen=True):
    """Growth of a histogram of the servers during the load."""

    count: float
    sum: float

    @property
    def mean(self) -> float:
        return self.sum / self.count


class ServerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The current load of the servers; None if no server reports it."""

    running: float | None = None
    """Running requests."""
    waiting: float | None = None
    kv_usage: float | None = None
    """Used share of the KV cache of the fullest server."""


Member = tuple[SourceLog, int, Series]


def members(logs: Iterable[SourceLog], portable: Portable) -> list[Member]:
    """Return every series of a portable quantity, as source, number and series: those of servers,
    or of routers if no server has it. If servers of prefill and decode count the same requests,
    only one of the two kinds."""
    found = [member for log in logs for member in _source_members(log, portable)]
    of_servers = [each for each in found if family_of(each[2]) not in portable.of_routers]
    counted = of_servers or found
    if not portable.engine_type:
        return counted
    types = ("", "unified", portable.engine_type)
    return [each for each in counted if each[2].label("engine_type") in types] or counted


def _source_members(log: SourceLog, portable: Portable) -> list[Member]:
    """Return the series of one source, without older names of the same family."""
    found = [(log, n, log.series[n].series) for n in log.portable.get(portable.name, ())]
    families = {family_of(series) for _, _, series in found}
    old = {family for family in families if SUPERSEDED.get(family) in families}
    return [member for member in found if family_of(member[2]) not in old]


def gauge(logs: Iterable[SourceLog], name: str, begin_ns: int, end_ns: int) -> Values:
    """Return the values of a gauge under load on a common grid: the sum over all servers, or the
    worst one if a sum is meaningless. Empty if no server has it."""
    portable = _named(name)
    curves = [log.curve(number) for log, number, _ in members(logs, portable)]
    values = within(_joined(curves, portable), begin_ns, end_ns) if curves else np.empty(0)
    return values[~np.isnan(values)]


def counter(logs: Iterable[SourceLog], name: str, begin_ns: int, end_ns: int) -> float | None:
    """Return the growth of a counter of all servers under load; None if no server has it."""
    portable = _named(name)
    found = [
        growth
        for log, number, _ in members(logs, portable)
        if (growth := grown(log.curve(number), begin_ns, end_ns)) is not None
    ]
    return portable.scale * sum(found) if found else None


def histogram(
    logs: Iterable[SourceLog], name: str, begin_ns: int, end_ns: int
) -> ServerHistogram | None:
    """Return the growth of a histogram of all servers under load; None without observations."""
    totals = {"_sum": 0.0, "_count": 0.0}
    for log, number, series in members(logs, _named(name)):
        for part in totals:
            if series.name.endswith(part):
                totals[part] += grown(log.curve(number), begin_ns, end_ns) or 0.0
    if totals["_count"] <= 0:
        return None
    return ServerHistogram(count=totals["_count"], sum=totals["_sum"])


def server_load(logs: Iterable[SourceLog], finder: CopyFinder | None = None) -> ServerLoad:
    """Return the load on the newest pages, counting each server once. A server whose pages ended
    before those of others does not count."""
    pages = {log: log.wall_ns for log in without_copies(logs, finder) if log.has_pages}
    newest_ns = max((int(times[-1]) for times in pages.values()), default=0)
    known = [log for log, times in pages.items() if newest_ns <= held_until_ns(times)]
    return ServerLoad(
        running=_last_gauge(known, "running"),
        waiting=_last_gauge(known, "waiting"),
        kv_usage=_last_gauge(known, "kv_usage"),
    )


def _last_gauge(logs: Iterable[SourceLog], name: str) -> float | None:
    """Return the newest value of a gauge: the sum over all servers, or the worst one."""
    portable = _named(name)
    values = [log.last(number) for log, number, _ in members(logs, portable)]
    known = [value for value in values if value == value]
    if not known:
        return None
    return portable.scale * (max(known) if portable.is_worst else sum(known))


class Gpu(msgspec.Struct, frozen=True):
    """A GPU on one exporter's page."""

    log: SourceLog
    exporter: GpuExporter
    labels: dict[str, str]
    """Labels of its first series."""
    fields: dict[str, tuple[GpuField, list[int]]]
    """Maps each field to the numbers of its series. There is a new series when a label changes,
    such as the pod that uses the GPU or the code of an error."""

    @property
    def uuid(self) -> str:
        """Its UUID; empty if the exporter does not report it."""
        return self.labels.get(self.exporter.uuid, "")

    @property
    def index(self) -> str:
        return self.labels.get(self.exporter.index, "")

    @property
    def is_partitioned(self) -> bool:
        """True if its power and energy may include other GPUs or partitions."""
        return bool(self.labels.get(self.exporter.partition))

    @property
    def name(self) -> str:
        """UUID and host, as far as the exporter reports them."""
        host = self.labels.get(self.exporter.host, "")
        return " ".join(part for part in (self.uuid, f"on {host}" if host else "") if part)


def gpus(logs: Iterable[SourceLog]) -> Iterator[Gpu]:
    """Yield each GPU once. Several pages may contain a GPU, such as those of one exporter under two
    URLs."""
    seen: set[str] = set()
    for log in logs:
        known = _exporter_gpus(log)
        yield from (gpu for gpu in known if gpu.uuid not in seen)
        seen |= {gpu.uuid for gpu in known if gpu.uuid}


def _exporter_gpus(log: SourceLog) -> list[Gpu]:
    """Return the GPUs of a source."""
    found: dict[tuple[str, str], Gpu] = {}
    for number, each in enumerate(log.series):
        exporter, field = exporter_of(each.series), gpu_field_of(each.series)
        if exporter is not None and field is not None:
            key = each.series.label(exporter.host), each.series.label(exporter.uuid)
            gpu = found.setdefault(key, Gpu(log, exporter, dict(each.series.labels), {}))
            gpu.fields.setdefault(field.name, (field, []))[1].append(number)
    return list(found.values())


def plotted(logs: Iterable[SourceLog]) -> Iterator[Plotted]:
    """Yield the plots of a run: gauges unchanged, counters as rates, one line per GPU."""
    known = list(logs)
    for portable in PORTABLE:
        if portable.kind is Kind.HISTOGRAM:
            continue
        curves = [log.curve(number) for log, number, _ in members(known, portable)]
        if curves:
            is_rate = portable.kind is Kind.COUNTER
            times, values = (_rate if is_rate else _joined)(curves, portable)
            unit = f"{portable.unit}/s".lstrip("/") if is_rate else portable.unit
            yield Plotted(portable.name, portable.title, unit, (("", times, values),))
    for field in GPU_FIELDS:
        if field.kind is Kind.GAUGE and field.is_plotted:
            lines = tuple(_gpu_lines(known, field.name))
            if lines:
                yield Plotted(field.name, field.title, field.unit, lines)


def _gpu_lines(logs: list[SourceLog], name: str) -> Iterator[tuple[str, Times, Values]]:
    """Yield a line of a field for each GPU, with a point for each sample of its exporter."""
    for gpu in gpus(logs):
        if name in gpu.fields:
            field, numbers = gpu.fields[name]
            curve = gpu.log.sampled(*numbers, with_gaps=True)
            yield f"GPU {gpu.index}", curve.wall_ns, curve.values * field.scale


def _named(name: str) -> Portable:
    return next(portable for portable in PORTABLE if portable.name == name)


def _joined(curves: list[Curve], portable: Portable) -> Curve:
    """Combine all curves into one."""
    times = _times(curves)
    table = np.array([_at(curve, times) for curve in curves])
    is_there = ~np.isnan(table)
    if portable.is_worst:
        joined = np.where(is_there, table, -np.inf).max(axis=0)
    else:
        joined = np.where(is_there, table, 0.0).sum(axis=0)
    joined[~is_there.any(axis=0)] = np.nan
    return Curve(times, joined * portable.scale)


def _rate(curves: list[Curve], portable: Portable) -> Curve:
    """Return the growth of all counters per second between two times, at the later one. The
    counters of a source that has not been read yet do not grow, whatever their value is."""
    times = _times(curves)
    table = np.array([_counted(curve, times) for curve in curves])
    growth = np.diff(table, axis=1)
    is_known = ~np.isnan(growth)
    together = np.where(is_known, growth, 0.0).sum(axis=0)
    together[~is_known.any(axis=0)] = np.nan
    lengths_s = np.maximum(np.diff(times) / 1e9, 1e-9)
    return Curve(times[1:], together * portable.scale / lengths_s)


def _counted(curve: Curve, times: Times) -> Values:
    """Return the total of a counter until each time; NaN after it has disappeared from its source's
    pages.

    It is interpolated between two pages. A labelled counter that is not on the first pages begins
    at zero, and so does every counter after a decrease, because its server was restarted.
    """
    is_there = ~np.isnan(curve.values)
    if not is_there.any():
        return np.full(len(times), np.nan)
    is_there[: int(is_there.argmax())] = True
    values = np.where(np.isnan(curve.values), 0.0, curve.values)[is_there]
    growth = np.diff(values, prepend=values[:1])
    total = np.cumsum(np.where(growth < 0, values, growth))
    counted: Values = np.interp(
        times - times[0],
        curve.wall_ns[is_there] - times[0],
        total,
        right=total[-1] if is_there[-1] else np.nan,
    )
    return counted


def _times(curves: list[Curve]) -> Times:
    """Return the times of all curves, or a grid if they were read at different times."""
    if all(np.array_equal(curve.wall_ns, curves[0].wall_ns) for curve in curves):
        return curves[0].wall_ns
    ends = [curve.wall_ns for curve in curves if len(curve.wall_ns)]
    begin, end = min(int(t[0]) for t in ends), max(int(t[-1]) for t in ends)
    return np.arange(begin, end + JOINED_NS, JOINED_NS, dtype=np.int64)


def _at(curve: Curve, times: Times) -> Values:
    """Return the last value at or before each time; NaN if no page is recent enough."""
    places = np.searchsorted(curve.wall_ns, times, side="right") - 1
    values: Values = np.append(curve.values, np.nan)[places]
    values[times > held_until_ns(curve.wall_ns)] = np.nan
    return values
