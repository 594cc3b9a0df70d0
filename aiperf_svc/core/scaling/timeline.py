"""Builds the timeline of replicas from the runner's observations: which increase of the load led to
which decision, which replicas it created, and when they were useful."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from aiperf_svc.config.load import Load
from aiperf_svc.core.scaling.report import (
    MOMENTS,
    NEEDS_GPU,
    DesiredChange,
    Replica,
    ReplicaTimeline,
    ScaleUp,
    ScalingReport,
    ScalingResult,
)

SECOND = 10**9
EARLY_NS = 2 * SECOND
"""Maximum time by which a pod's message may precede that of the decision, since watches use several
connections."""
SAME_NS = 60 * SECOND
"""Time within which reports of an autoscaler and of its workload are one decision."""

LATE_S = 5.0
"""Maximum time from the start of a load to that of the watch that is not reported."""


class LoadChange(NamedTuple):
    at_s: float
    is_increase: bool


Recovered = Callable[[float, float], float | None]
"""Returns when the SLO holds again between two times from the load's start; None: not before the
second time."""


def load_changes(load: Load, end_s: float) -> tuple[LoadChange, ...]:
    """Return the changes of a load by its schedule. The first one is its start. A linearly rising
    rate increases at the start of the rise. `end_s` is the end of a load with bursts."""
    rates: list[tuple[float, float]] = []
    """Time, and the following rate or the target of its rise."""
    if load.stages:
        at_s = 0.0
        for stage in load.stages:
            rates.append((at_s, stage.rate))
            at_s += stage.duration / SECOND
    elif load.rate_series:
        rates.append((0.0, load.rate_series[0].rate))
        headed = zip(load.rate_series, load.rate_series[1:], strict=False)
        rates += [(first.at / SECOND, second.rate) for first, second in headed]
    elif (bursts := load.bursts) is not None:
        every_s, length_s = bursts.every / SECOND, bursts.length / SECOND
        usual = load.request_rate or 0.0
        ends = [number * every_s for number in range(math.ceil(end_s / every_s) + 1)]
        pairs = [((end - length_s, bursts.rate), (end, usual)) for end in ends[1:]]
        rates = [(0.0, usual), *(each for pair in pairs for each in pair if each[0] < end_s)]
    found, before = [LoadChange(0.0, True)], rates[0][1] if rates else 0.0
    for at_s, rate in rates:
        if rate != before and at_s > 0:
            found.append(LoadChange(at_s, rate > before))
        before = rate
    return tuple(found)


class FollowedLoad(NamedTuple):
    """The load that replicas follow. Times are in seconds from its start."""

    begin_ns: int
    changes: tuple[LoadChange, ...]
    end_s: float
    """When the last request was due."""
    requested_s: tuple[float, ...] = ()
    """When events requested another number of replicas."""


def scaling_of(
    report: ScalingReport, load: FollowedLoad, recovered: Recovered, *, limit: str
) -> ScalingResult:
    """Return how the replicas followed the load. `limit` is the criterion of `recovered` in
    words."""
    changes = _decisions(report.changes)
    made = sorted(
        (
            each
            for each in report.replicas
            if not each.was_there and each.wall_ns.get("created", 0) >= load.begin_ns
        ),
        key=lambda each: each.wall_ns["created"],
    )
    ups = [
        each for each in changes if each.after > each.before and each.at_wall_ns >= load.begin_ns
    ]
    replicas = tuple(_timeline(each, load) for each in made)
    return ScalingResult(
        scale_ups=tuple(_scale_ups(ups, made, load, recovered)),
        replicas=replicas,
        desired=_curve(_desired_steps(changes, report), load),
        ready=_curve(_ready_steps(report.replicas), load),
        limit=limit,
        idle_gpu_s=sum(each.gpus * (each.idle_s or 0.0) for each in replicas),
        not_watched=(*report.not_watched, *_unwatched_start(report, load)),
    )


def _unwatched_start(report: ScalingReport, load: FollowedLoad) -> Iterator[str]:
    """Yield the start of the load if the watch began later, because a runner continued the run of
    another runner and replaced its report."""
    late_s = (report.since_wall_ns - load.begin_ns) / SECOND
    if late_s > LATE_S:
        yield f"the first {late_s:.0f} s of the load"


def _decisions(changes: Sequence[DesiredChange]) -> list[DesiredChange]:
    """Return the changes by time, merging those of an autoscaler and of its workload."""
    found: list[DesiredChange] = []
    for each in sorted(changes, key=lambda change: change.at_wall_ns):
        for index, known in enumerate(found):
            is_same = (known.before, known.after) == (each.before, each.after)
            is_near = each.at_wall_ns - known.at_wall_ns <= SAME_NS
            if is_same and is_near and each.source not in known.source.split(", "):
                source = f"{known.source}, {each.source}"
                found[index] = replace(known, source=source, reason=known.reason or each.reason)
                break
        else:
            found.append(each)
    return found


def _scale_ups(
    ups: Sequence[DesiredChange],
    made: Sequence[Replica],
    load: FollowedLoad,
    recovered: Recovered,
) -> Iterator[ScaleUp]:
    rest = list(made)
    for each in ups:
        own = [
            replica for replica in rest if replica.wall_ns["created"] >= each.at_wall_ns - EARLY_NS
        ][: each.after - each.before]
        rest = [replica for replica in rest if replica not in own]
        desired_s = (each.at_wall_ns - load.begin_ns) / SECOND
        is_requested = any(abs(desired_s - at_s) <= EARLY_NS / SECOND for at_s in load.requested_s)
        changed_s = None
        if not is_requested:
            changed_s = max(
                (change.at_s for change in load.changes
                 if change.is_increase and change.at_s <= desired_s),
                default=None,
            )  # fmt: skip
        begin_s = desired_s if changed_s is None else changed_s
        end_s = min(
            (change.at_s for change in load.changes if change.at_s > begin_s), default=load.end_s
        )
        ready_s = token_s = None
        if len(own) == each.after - each.before:
            ready_s, token_s = (_last(own, name, load) for name in ("ready", "first_token"))
        slo_s = recovered(begin_s, end_s)
        yield ScaleUp(
            source=each.source,
            reason=each.reason,
            before=each.before,
            after=each.after,
            replicas=tuple(replica.name for replica in own),
            load_changed_s=changed_s,
            desired_s=desired_s,
            decision_s=None if changed_s is None else desired_s - changed_s,
            scale_up_s=None if ready_s is None else ready_s - desired_s,
            use_s=None if ready_s is None or token_s is None else max(0.0, token_s - ready_s),
            recovery_s=None if slo_s is None else slo_s - begin_s,
            judged_s=max(0.0, end_s - begin_s),
        )


def _last(replicas: Sequence[Replica], moment: str, load: FollowedLoad) -> float | None:
    """Return when the last of these replicas reached a moment; None unless all have."""
    if not all(moment in each.wall_ns for each in replicas):
        return None
    return max((each.wall_ns[moment] - load.begin_ns) / SECOND for each in replicas)


def _timeline(replica: Replica, load: FollowedLoad) -> ReplicaTimeline:
    moments = {
        name: (replica.wall_ns[name] - load.begin_ns) / SECOND
        for name in MOMENTS
        if name in replica.wall_ns
    }
    gone_s = None
    if replica.gone_wall_ns:
        gone_s = (replica.gone_wall_ns - load.begin_ns) / SECOND
    begin, end = NEEDS_GPU
    idle_s = None
    if begin in moments:
        until_s = moments.get(end, load.end_s if gone_s is None else gone_s)
        idle_s = max(0.0, until_s - moments[begin])
    return ReplicaTimeline(
        name=replica.name,
        node=replica.node,
        gpus=replica.gpus,
        image=replica.image,
        moments_s=moments,
        gone_s=gone_s,
        idle_s=idle_s,
    )


def _desired_steps(
    changes: Sequence[DesiredChange], report: ScalingReport
) -> tuple[int, list[tuple[int, int]]]:
    if not changes:
        return sum(each.was_there for each in report.replicas), []
    steps = [(each.at_wall_ns, each.after - each.before) for each in changes]
    return changes[0].before, steps


def _ready_steps(replicas: Sequence[Replica]) -> tuple[int, list[tuple[int, int]]]:
    """Return the number of ready replicas when the watch began, and each time at which the number
    changed."""
    first, steps = 0, list[tuple[int, int]]()
    for each in replicas:
        ready_ns = each.wall_ns.get("ready")
        if ready_ns is None:
            continue
        # For a replica that existed before the watch, the first message shows its moments.
        if each.was_there and ready_ns == each.wall_ns["created"]:
            first += 1
        else:
            steps.append((ready_ns, 1))
        steps += [(each.gone_wall_ns, -1)] if each.gone_wall_ns else []
    return first, sorted(steps)


def _curve(
    steps: tuple[int, list[tuple[int, int]]], load: FollowedLoad
) -> tuple[tuple[float, int], ...]:
    """Return time and number of each step during the load; the first is at its start."""
    number, later = steps
    number += sum(change for at_ns, change in later if at_ns <= load.begin_ns)
    found = [(0.0, number)]
    for at_ns, change in later:
        if at_ns > load.begin_ns:
            number += change
            found.append(((at_ns - load.begin_ns) / SECOND, number))
    return tuple(found)


def scaling_scalars(found: ScalingResult) -> dict[str, float]:
    """Return the metrics of a run's scaling by tag: the maximum of each time. A time that some
    increase lacks is omitted."""
    metrics = {} if not found.replicas else {"idle_gpu_time": found.idle_gpu_s}
    for tag, field in _MAX_METRICS.items():
        times = [getattr(each, field) for each in found.scale_ups]
        known = [each for each in times if each is not None]
        if known and len(known) == len(times):
            metrics[tag] = max(known)
    return metrics


_MAX_METRICS = {
    "scale_decision_time": "decision_s",
    "scale_up_time": "scale_up_s",
    "scale_use_time": "use_s",
    "scale_recovery_time": "recovery_s",
}
