"""The rules of MLPerf Endpoints 1.0 for one curve: runs of one model on one system at several
concurrencies.

Requirements have the names of the rules' submission checker where it has one. Everything that
follows from the measurement is checked here. Statements of a submission about system, power,
software and weights are listed as not checkable. Conforming runs are still not an MLPerf result,
because only the reference client may produce one.
"""

from collections.abc import Callable, Iterable, Sequence

from aiperf_svc.config.concurrency_regions import ULTRA_LOW_END, Region, Regions, regions_of
from aiperf_svc.core.experiments.scenario_result import min_queries
from aiperf_svc.core.rules.measured_point import (
    NO_RECORDS,
    Found,
    MeasuredPoint,
    Rates,
    of_check,
    valid_verdict,
)
from aiperf_svc.core.rules.report import CurvePoint, Requirement, RulesReport, of_curve
from aiperf_svc.core.rules.steady_state import MIN_PASSES
from aiperf_svc.domain.number_text import count, significant

NAME = "mlperf-endpoints-1.0"
VERSION = "MLPerf Endpoints rules 1.0, draft of 2026-10-02"
SOURCE = "mlcommons/endpoints_policies d2d9da6"
MIN_POINTS = 7
"""Minimum points at fixed concurrencies. A dedicated Offline run is an additional point."""
MAX_POINTS = 32
MIN_OFFLINE_SHARE = 0.98
"""Minimum throughput of a dedicated Offline run, as a share of the highest concurrency's."""
MAX_WARMUP_S = 86_400.0
_SALTED = ("system_suffix", "first_turn_prefix")
"""Positions of the marker between the system prompt and the user's text."""


def min_duration_s(concurrency: int) -> float:
    """Return the minimum issuing time of a point in the steady state (section 6.2)."""
    return 600.0 if concurrency <= ULTRA_LOW_END else 1200.0


def verify(points: Sequence[MeasuredPoint], c_max: int | None = None) -> RulesReport:
    """Judge the points of a curve. `c_max` is the declared maximum concurrency; the default is the
    highest point's."""
    points = sorted(points, key=lambda each: each.concurrency)
    offline = [each for each in points if each.is_offline]
    curve = [each for each in points if each.concurrency and not each.is_offline]
    levels = [each.concurrency for each in curve]
    highest = c_max or max(levels, default=0)
    try:
        regions = regions_of(min(levels, default=0), highest)
        problem = ""
    except ValueError as error:
        regions, problem = None, str(error)
    return RulesReport(
        rules=NAME,
        version=VERSION,
        source=SOURCE,
        regions={str(each): regions.span(each) for each in Region} if regions else {},
        points=tuple(_curve_point(each, regions) for each in points),
        requirements=(
            *_curve_structure(levels, len(offline), highest, regions, problem),
            *_offline(curve, offline, highest),
            *_points(points, curve),
            *_consistency(points),
            _accuracy(curve, regions),
            *_unchecked(),
        ),
    )


def _curve_structure(
    levels: Sequence[int], dedicated: int, highest: int, regions: Regions | None, problem: str
) -> Iterable[Requirement]:
    declared = f"the highest concurrency is {highest:,}; expected more than {ULTRA_LOW_END}"
    yield of_curve("max-concurrency-declared", "5.4", highest > ULTRA_LOW_END, declared)
    yield of_curve("region-computation", "5.5", regions is not None, problem or _spans(regions))
    for region in Region:
        rule = f"{region.lower().replace(' ', '-').replace('medium', 'med')}-concurrency-coverage"
        if regions is None and region is not Region.ULTRA_LOW:
            yield of_curve(rule, "5.3", None, problem)
            continue
        low, high = regions.span(region) if regions else (1, ULTRA_LOW_END)
        inside = [level for level in levels if low <= level <= high]
        text = f"{_listed(inside) or 'no point'} in {low:,} to {high:,}"
        yield of_curve(rule, "5.3", bool(inside), text)
    if regions is not None:
        beyond = [level for level in levels if level > regions.margin_end]
        text = f"{_listed(beyond)} above {regions.margin_end:,}" if beyond else "all points"
        yield of_curve("concurrency-in-range", "5.4", not beyond, text)
    distinct = len(set(levels))
    min_points = MIN_POINTS + (1 if dedicated else 0)
    total = distinct + dedicated
    missing = f", {min_points - total} too few" if total < min_points else ""
    text = f"{total} points, expected {min_points} or more{missing}"
    yield of_curve("point-count", "5.3", total >= min_points, text)
    text = f"{total} points, expected {MAX_POINTS} or fewer"
    yield of_curve("point-cap", "5.6", total <= MAX_POINTS, text)


