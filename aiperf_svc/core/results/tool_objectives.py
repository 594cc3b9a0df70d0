"""Objectives on the metrics of a benchmark that ran a tool on ranks: checked and judged.

A limit is a number in the metric's unit, or a text with a unit of its kind: `9Gbit/s`, `250us`,
`1.5GB/s`, `2%`.
"""

from collections.abc import Callable, Sequence

from aiperf_svc.config.slo import Slo
from aiperf_svc.config.units import parse_bit_rate, parse_duration_ns, parse_size
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.results.slo_results import ObjectiveResult, outside
from aiperf_svc.core.results.tool_result import STATS, MetricResult
from aiperf_svc.domain.nearest import did_you_mean

_NS_PER = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


def check_objectives(slo: Slo, metrics: Sequence[MetricInfo]) -> list[str]:
    """Return every problem of the objectives as one line: what is wrong, and what was expected."""
    by_tag = {metric.tag: metric for metric in metrics}
    problems = []
    for number, objective in enumerate(slo.objectives):
        where = f"slo.objectives.{number}"
        metric = by_tag.get(objective.metric)
        if metric is None:
            problems.append(f"{where}.metric: {_unknown(objective.metric, list(by_tag))}")
            continue
        if objective.stat not in STATS:
            expected = "avg, min, max or p50, over repetitions and steps"
            problems.append(f"{where}.stat: {objective.stat!r}: expected {expected}")
        for bound, raw in objective.bounds:
            try:
                limit_of(metric, raw)
            except ValueError as error:
                problems.append(f"{where}.{bound}: {raw!r}: {error}")
    return problems


def judge_objectives(
    slo: Slo, infos: Sequence[MetricInfo], measured: Sequence[MetricResult]
) -> tuple[ObjectiveResult, ...]:
    """Compare every limit with what was measured. What was not measured is not judged. The
    objectives have passed `check_objectives` with these `infos`."""
    by_tag = {metric.tag: metric for metric in infos}
    found = {metric.info.tag: metric for metric in measured}
    results = []
    for objective in slo.objectives:
        tag, stat = objective.metric, objective.stat
        value = found[tag].stat(stat) if tag in found else None
        for bound, raw in objective.bounds:
            limit = limit_of(by_tag[tag], raw)
            reason = "not measured" if value is None else outside(value, bound, limit)
            unit = by_tag[tag].unit
            results.append(
                ObjectiveResult(
                    tag,
                    stat,
                    bound,
                    limit,
                    value,
                    unit,
                    ok=not reason,
                    reason=reason,
                    judged=value is not None,
                )
            )
    return tuple(results)


def limit_of(metric: MetricInfo, limit: float | str) -> float:
    """Return a limit in the metric's unit. Raises ValueError that says what is expected."""
    if not isinstance(limit, str):
        return float(limit)
    text = limit.strip()
    try:
        return float(text)
    except ValueError:
        pass
    parse = _PARSERS.get(metric.unit)
    if parse is not None:
        return parse(text)
    try:
        return float(text.removesuffix(metric.unit))
    except ValueError:
        raise ValueError(f"expected a number of {metric.unit}") from None


def _duration_in(unit: str) -> Callable[[str], float]:
    return lambda text: parse_duration_ns(text) / _NS_PER[unit]


def _byte_rate(text: str) -> float:
    try:
        return float(parse_size(text.removesuffix("/s")))
    except ValueError:
        raise ValueError('expected a rate of bytes such as "500MB/s" or "1.5Gi/s"') from None


def _ratio(text: str) -> float:
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise ValueError('expected a ratio such as "2%" or 0.02') from None


_PARSERS: dict[str, Callable[[str], float]] = {
    "bit/s": lambda text: float(parse_bit_rate(text)),
    "bytes/s": _byte_rate,
    "bytes": lambda text: float(parse_size(text)),
    "ratio": _ratio,
    **{unit: _duration_in(unit) for unit in _NS_PER},
}


def _unknown(tag: str, tags: list[str]) -> str:
    hint = did_you_mean(tag, tags, f"expected {', '.join(tags)}")
    return f"{tag!r} is not a metric of this workload{hint}"
