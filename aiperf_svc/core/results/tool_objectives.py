"""Checks and judges objectives on the metrics of a benchmark that ran a tool on ranks."""

from collections.abc import Sequence

from aiperf_svc.config.slo import Slo
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.results.slo_results import ObjectiveResult, limit_of, outside
from aiperf_svc.core.results.tool_result import STATS, MetricResult
from aiperf_svc.domain.name_suggestions import did_you_mean


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
                limit_of(metric.unit, raw)
            except ValueError as error:
                problems.append(f"{where}.{bound}: {raw!r}: {error}")
    return problems


def judge_objectives(
    slo: Slo, infos: Sequence[MetricInfo], measured: Sequence[MetricResult]
) -> tuple[ObjectiveResult, ...]:
    """Compare every limit with the measurements. Limits without a measurement are not judged. The
    objectives have passed `check_objectives` with these `infos`."""
    by_tag = {metric.tag: metric for metric in infos}
    found = {metric.info.tag: metric for metric in measured}
    results = []
    for objective in slo.objectives:
        tag, stat = objective.metric, objective.stat
        value = found[tag].stat(stat) if tag in found else None
        for bound, raw in objective.bounds:
            limit = limit_of(by_tag[tag].unit, raw)
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


def _unknown(tag: str, tags: list[str]) -> str:
    hint = did_you_mean(tag, tags, f"expected {', '.join(tags)}")
    return f"{tag!r} is not a metric of this workload{hint}"