def _spans(regions: Regions | None) -> str:
    if regions is None:
        return ""
    spans = ((region, regions.span(region)) for region in Region)
    return ", ".join(f"{region} {low:,}–{high:,}" for region, (low, high) in spans)


def _offline(
    curve: Sequence[MeasuredPoint], offline: Sequence[MeasuredPoint], highest: int
) -> Iterable[Requirement]:
    if any(each.has_conversations for each in curve):
        text = "none for a benchmark of conversations"
        yield of_curve("offline-point-present", "5.7", not offline, text)
        return
    at_top = next((each for each in curve if each.concurrency == highest), None)
    if not offline:
        text = f"the point at {highest:,} is elected as the Offline result"
        if at_top is None:
            text = f"no run with all requests at once, and no point at {highest:,} to elect"
        yield of_curve("offline-point-present", "5.7", at_top is not None, text)
        return
    text = f"{count(len(offline), 'run')} with all requests at once, expected one"
    yield of_curve("offline-point-present", "5.7", len(offline) == 1, text)
    rate, top = (each and _official(each).system_tps for each in (offline[0], at_top))
    if not rate or not top:
        text = f"no output tokens per second at {highest:,} and Offline"
        yield of_curve("offline-ordering", "5.7.2", None, text)
        return
    share, users = rate / top, offline[0].concurrency
    text = f"{share:.3f} of the throughput at {highest:,}, expected {MIN_OFFLINE_SHARE} or more"
    text += f"; concurrency {users:,}, expected {highest:,} or more"
    is_met = share >= MIN_OFFLINE_SHARE and users >= highest
    yield of_curve("offline-ordering", "5.7.2", is_met, text)


def _points(
    points: Sequence[MeasuredPoint], curve: Sequence[MeasuredPoint]
) -> Iterable[Requirement]:
    """Return the requirements for single points; some only apply to fixed concurrencies."""
    checks: tuple[tuple[str, str, Callable[[MeasuredPoint], Found], bool], ...] = (
        ("load-pattern", "6.1", _load_pattern, False),
        ("point-duration", "6.2", _duration, False),
        ("steady-state", "4.4", _steady_state, True),
        ("min-query-count", "6.4", _queries, False),
        ("sample-multiple", "6.4", _multiple, False),
        ("sample-order", "6.5", _order, False),
        ("streaming-config", "6.5", _streaming, True),
        ("salt", "2.9.5.1", _salt, False),
        ("warmup-data", "6.3.1", _warmup, False),
        ("warmup-duration", "6.3", _warmup_length, False),
        ("metric-consistency", "9.1", _metrics, True),
        ("early-stopping", "client", _early_stopping, True),
        ("valid-verdict", "–", valid_verdict, False),
    )
    for rule, section, check, is_for_curve in checks:
        yield of_check(rule, section, check, curve if is_for_curve else points)


def _load_pattern(point: MeasuredPoint) -> Found:
    if not point.concurrency:
        return False, "the load is not a closed loop with load.concurrency"
    if point.is_offline:
        return True, "all requests at once"
    keys = [key for key in ("ramp", "prefill_concurrency", "cancellation") if _has(point, key)]
    if keys:
        return False, f"load.{keys[0]} changes the concurrency"
    return True, "fixed concurrency"


def _has(point: MeasuredPoint, key: str) -> bool:
    return getattr(point.load, key) not in (None, 0, "0", "0s")


def _duration(point: MeasuredPoint) -> Found:
    if point.sent is None:
        return NO_RECORDS
    min_s = min_duration_s(point.concurrency)
    is_window = bool(point.sent.window.length) and not point.has_conversations
    span = point.sent.window_span_s if is_window else point.sent.span_s
    if point.is_offline:
        # All its requests start at the same time.
        is_window, span = False, point.result.value("benchmark_duration") or span
    scope = "steady state" if is_window else "whole run"
    short = f", {min_s - span:,.0f} s too short" if span < min_s else ""
    return span >= min_s, f"{scope} of {span:,.0f} s, expected {min_s:,.0f} s{short}"


def _steady_state(point: MeasuredPoint) -> Found:
    if point.sent is None:
        return NO_RECORDS
    if point.has_conversations:
        return None, "the rules have no detector for conversations"
    window = point.sent.window
    trend = ""
    if window.has_trend:
        direction = "rises" if window.drift > 0 else "falls"
        trend = f"; the time per token {direction} by {abs(window.drift):.0%} over the run"
    if not window.length:
        found = "partial_dataset" if not window.super_passes else "insufficient_passes"
        if window.super_passes > MIN_PASSES:
            found = "not found"
        text = f"{found}: no {MIN_PASSES} steady super-passes among {window.super_passes}"
        return False, text + trend
    if point.sent.window_span_s < min_duration_s(point.concurrency):
        text = f"insufficient_duration: {window.length} super-passes in "
        return False, f"{text}{point.sent.window_span_s:,.0f} s{trend}"
    text = f"windowable: super-passes {window.first + 1} to {window.first + window.length} of "
    return True, f"{text}{window.super_passes}{trend}"


