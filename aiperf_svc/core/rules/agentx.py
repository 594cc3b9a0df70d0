"""The rules of InferenceX's AgentX for runs at fixed numbers of live session trees.

`scenario: agentx` sets what they fix. Requirements that depend on a run's config and results are
checked here. InferenceX runs a fork of AIPerf on its own corpus, so a conforming run is still not
an InferenceX result.
"""

from collections.abc import Callable, Iterable, Sequence

from aiperf_svc.config.agentx import RULES, expected_keys, is_fast, key_outcome
from aiperf_svc.core.rules.measured_point import (
    NO_RECORDS,
    Found,
    MeasuredPoint,
    of_check,
    valid_verdict,
)
from aiperf_svc.core.rules.report import (
    CurvePoint,
    PointOutcome,
    Requirement,
    RulesReport,
    of_curve,
    of_points,
    outcome_of,
)

NAME = RULES.name
MIN_DURATION_S, FAST_S, WHOLE_S = 900.0, 1_200.0, 3_600.0
"""Minimum length of a valid run, and the lengths of the fast and the usual mode."""
MAX_ERROR_SHARE, MAX_OVERFLOW_SHARE = 0.10, 0.01
"""Maximum shares of the requests: errors except context overflows, and context overflows."""


def min_duration_s(concurrency: int) -> float:
    """Return the minimum time of a steady state: the shortest run's, since the rules have none."""
    return MIN_DURATION_S


def verify(points: Sequence[MeasuredPoint], c_max: int | None = None) -> RulesReport:
    """Judge runs. `c_max` is ignored, because these rules have no curve."""
    points = sorted(points, key=lambda each: each.concurrency)
    return RulesReport(
        rules=NAME,
        version=RULES.version,
        source=RULES.source,
        regions={},
        points=tuple(map(_curve_point, points)),
        requirements=(*_config_requirements(points), *_run_requirements(points), *_unchecked()),
    )


def _config_requirements(points: Sequence[MeasuredPoint]) -> Iterable[Requirement]:
    for key, expected in expected_keys():
        outcomes = []
        for point in points:
            is_met, text = key_outcome(point.result.config, key, expected)
            outcomes.append(PointOutcome(point.concurrency, outcome_of(is_met), text))
        yield of_points(key, "config", outcomes)


def _run_requirements(points: Sequence[MeasuredPoint]) -> Iterable[Requirement]:
    checks: tuple[tuple[str, Callable[[MeasuredPoint], Found]], ...] = (
        ("live-session-trees", _load),
        ("duration", _duration),
        ("forced-length", _forced),
        ("errors", _errors),
        ("context-overflow", _overflows),
        ("valid-verdict", valid_verdict),
    )
    for rule, check in checks:
        yield of_check(rule, "run", check, points)


def _load(point: MeasuredPoint) -> Found:
    if not point.concurrency:
        return False, "the load is not a closed loop with load.concurrency"
    return True, f"{point.concurrency:,} live session trees"


def _duration(point: MeasuredPoint) -> Found:
    seconds = point.load_s
    if seconds is None:
        return NO_RECORDS
    if seconds < MIN_DURATION_S:
        return False, f"{seconds:,.0f} s; a run under {MIN_DURATION_S:,.0f} s is not valid"
    min_s, mode = (FAST_S, " (fast mode)") if is_fast(point.result.config) else (WHOLE_S, "")
    # A phase ends a moment before its time.
    return seconds >= min_s - 1, f"{seconds:,.0f} s, expected {min_s:,.0f}{mode}"


def _forced(point: MeasuredPoint) -> Found:
    built = point.result.topology.dataset
    probe = built.forced_output_length if built else None
    if probe is not None and probe.finding == "refused":
        return False, "the server refuses `ignore_eos` and `min_tokens`"
    return True, "requests set the recorded output length"


def _errors(point: MeasuredPoint) -> Found:
    errors = point.result.value("error_request_count") or 0.0
    return _share(point, errors - (_overflow_count(point) or 0.0), MAX_ERROR_SHARE)


def _overflows(point: MeasuredPoint) -> Found:
    count = _overflow_count(point)
    if count is None:
        return None, "the run's version of aiperf-svc does not count them"
    return _share(point, count, MAX_OVERFLOW_SHARE)


def _overflow_count(point: MeasuredPoint) -> float | None:
    return point.result.value("context_overflow_count")


def _share(point: MeasuredPoint, count: float, max_share: float) -> Found:
    requests = point.result.value("request_count") or 0.0
    total = requests + (point.result.value("error_request_count") or 0.0)
    if not total:
        return False, "no requests"
    share = count / total
    return share <= max_share, f"{share:.1%} of {total:,.0f} requests, at most {max_share:.0%}"


def _unchecked() -> Iterable[Requirement]:
    for rule, text in (
        ("reference-client", "these runs were measured by aiperf-svc, not by InferenceX's client"),
        ("corpus", "it is unknown whether the trace is a published corpus"),
    ):
        yield of_curve(rule, "run", None, text)


def _curve_point(point: MeasuredPoint) -> CurvePoint:
    # AgentX has statistics over the requests that completed.
    rates = point.whole if point.sent is None else point.sent.completed
    return CurvePoint(
        folder=point.folder,
        concurrency=point.concurrency,
        region="",
        basis="whole run",
        system_tps=rates.system_tps,
        tps_per_user=1e3 / rates.tpot_p90_ms if rates.tpot_p90_ms else None,
        ttft_p90_ms=rates.ttft_p90_ms,
        tpot_p90_ms=rates.tpot_p90_ms,
    )
