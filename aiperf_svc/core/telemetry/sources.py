"""Decides which sources are reliable. Wrong and stale ones are reported but not used."""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from aiperf_svc.core.telemetry.duplicate_sources import CopyFinder
from aiperf_svc.core.telemetry.families import Kind, gpu_field_of, portables_of
from aiperf_svc.core.telemetry.log import SourceLog, missed_ns, restarts, returns
from aiperf_svc.core.telemetry.page import Series
from aiperf_svc.core.telemetry.series import gpus
from aiperf_svc.core.telemetry.system_report import SourceReport
from aiperf_svc.domain.number_text import count, significant

MAX_CLOCK_OFFSET_S = 5.0
"""Maximum clock difference of a source. HTTP dates have whole seconds, and a page may be cached for
one or two. A server whose clock is further off has values of another time."""
STALE_S = 10.0
"""Maximum time under load without any changed value. Slow exporters change at their own intervals.
A page that repeats throughout a longer load is a copy."""
SLOW_FACTOR = 3.0
"""A source whose values change less often than it is read, by this factor, has its own interval,
which the report names."""
MIN_CHANGES = 4
"""Minimum changed pages under load for reporting an interval."""
SEVERAL_RETURNS = 2
"""Returns of a missing counter after which a page counts as alternating pages of several servers. A
single return may be an omission."""
FAILED_SHARE = 0.5
"""Share of failed reads above which a source is not used."""


def judge_sources(
    logs: Sequence[SourceLog], *, begin_ns: int, end_ns: int, interval_s: float
) -> tuple[SourceReport, ...]:
    """Judge the sources of a run. Copies of other sources are not used."""
    reports = {
        log: judge_source(log, begin_ns=begin_ns, end_ns=end_ns, interval_s=interval_s)
        for log in logs
    }
    used = [log for log in logs if reports[log].is_used]
    for log, other in CopyFinder().copies(used).items():
        problem = f"its servers are on {other.url} too and are counted once"
        reports[log] = replace(reports[log], problem=problem)
    return tuple(reports.values())


def judge_source(log: SourceLog, *, begin_ns: int, end_ns: int, interval_s: float) -> SourceReport:
    """Judge a source that was read each `interval_s` during a load from `begin_ns` to `end_ns`."""
    updates = log.updates
    updates = updates[(updates >= begin_ns) & (updates <= end_ns)]
    reads = len(log.wall_ns)
    is_known = len(updates) >= MIN_CHANGES
    update_s = float(np.median(np.diff(updates))) / 1e9 if is_known else None
    return SourceReport(
        url=log.url,
        is_gpu=log.is_gpu,
        reads=reads,
        failures=log.failures,
        latency_ms=float(log.latency_ns.mean()) / 1e6 if reads else 0.0,
        update_interval_s=update_s,
        problem=_problem(log, begin_ns, end_ns),
        notes=(
            *((f"pool {log.pool}",) if log.pool else ()),
            *_missing_times(log, begin_ns, end_ns),
            *_notes(log, update_s, interval_s),
        ),
        gpus=tuple(gpu.name for gpu in gpus([log]) if gpu.uuid),
    )


def _problem(log: SourceLog, begin_ns: int, end_ns: int) -> str:
    times = log.wall_ns
    if not len(times):
        return log.failure or "no page was read"
    if log.failures > FAILED_SHARE * (log.failures + len(times)):
        return f"{log.failures} of {log.failures + len(times)} reads failed: {log.failure}"
    if abs(log.clock_offset_s) > MAX_CLOCK_OFFSET_S:
        way = "behind" if log.clock_offset_s > 0 else "ahead of"
        return f"its clock or its values are {abs(log.clock_offset_s):.0f} s {way} ours"
    counters = [
        log.curve(number) for number, each in enumerate(log.series) if _only_grows(each.series)
    ]
    fell = restarts(counters)
    if fell:
        return f"its counters restarted {count(fell, 'time')} during the run"
    if (came_back := returns(counters)) >= SEVERAL_RETURNS:
        return f"its counters disappeared {came_back} times: it alternates between servers"
    loaded = times[(times >= begin_ns) & (times <= end_ns)]
    updates = log.updates[1:]
    if len(loaded) > 1 and (loaded[-1] - loaded[0]) / 1e9 > STALE_S:
        changed = updates[(updates > loaded[0]) & (updates <= loaded[-1])]
        if not len(changed):
            length_s = (loaded[-1] - loaded[0]) / 1e9
            return f"it repeated the same values for {length_s:.0f} s of load"
    return ""


def _only_grows(series: Series) -> bool:
    """Return whether a series is known to be a counter. The name is not evidence: servers have
    averages with names of counters."""
    field = gpu_field_of(series)
    kinds = [each.kind for each in portables_of(series)] + ([field.kind] if field else [])
    return bool(kinds) and Kind.GAUGE not in kinds


def _missing_times(log: SourceLog, begin_ns: int, end_ns: int) -> Iterator[str]:
    """Yield the parts of the load that a server's counters miss."""
    if not log.portable:
        return
    gaps = zip(("first", "last"), missed_ns(log, begin_ns, end_ns), strict=True)
    yield from (
        f"its counters miss the {which} {significant(ns / 1e9, 3)} s of the load"
        for which, ns in gaps
        if ns
    )


def _notes(log: SourceLog, update_s: float | None, interval_s: float) -> tuple[str, ...]:
    notes = []
    if update_s is not None and update_s > SLOW_FACTOR * interval_s:
        notes.append(f"its values change every {update_s:.3g} s; it is read every {interval_s:g} s")
    if log.failures:
        notes.append(f"{count(log.failures, 'read')} failed, the last one: {log.failure}")
    if log.left_out:
        notes.append(f"{log.left_out:,} series beyond the limit are left out")
    if log.is_full:
        notes.append("the end of its series is left out: too many values")
    return tuple(notes)