def _queries(point: MeasuredPoint) -> Found:
    done, min_completed = point.result.accounts.completed, point.entries
    if not min_completed:
        return None, "the size of the dataset is not in the results"
    short = f", {min_completed - done:,} too few" if done < min_completed else ""
    return (
        done >= min_completed,
        f"{done:,} completed, expected one pass of {min_completed:,}{short}",
    )


def _multiple(point: MeasuredPoint) -> Found:
    if not point.entries:
        return None, "the size of the dataset is not in the results"
    passes, rest = divmod(point.issued, point.entries)
    text = f"{point.issued:,} issued: {passes:,} passes of {point.entries:,}"
    return passes > 0 and not rest, f"{text} and {rest:,} more" if rest else text


def _order(point: MeasuredPoint) -> Found:
    order = point.dataset.order
    return order == "random", f"dataset.order {order}, expected random (with replacement)"


def _streaming(point: MeasuredPoint) -> Found:
    is_on = point.result.config_view.endpoint.streaming
    return is_on, f"endpoint.streaming {str(is_on).lower()}"


def _salt(point: MeasuredPoint) -> Found:
    place = point.dataset.cache_bust
    if place not in _SALTED:
        return False, f"dataset.cache_bust {place}, expected {' or '.join(_SALTED)}"
    if point.dataset.cache_bust_per == "request":
        return True, f"64 bits, a marker for each request, from seed and credit ({place})"
    if point.dataset.cache_bust_per == "conversation":
        return False, "dataset.cache_bust_per conversation: 48 bits, expected 64 and per request"
    if point.sent is None:
        return None, "it is unknown whether a marker was sent twice: no records.parquet"
    repeats = point.sent.repeats
    if repeats:
        unit = "conversations" if point.has_conversations else "requests"
        return False, f"{repeats:,} of {point.issued:,} {unit} repeat an entry with its marker"
    return True, f"64 bits, a marker for each entry, each sent once, from the seed ({place})"


def _warmup(point: MeasuredPoint) -> Found:
    if not point.has_warmup:
        return True, "no warmup"
    if point.dataset.cache_bust == "none":
        return False, "the warmup sends prompts of the dataset without a marker"
    return True, "prompts of the dataset with markers"


def _warmup_length(point: MeasuredPoint) -> Found:
    if not point.has_warmup:
        return True, "no warmup"
    if point.warmup_s is None:
        return None, "the warmup has no duration in the config; its time is not in the results"
    expected = f"expected {MAX_WARMUP_S:,.0f} or less"
    return point.warmup_s <= MAX_WARMUP_S, f"{point.warmup_s:,.0f} s, {expected}"


def _metrics(point: MeasuredPoint) -> Found:
    if violations := point.result.accounts.violations:
        return False, "; ".join(violations)
    tpot = _official(point).tpot_p90_ms
    if not tpot:
        return False, "no P90 of the time per output token"
    return True, f"accounts balance; P90 of the time per output token {significant(tpot)} ms"


def _early_stopping(point: MeasuredPoint) -> Found:
    min_count = min_queries(0.9)
    if point.sent is None:
        return NO_RECORDS
    official = _official(point)
    ttft, tpot = official.ttft_p90_bound_ms, official.tpot_p90_bound_ms
    if ttft is None or tpot is None:
        return (
            False,
            f"{point.issued:,} requests, too few for a bound of P90, which needs {min_count}",
        )
    bounds = f"TTFT {significant(ttft)} ms, TPOT {significant(tpot)} ms"
    return True, f"with 99% confidence P90 is within {bounds}"


def _consistency(points: Sequence[MeasuredPoint]) -> Iterable[Requirement]:
    """Return the requirements on the common properties of all points."""
    every = [each.facts for each in points]
    keys = {key: None for facts in every for key in facts}
    differing = [key for key in keys if len({facts.get(key) for facts in every}) > 1]
    text = f"differs: {', '.join(differing)}" if differing else "model, endpoint, dataset, client"
    yield of_curve("config-consistency", "9.1", not differing, text)
    yield _stack(points)
    seeds = {each.result.config.get("random_seed", 0) for each in points}
    text = f"random_seed {', '.join(map(str, sorted(seeds)))}"
    yield of_curve("seed-set-consistency", "9.1", len(seeds) <= 1, text)


