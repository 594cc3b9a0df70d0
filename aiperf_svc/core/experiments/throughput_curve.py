"""The curve of a server: tokens per second of all users together against the speed of one user.

Each point covers the trials at one level of load. Its throughput is the mean output token
throughput; the speed of one user is 1000 / P90 of the inter-token latency in ms, so nine of ten
responses are at least as fast. The curve is a step function: at a required speed, a server provides
the maximum throughput of the points that are at least as fast. Nothing is interpolated. A load at
which the target failed in a trial has no point, since the other trials are too good.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from aiperf_svc.core.compare.measured_run import RowKey
from aiperf_svc.core.experiments.combinations import identity, is_number
from aiperf_svc.core.experiments.experiment_result import CombinationResult, ExperimentResult
from aiperf_svc.core.experiments.summary import ExperimentSummary
from aiperf_svc.core.verdict.check_result import is_failure
from aiperf_svc.domain.json_objects import Parameters

LEVELS = ("load.concurrency", "load.request_rate")
"""Parameters that set the load."""
SPEED = "1000 / P90 of the inter-token latency in ms"
_THROUGHPUT = RowKey("output_token_throughput", "avg")
_LATENCY = RowKey("inter_token_latency", "p90")
Mean = Callable[[RowKey], float | None]


class CurvePoint(NamedTuple):
    """A point of a curve, in output tokens per second."""

    per_user: float
    of_system: float
    level: float
    """The load."""


class Curve(NamedTuple):
    """The points of one server, by increasing load."""

    parameters: Parameters
    """Common parameters of its trials besides the load, if other curves differ in them."""
    points: tuple[CurvePoint, ...]


def curves_of_summary(summary: ExperimentSummary) -> list[Curve]:
    """Return the curves of an experiment, one for each combination of the parameters besides the
    load; empty if the load does not vary or nothing was streamed."""
    return _curves(
        (each.parameters, each.mean) for each in summary.combinations if not each.has_failed
    )


def curves_of_result(result: ExperimentResult) -> list[Curve]:
    """Return the curves of a finished experiment, like `curves_of_summary`."""
    failed = {trial.number for trial in result.trials if is_failure(trial.cause)}
    return _curves(
        (each.parameters, partial(_mean, each))
        for each in result.combinations
        if failed.isdisjoint(each.trials)
    )


def _mean(combination: CombinationResult, key: RowKey) -> float | None:
    found = combination.values.get(f"{key.tag}_{key.stat}")
    return None if found is None else found.mean


def _curves(rows: Iterable[tuple[Parameters, Mean]]) -> list[Curve]:
    found: dict[bytes, Curve] = {}
    for parameters, mean in rows:
        level = next((name for name in LEVELS if is_number(parameters.get(name))), None)
        throughput, latency_ms = mean(_THROUGHPUT), mean(_LATENCY)
        if level is None or not throughput or not latency_ms:
            continue
        rest = {name: value for name, value in parameters.items() if name != level}
        point = CurvePoint(1e3 / latency_ms, throughput, float(parameters[level]))
        curve = found.get(identity(rest), Curve(rest, ()))
        points = sorted((*curve.points, point), key=lambda each: each.level)
        found[identity(rest)] = Curve(rest, tuple(points))
    return [each for each in found.values() if len(each.points) > 1]


def pareto(points: Iterable[CurvePoint]) -> list[CurvePoint]:
    """Return the points that no other point beats in both speed and throughput, by increasing
    speed."""
    best: list[CurvePoint] = []
    for each in sorted(points, key=lambda one: (one.per_user, one.of_system), reverse=True):
        if not best or each.of_system > best[-1].of_system:
            best.append(each)
    return best[::-1]


def steps(points: Sequence[CurvePoint]) -> list[tuple[float, float]]:
    """Return the corners of the step function through the points of a front: speed of a user and
    throughput. It begins at the slowest point and ends at the fastest."""
    corners: list[tuple[float, float]] = []
    for each in points:
        if corners:
            corners.append((corners[-1][0], each.of_system))
        corners.append((each.per_user, each.of_system))
    return corners
