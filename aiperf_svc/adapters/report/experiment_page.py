"""`report.html` of an experiment: all trials on one self-contained page without scripts.

Every text that came from outside (names, reasons, values of parameters) is escaped.
"""

from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from aiperf_svc.adapters.report import experiment_charts as charts
from aiperf_svc.adapters.report import experiment_words as words
from aiperf_svc.adapters.report import layout
from aiperf_svc.config.workload import Config
from aiperf_svc.config.yaml_files import yaml_text
from aiperf_svc.core.experiments.choices import best_of, front
from aiperf_svc.core.experiments.combinations import Combination, Parameter, TrialRow
from aiperf_svc.core.experiments.search_report import Ending, SearchReport
from aiperf_svc.core.experiments.summary import ExperimentSummary
from aiperf_svc.core.results.slo_results import MISSED, NOT_JUDGED

SHOWN_METRICS = 6
"""Metrics of the headline that have a column."""


def render(summary: ExperimentSummary, config: Config, search: SearchReport | None = None) -> bytes:
    """Render the file's content."""
    shown = escape(yaml_text(config.model_dump(mode="json")))
    return layout.document(
        config.name,
        [
            layout.header(config.name, _facts(summary)),
            *sections(summary, search),
            layout.details("Configuration", f"<pre>{shown}</pre>"),
        ],
    )


def sections(summary: ExperimentSummary, search: SearchReport | None = None) -> list[str]:
    """Render what is said of the trials, which are linked from the folder of the experiment."""
    course = [] if search is None else [charts.search_curve(search)]
    course += [] if search is None else [charts.search_path(summary, search)]
    plots = [
        *course,
        charts.throughput_against_latency(summary),
        *charts.by_parameter(summary),
        *charts.heat_maps(summary),
    ]
    return [
        _answer(search) if search is not None else "",
        _left_out(summary),
        _replaced(summary),
        _slo(summary) if search is None else "",
        _best(summary, search),
        layout.plots([plot for plot in plots if plot]),
        "<h2>Combinations</h2>",
        combinations(summary),
        _trials(summary),
    ]


def _facts(summary: ExperimentSummary) -> list[str]:
    kinds = dict.fromkeys(row.measured.kind for row in summary.rows if row.measured is not None)
    return ["experiment", *kinds, words.counts(summary)]


def _answer(search: SearchReport) -> str:
    tone = "valid" if search.ending is Ending.BRACKETED else "degraded"
    said = escape(f"{search.parameter} {search.result}")
    return f'<div class="verdict {tone}"><h2>{said}</h2></div>'


def _slo(summary: ExperimentSummary) -> str:
    blocks = []
    for outcome in (MISSED, NOT_JUDGED):
        lines = words.not_held(summary.rows_with_slo(outcome))
        if lines:
            items = "".join(f"<li>{escape(line)}</li>" for line in lines)
            title = f"The SLO is {outcome} in {len(lines)} of {len(summary.rows)} trials."
            blocks.append(f'<div class="verdict degraded"><h2>{title}</h2><ul>{items}</ul></div>')
    return "".join(blocks)


def _replaced(summary: ExperimentSummary) -> str:
    lines = words.replaced(summary.rows)
    if not lines:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<h2>Trials that were run again</h2><ul>{items}</ul>"


def _left_out(summary: ExperimentSummary) -> str:
    lines = words.left_out(summary.left_out)
    if not lines:
        return ""
    tone = "invalid" if len(lines) == len(summary.rows) else "degraded"
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    verb = "does" if len(lines) == 1 else "do"
    trials = f"{len(lines)} of {len(summary.rows)} trials {verb} not count."
    return f'<div class="verdict {tone}"><h2>{trials}</h2><ul>{items}</ul></div>'


def _best(summary: ExperimentSummary, search: SearchReport | None) -> str:
    rows = []
    for each in best_of(summary, search):
        divisor, unit = words.unit_of(summary, each.key)
        name = escape(words.metric_name(summary, each.key))
        value = escape(f"{words.mean_text(each.value, divisor)} {unit}")
        where = escape(words.best_place_text(each))
        rows.append(f'<tr><th>{name}</th><td>{value}</td><td class="wide">{where}</td></tr>')
    return layout.table('<th>Best</th><th>Mean</th><th class="text">At</th>', rows)


def combinations(summary: ExperimentSummary) -> str:
    """Render the table of the combinations."""
    keys = summary.headline[:SHOWN_METRICS]
    units = [words.unit_of(summary, key) for key in keys]
    found = front(summary)
    optimal = found.optimal if found is not None and len(found.points) > 1 else ()

    def row(of: Combination) -> str:
        values = [words.value_text(of.parameters.get(p.name)) for p in summary.parameters]
        mark = "★" if any(of is each for each in optimal) else ""
        values += [words.runs_text(of), mark]
        values += [
            words.mean_text(of.values.get(key), divisor)
            for key, (divisor, _) in zip(keys, units, strict=True)
        ]
        cells = "".join(f"<td>{escape(value)}</td>" for value in values)
        return f"<tr>{cells}</tr>"

    heads = [*map(_key_head, summary.parameters), "n", ""]
    for key, (_, unit) in zip(keys, units, strict=True):
        name = escape(words.metric_name(summary, key))
        heads.append(f"{name} <small>{escape(unit)}</small>" if unit else name)
    head = _head(heads)
    notes = ["n: trials that a mean is of. ±: half of its 95% interval."]
    if found is not None and optimal:
        up, down = (words.metric_name(summary, key) for key in (found.throughput, found.latency))
        notes.append(f"★: no other combination is better in {up} and in {down} at once.")
    table = layout.table(head, [row(each) for each in summary.combinations])
    return table + f'<p class="note">{escape(" ".join(notes))}</p>'


def _trials(summary: ExperimentSummary) -> str:
    keys = summary.headline[:SHOWN_METRICS]
    units = [words.unit_of(summary, key) for key in keys]

    def row(each: TrialRow) -> str:
        trial, measured = each.outcome.trial, each.measured
        link = f'<a href="trials/{quote(each.outcome.folder)}/report.html">{trial.number}</a>'
        cells = [link if measured is not None else str(trial.number)]
        cells += [
            escape(words.value_text(trial.parameters.get(p.name))) for p in summary.parameters
        ]
        cells.append(str(trial.repetition))
        for key, (divisor, _) in zip(keys, units, strict=True):
            value = measured.values.get(key) if measured is not None else None
            cells.append("–" if value is None else layout.number(value / divisor))
        said = measured.verdict if measured is not None else ""
        state = each.left_out or said
        tone = "invalid" if each.left_out else escape(said)
        shown = "".join(f"<td>{cell}</td>" for cell in cells)
        return f'<tr class="{tone}">{shown}<td class="state">{escape(state)}</td></tr>'

    heads = ["Trial", *map(_key_head, summary.parameters), "Repetition"]
    for key, (_, unit) in zip(keys, units, strict=True):
        name = escape(words.metric_name(summary, key))
        heads.append(f"{name} <small>{escape(unit)}</small>" if unit else name)
    head = _head([*heads, "Verdict"])
    return layout.details("All trials", layout.table(head, [row(each) for each in summary.rows]))


def _key_head(parameter: Parameter) -> str:
    """Render a dotted key, which breaks into lines at its dots."""
    return escape(parameter.name).replace(".", ".<wbr>")


def _head(names: Sequence[str]) -> str:
    return "".join(f'<th class="wrap">{name}</th>' for name in names)
