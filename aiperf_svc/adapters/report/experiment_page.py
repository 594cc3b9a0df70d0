"""`report.html` of an experiment: all trials on one self-contained page without scripts."""

from collections.abc import Sequence
from urllib.parse import quote

from aiperf_svc.adapters.report import experiment_charts as charts
from aiperf_svc.adapters.report import experiment_texts
from aiperf_svc.adapters.report.blocks import (
    Block,
    Box,
    Cell,
    Code,
    Details,
    Header,
    Heading,
    Items,
    Note,
    Plots,
    Row,
    document,
    name_cell,
    number_cell,
    section,
    table,
)
from aiperf_svc.adapters.report.curve_chart import curve_plot, named
from aiperf_svc.config.workload import Config
from aiperf_svc.config.yaml_files import yaml_text
from aiperf_svc.core.experiments.choices import best_of
from aiperf_svc.core.experiments.combinations import TrialRow
from aiperf_svc.core.experiments.search_report import Ending, SearchReport
from aiperf_svc.core.experiments.summary import ExperimentSummary
from aiperf_svc.core.experiments.throughput_curve import curves_of_summary
from aiperf_svc.core.results.slo_results import MISSED, NOT_JUDGED

SHOWN_METRICS = 6
"""Maximum number of headline metrics with a column."""


def render(summary: ExperimentSummary, config: Config, search: SearchReport | None = None) -> bytes:
    kinds = dict.fromkeys(row.measured.kind for row in summary.rows if row.measured is not None)
    blocks = [
        Header(config.name, ["experiment", *kinds, experiment_texts.counts(summary)]),
        *sections(summary, search),
        Details("Configuration", [Code(yaml_text(config.model_dump(mode="json")))]),
    ]
    return document(config.name, blocks)


def sections(summary: ExperimentSummary, search: SearchReport | None = None) -> list[Block]:
    """Return the results of the trials, with links relative to the experiment's folder."""
    plots = [
        curve_plot(named(curves_of_summary(summary))),
        *(() if search is None else (charts.search_curve(search),)),
        *(() if search is None else (charts.search_path(summary, search),)),
        charts.throughput_against_latency(summary),
        *charts.by_parameter(summary),
        *charts.heat_maps(summary),
    ]
    return [
        *([_answer(search)] if search is not None else []),
        *problems(summary, search),
        *_best(summary, search),
        Plots([plot for plot in plots if plot is not None]),
        Heading("Combinations"),
        *combinations(summary),
        _trials(summary),
    ]


def problems(summary: ExperimentSummary, search: SearchReport | None = None) -> list[Block]:
    """Return the problems of the trials, and the trials that were run again."""
    return [
        *_left_out(summary),
        *_findings(summary),
        *section("Trials that were run again", Items(experiment_texts.replaced(summary.rows))),
        *(_slo(summary) if search is None else []),
    ]


def _answer(search: SearchReport) -> Box:
    tone = "valid" if search.ending is Ending.BRACKETED else "degraded"
    return Box(tone, f"{search.parameter} {search.result}")


def _slo(summary: ExperimentSummary) -> list[Block]:
    blocks: list[Block] = []
    for outcome in (MISSED, NOT_JUDGED):
        if lines := experiment_texts.not_held(summary.rows_with_slo(outcome)):
            title = f"The SLO is {outcome} in {len(lines)} of {len(summary.rows)} trials."
            blocks.append(Box("degraded", title, [(line, "") for line in lines]))
    return blocks


def _findings(summary: ExperimentSummary) -> list[Block]:
    return [
        Box(
            each.severity, f"The {name} is {each.share}.", [(f"worst in {each.worst}", each.remedy)]
        )
        for name, found in experiment_texts.findings(summary).items()
        for each in found
    ]


def _left_out(summary: ExperimentSummary) -> list[Block]:
    lines = experiment_texts.left_out(summary.left_out)
    if not lines:
        return []
    tone = "invalid" if len(lines) == len(summary.rows) else "degraded"
    verb = "does" if len(lines) == 1 else "do"
    title = f"{len(lines)} of {len(summary.rows)} trials {verb} not count."
    return [Box(tone, title, [(line, "") for line in lines])]


def _best(summary: ExperimentSummary, search: SearchReport | None) -> list[Block]:
    found = best_of(summary, search)
    are_single = all(each.value.half_width is None for each in found)
    rows = []
    for each in found:
        value, where = experiment_texts.best_texts(summary, each, is_interval_noted=not are_single)
        name = name_cell(experiment_texts.metric_name(summary, each.key))
        rows.append(Row([name, Cell(value), Cell(where, "wide")]))
    note = Note("One run of each combination: the values have no confidence intervals.")
    return [
        table(("Best", "Value" if are_single else "Mean", Cell("At", "text")), rows),
        *([note] if rows and are_single else []),
    ]


def combinations(summary: ExperimentSummary) -> list[Block]:
    """Return the table of combinations with its notes."""
    metrics = experiment_texts.shown_metrics(summary, summary.headline[:SHOWN_METRICS])
    optimal, on_front = experiment_texts.optimal(summary, "★")
    rows = []
    for combination in summary.combinations:
        cells = [
            *experiment_texts.parameter_texts(summary, combination.parameters),
            experiment_texts.runs_text(combination),
        ]
        cells.append("★" if any(combination is each for each in optimal) else "")
        cells += [
            experiment_texts.mean_text(combination.values.get(each.key), each.per)
            for each in metrics
        ]
        rows.append(Row(list(map(Cell, cells))))
    interval = "half of its 95% confidence interval, in per cent of the mean"
    notes = [f"n: number of trials in the mean. ±: {interval}."]
    notes += [f"{on_front}."] if on_front else []
    notes += [f"{source}." for source in experiment_texts.token_sources(summary)]
    head = _heads(summary, (), ("n", ""), metrics)
    return [table(head, rows), Note(" ".join(notes))]


def _trials(summary: ExperimentSummary) -> Details:
    metrics = experiment_texts.shown_metrics(summary, summary.headline[:SHOWN_METRICS])

    def row(each: TrialRow) -> Row:
        trial, measured = each.outcome.trial, each.measured
        link = f"trials/{quote(each.outcome.folder)}/report.html" if measured is not None else ""
        values = measured.values if measured is not None else {}
        verdict = measured.verdict if measured is not None else ""
        cells = [
            Cell(str(trial.number), link=link),
            *map(Cell, experiment_texts.parameter_texts(summary, trial.parameters)),
            Cell(str(trial.repetition)),
            *(number_cell(values.get(metric.key), per=metric.per) for metric in metrics),
            Cell(each.left_out or (measured.label if measured is not None else ""), "state"),
        ]
        return Row(cells, "invalid" if each.left_out else verdict)

    head = [*_heads(summary, ("Trial",), ("Repetition",), metrics), Cell("Verdict", "wrap")]
    return Details("All trials", [table(head, [row(each) for each in summary.rows])])


def _heads(
    summary: ExperimentSummary,
    before: Sequence[str],
    after: Sequence[str],
    metrics: Sequence[experiment_texts.ShownMetric],
) -> list[Cell]:
    """Return the headings of the parameters, with those before and after them, and of the metrics.
    They wrap at dots, such as those of keys."""
    names = (*before, *(each.name for each in summary.parameters), *after)
    heads = [Cell(name, "wrap") for name in names]
    return [*heads, *(Cell(each.name, "wrap", unit=each.unit) for each in metrics)]
