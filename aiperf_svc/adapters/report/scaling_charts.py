"""Draws how replicas came up, above the plots of the load, with the same time axis."""

import math
from collections.abc import Iterator, Sequence

from aiperf_svc.adapters.report import scales
from aiperf_svc.adapters.report.plots import Plot, Series, figure
from aiperf_svc.adapters.report.scales import Scale
from aiperf_svc.core.scaling.report import ReplicaTimeline, ScalingResult, seconds

STAGES = (
    ("waiting for a node", "d", "created", "scheduled"),
    ("image", "c", "scheduled", "running"),
    ("starting", "b", "running", "ready"),
    ("ready, no token yet", "e", "ready", "first_token"),
    ("in use", "a", "first_token", ""),
)
"""Stages of a replica, with their style and the moments between which they last."""
_NAN = (math.nan, math.nan)


def draw(found: ScalingResult, length_s: float) -> list[Plot]:
    """Plot the desired and the ready replicas over a run of this length, and the stages of each
    replica that came up."""
    highest = max(number for _, number in (*found.desired, *found.ready))
    counts = figure(
        "Replicas",
        "number of replicas",
        [
            Series("desired", "d dashed", list(_steps(found.desired, length_s))),
            Series("ready", "a", list(_steps(found.ready, length_s))),
        ],
        x=scales.elapsed(length_s),
        y=scales.linear(highest or 1),
        end=length_s,
    )
    if not found.replicas:
        return [counts]
    return [counts, _stages(found.replicas, length_s)]


def _steps(curve: Sequence[tuple[float, int]], length_s: float) -> Iterator[tuple[float, float]]:
    """Yield the corners of a step curve up to the end of the run. A zoomed plot has one value at a
    time, so a step takes a moment."""
    moment_s, before = length_s / 10_000, curve[0][1]
    for at_s, number in curve:
        if at_s > length_s:
            break
        if at_s > moment_s:
            yield at_s - moment_s, before
        yield at_s, number
        before = number
    yield length_s, before


def _stages(replicas: Sequence[ReplicaTimeline], length_s: float) -> Plot:
    """Draw a line for each replica, whose parts have the styles of its stages."""
    series = []
    for name, style, first, last in STAGES:
        points = [
            point
            for row, each in enumerate(replicas, start=1)
            for point in _stage(each, float(row), first, last, length_s)
        ]
        if points:
            series.append(Series(name, style, points))
    rows = [
        Series(
            "",
            "f",
            [(min(_begin(each), length_s), float(row)) for row, each in enumerate(replicas, 1)],
            marks=[_words(each) for each in replicas],
            has_line=False,
        )
    ]
    numbers = range(1, len(replicas) + 1)
    step = max(1, len(replicas) // 8)
    ticks = tuple((float(n), str(n)) for n in numbers if (n - 1) % step == 0)
    top = len(replicas) + 1
    return figure(
        "Stages of each replica",
        "a line for each replica that came up",
        [*series, *rows],
        x=scales.elapsed(length_s),
        y=Scale(lambda value: value / top, ticks),
    )


def _stage(
    replica: ReplicaTimeline, row: float, first: str, last: str, length_s: float
) -> list[tuple[float, float]]:
    """Return the ends of a stage, and a gap; nothing if it did not begin."""
    begin_s = replica.moments_s.get(first)
    end_s = length_s if replica.gone_s is None else min(replica.gone_s, length_s)
    end_s = min(replica.moments_s.get(last, end_s), end_s)
    if begin_s is None or begin_s >= end_s:
        return []
    return [(begin_s, row), (end_s, row), _NAN]


def _begin(replica: ReplicaTimeline) -> float:
    return min(replica.moments_s.values())


def _words(replica: ReplicaTimeline) -> str:
    moments = [f"{k.replace('_', ' ')} {seconds(v)}" for k, v in replica.moments_s.items()]
    where = f" on {replica.node}" if replica.node else ""
    return f"{replica.name}{where}: {', '.join(moments)}"