def _stack(points: Sequence[MeasuredPoint]) -> Requirement:
    """Return whether the known hardware and software of client and target is the same at all
    points."""
    rule, section = "stack-consistency", "8.2"
    stated: dict[str, set[str]] = {}
    for point in points:
        for name, value in point.stack.items():
            stated.setdefault(name, set()).add(value)
    of_target = sum(name.startswith("target.") for name in stated)
    if differing := [name for name, values in stated.items() if len(values) > 1]:
        return of_curve(rule, section, False, f"differs: {', '.join(differing)}")
    if not of_target or not all(point.stack for point in points):
        return of_curve(rule, section, None, "provenance.json has no facts about the target")
    text = f"{of_target} facts about the target and {len(stated) - of_target} about the client"
    return of_curve(rule, section, True, f"{text} in provenance.json")


def _accuracy(curve: Sequence[MeasuredPoint], regions: Regions | None) -> Requirement:
    """Return whether each region has a point with a passed quality gate. Its questions come from
    the config, not from the data set of a benchmark."""
    rule, section = "accuracy-coverage", "4.3"
    known = {each.concurrency: each.result.quality for each in curve if each.result.quality}
    if not known or regions is None:
        return of_curve(rule, section, None, "these runs have no quality gate")
    missing = []
    for region in Region:
        low, high = regions.span(region)
        if not any(low <= level <= high for level in known):
            missing.append(f"no gate in {region}")
    missing += [f"{level:,}: {found.problem}" for level, found in known.items() if not found.is_met]
    missing += [f"{n:,}: no min_score" for n, found in known.items() if found.min_score is None]
    text = f"gates passed at {_listed(list(known))}, with questions of the config"
    return of_curve(rule, section, not missing, "; ".join(missing) or text)


def _unchecked() -> Iterable[Requirement]:
    for rule, section, text in (
        ("reference-client", "2.1.1", "these runs were measured by aiperf-svc"),
        ("leading-filler", "6.5", "it is unknown whether the first token is the model's"),
        ("warmup-declaration", "6.3", "these runs have no file with the six warmup fields"),
        ("accuracy-reference", "4.3", "the reference for score (99%) and length (±10%) is unknown"),
        ("accuracy-repeats", "4.3", "the mean of several runs of conversations is not computed"),
        ("accuracy-offline", "4.3", "the accuracy of the Offline point is not judged separately"),
        ("seed-set-membership", "9.1", "a published set has three seeds; aiperf-svc has one"),
        ("token-counts", "2.8", "tokens are not counted with the reference chat template"),
        ("approved-drafter", "2.9.4", "the results do not contain the server's draft model"),
        ("output-caching", "2.2.1", "needs runs of one repeated prompt"),
        ("system-description", "8.2", "these runs have no system_desc.json"),
        ("power-descriptor", "4.5.2", "these runs have no system_power.json"),
    ):
        yield of_curve(rule, section, None, text)


def _official(point: MeasuredPoint) -> Rates:
    return point.sent.steady if point.sent is not None and _is_steady(point) else point.whole


def _is_steady(point: MeasuredPoint) -> bool:
    return bool(_steady_state(point)[0]) and not point.is_offline


def _curve_point(point: MeasuredPoint, regions: Regions | None) -> CurvePoint:
    rates = _official(point)
    per_user = 1e3 / rates.tpot_p90_ms if rates.tpot_p90_ms else None
    return CurvePoint(
        folder=point.folder,
        concurrency=point.concurrency,
        region="Offline" if point.is_offline else _region(point.concurrency, regions),
        basis="steady state" if _is_steady(point) else "whole run",
        system_tps=rates.system_tps,
        tps_per_user=rates.turn_tps if point.has_conversations else per_user,
        ttft_p90_ms=rates.ttft_p90_ms,
        tpot_p90_ms=rates.tpot_p90_ms,
        ttft_p90_bound_ms=rates.ttft_p90_bound_ms,
        tpot_p90_bound_ms=rates.tpot_p90_bound_ms,
        window=point.sent.window if point.sent else None,
    )


def _region(concurrency: int, regions: Regions | None) -> str:
    if regions is None:
        return ""
    if concurrency <= regions.c_min:
        return str(Region.ULTRA_LOW)
    inside = (
        region
        for region in (Region.LOW, Region.MEDIUM, Region.HIGH)
        if regions.span(region)[0] <= concurrency <= regions.span(region)[1]
    )
    found = next(inside, None)
    if found is None:
        return "margin" if regions.c_max < concurrency <= regions.margin_end else ""
    return str(found)


def _listed(levels: Sequence[int]) -> str:
    return ", ".join(f"{level:,}" for level in levels)
