"""Texts of an experiment, shared by the terminal and HTML."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from aiperf_svc.core.compare.measured_run import RowKey
from aiperf_svc.core.experiments.choices import Best, front
from aiperf_svc.core.experiments.combinations import Aggregate, Combination, TrialRow
from aiperf_svc.core.experiments.summary import ExperimentSummary
from aiperf_svc.core.verdict.check_result import Reason, Severity
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import Parameters, parameters_text, value_text
from aiperf_svc.domain.number_text import count, number, readable_unit, with_half_width, with_unit


def unit_of(summary: ExperimentSummary, key: RowKey) -> tuple[float, str]:
    """Return the divisor and name of a unit in which all means of a value are short."""
    known = [each.values[key] for each in summary.combinations if key in each.values]
    return readable_unit(
        summary.metrics[key.tag].unit, max((abs(each.mean) for each in known), default=0.0)
    )


class ShownMetric(NamedTuple):
    """A headline value as shown in tables."""

    key: RowKey
    name: str
    per: float
    """Divisor of the unit."""
    unit: str


def shown_metrics(summary: ExperimentSummary, keys: Iterable[RowKey]) -> list[ShownMetric]:
    """Return the columns of values."""
    return [ShownMetric(key, metric_name(summary, key), *unit_of(summary, key)) for key in keys]


def parameter_texts(summary: ExperimentSummary, parameters: Parameters) -> list[str]:
    return [value_text(parameters.get(each.name)) for each in summary.parameters]


def optimal(summary: ExperimentSummary, mark: str) -> tuple[Sequence[Combination], str]:
    """Return the combinations on the front, and a note that explains their mark; empty unless the
    front has at least two combinations."""
    found = front(summary)
    if found is None or len(found.points) < 2 or not found.optimal:
        return (), ""
    up, down = (metric_name(summary, key) for key in (found.throughput, found.latency))
    others = "no other combination"
    if any(each.has_failed for each in found.points):
        others += " without a failed target or step"
    return found.optimal, f"{mark}: {others} is better in both {up} and {down}"


def metric_name(summary: ExperimentSummary, key: RowKey) -> str:
    """Name a statistic without its unit: `Time to First Token p99`."""
    stat = "" if key.stat == "avg" else f" {key.stat.replace('_', '.')}"
    return one_line(summary.metrics[key.tag].name) + stat


def mean_text(value: Aggregate | None, divisor: float) -> str:
    """Format a mean with half of its interval in per cent of the mean: `12.35 ± 4%`."""
    if value is None:
        return "–"
    return with_half_width(number(value.mean / divisor), value.mean, value.half_width)


def mean_with_unit(value: Aggregate, divisor: float, unit: str) -> str:
    """Format a mean with its unit before its interval: `12.35 ms ± 4%`, `75% ± 4%`."""
    mean, sign, half = mean_text(value, divisor).partition(" ±")
    return with_unit(mean, unit) + sign + half


def best_texts(
    summary: ExperimentSummary, best: Best, *, is_interval_noted: bool
) -> tuple[str, str]:
    """Return the best value, such as `75% ± 4%`, and its combination. Notes say that trials are
    left out, that there is no interval, or which combinations may be as good."""
    value = mean_with_unit(best.value, *unit_of(summary, best.key))
    text = parameters_text(best.combination.parameters)
    if best.combination.left_out:
        text += f" ({runs_text(best.combination)} trials)"
    if best.value.half_width is None and is_interval_noted:
        text += " (one run, without an interval)"
    names = [parameters_text(each.parameters) for each in best.rivals]
    if names:
        others = names[0] if len(names) == 1 else f"{len(names)} other combinations"
        text += f"; not distinguishable from {others}: the intervals overlap"
    return value, text


def runs_text(of: Combination) -> str:
    """Count the runs in a mean: `3`, or `2 of 3`."""
    used = len(of.rows) - len(of.left_out)
    return str(used) if used == len(of.rows) else f"{used} of {len(of.rows)}"


def counts(summary: ExperimentSummary) -> str:
    """Count the trials: `42 trials of 14 combinations`."""
    combinations = count(len(summary.combinations), "combination")
    return f"{count(len(summary.rows), 'trial')} of {combinations}"


def not_held(rows: Sequence[TrialRow]) -> list[str]:
    """Return a line for each trial with the objectives that it does not hold."""
    return [
        _trial_line(row, "; ".join(row.measured.not_held if row.measured else ())) for row in rows
    ]


class Finding(NamedTuple):
    """A check that did not pass in some trials."""

    severity: Severity
    share: str
    """`degraded in 5 of 6 trials`."""
    worst: str
    """The finding in the trial that is furthest beyond the limit."""
    remedy: str


def findings(summary: ExperimentSummary) -> dict[str, list[Finding]]:
    """Return the checks of the verdict and of the system under test that did not pass in the trials
    that count."""
    counting = [(row, row.measured) for row in summary.rows if row.measured and not row.left_out]
    return {
        "verdict": _findings([(row, measured.reasons) for row, measured in counting]),
        "system": _findings([(row, measured.system) for row, measured in counting]),
    }


def _findings(trials: Sequence[tuple[TrialRow, Sequence[Reason]]]) -> list[Finding]:
    failed: dict[str, list[tuple[Reason, TrialRow]]] = {}
    for row, reasons in trials:
        for reason in reasons:
            failed.setdefault(reason.check, []).append((reason, row))
    found = []
    for each in failed.values():
        reason, row = max(each, key=lambda pair: pair[0].measured)
        share = f"{reason.severity} in {len(each):,} of {len(trials):,} trials"
        found.append(Finding(reason.severity, share, _trial_line(row, reason.text), reason.remedy))
    return found


def replaced(rows: Sequence[TrialRow]) -> list[str]:
    """Return a line for each trial that was run again, with the reason."""
    replaced_rows = (row for row in rows if row.outcome.replaced)
    return [_trial_line(row, "; ".join(row.outcome.replaced)) for row in replaced_rows]


def left_out(rows: Sequence[TrialRow]) -> list[str]:
    """Return a line for each trial that was left out."""
    return [_trial_line(row, row.left_out) for row in rows]


def _trial_line(row: TrialRow, text: str) -> str:
    parameters = parameters_text(row.outcome.trial.parameters)
    return f"trial {row.number} ({parameters}): {one_line(text)}"


def token_sources(summary: ExperimentSummary) -> list[str]:
    """Return how tokens were counted, with a line for each method if the trials differ."""
    found = [row.measured.token_source for row in summary.rows if row.measured is not None]
    return [one_line(source) for source in dict.fromkeys(found) if source]
