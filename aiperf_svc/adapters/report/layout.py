"""What all pages of the report are made of: the document, the verdict, tables and their cells."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from urllib.parse import quote

from aiperf_svc.core.results.slo_results import outcome_word
from aiperf_svc.core.verdict.check_result import Reason, Severity, Verdict
from aiperf_svc.domain import number_text


def document(title: str, parts: Iterable[str]) -> bytes:
    """Render a self-contained page. `parts` are HTML; empty ones are left out."""
    style = files(__package__).joinpath("style.css").read_text("utf-8")
    body = "\n".join(part for part in parts if part)
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}: benchmark report</title><style>\n{style}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )
    return page.encode()


def header(name: str, facts: Iterable[str]) -> str:
    """Render the title and a line of facts."""
    line = escape(" · ".join(fact for fact in facts if fact))
    return f"<header><h1>{escape(name)}</h1><p>{line}</p></header>"


def verdict_box(
    verdict: Verdict, headlines: Mapping[Severity, str], causes: Mapping[str, str]
) -> str:
    """Render the verdict with the checks that did not pass."""
    headline = causes.get(verdict.cause, headlines[verdict.verdict])
    reasons = "".join(
        f"<li>{escape(_sentence(reason.text))} <span>{escape(_sentence(reason.remedy))}</span></li>"
        for reason in verdict.reasons
    )
    return (
        f'<div class="verdict {verdict.verdict}"><h2>Verdict: <b>{escape(verdict.label)}</b>. '
        f"{headline}</h2>{f'<ul>{reasons}</ul>' if reasons else ''}</div>"
    )


def system_box(verdict: Severity, reasons: Iterable[Reason], told: Iterable[Reason]) -> str:
    """Render the verdict on the system under test: what did not pass, then what is only told."""
    lines = [
        f"<li>{escape(_sentence(each.text))} <span>{escape(_sentence(each.remedy))}</span></li>"
        for each in reasons
    ]
    lines += [f"<li>{escape(_sentence(each.text))}</li>" for each in told]
    return (
        f'<div class="verdict {verdict}"><h2>System: <b>{escape(verdict)}</b>. '
        f"What servers and GPUs said during the load:</h2><ul>{''.join(lines)}</ul></div>"
        if lines
        else ""
    )


def checks(reasons: Iterable[Reason]) -> str:
    """Render all checks of the verdict."""
    rows = [
        f'<tr class="{reason.severity}"><th>{escape(reason.check.replace("_", " "))}</th>'
        f'<td class="state">{escape(reason.severity)}</td>'
        f"{_judged(reason)}"
        f'<td class="wide">{escape(reason.text)}</td></tr>'
        for reason in reasons
    ]
    head = '<th>Check</th><th>Result</th><th>Measured</th><th>Limit</th><th class="text"></th>'
    return table(head, rows)


def _judged(reason: Reason) -> str:
    if reason.severity is Severity.INFO:
        return cell(None) * 2
    return cell(reason.measured) + cell(reason.limit)


def numbers(cells: Iterable[tuple[str, str, str]]) -> str:
    """Render large numbers: name, number and unit, as HTML."""
    boxes = "".join(
        f"<div><dt>{name}</dt><dd>{value} <small>{unit}</small></dd></div>"
        for name, value, unit in cells
    )
    return f'<dl class="numbers">{boxes}</dl>' if boxes else ""


def plots(figures: Sequence[str], *, title: str = "Plots") -> str:
    """Render the figures in two columns."""
    if not figures:
        return ""
    return f'<h2>{escape(title)}</h2><div class="plots">{"".join(figures)}</div>'


def details(title: str, content: str) -> str:
    """Render content that opens on a click; empty without content."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>" if content else ""


def table(head: str, rows: Sequence[str]) -> str:
    """Render a table in its card; empty without rows."""
    if not rows:
        return ""
    return (
        f'<section class="card"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></section>"
    )


def report_link(name: str, folder: str) -> str:
    """Return a name with a link to the report in its folder; the name alone if it has none."""
    if not folder:
        return escape(name)
    return f'<a href="{quote(folder)}/report.html">{escape(name)}</a>'


def row(name: str, unit: str, cells: str) -> str:
    """Render a row with its name and unit."""
    small = f" <small>{escape(unit)}</small>" if unit not in ("", "requests", "count") else ""
    return f"<tr><th>{escape(name)}{small}</th>{cells}</tr>"


def objective(
    name: str,
    bound: str,
    limit: float,
    unit: str,
    measured: str,
    *,
    ok: bool,
    judged: bool,
    reason: str,
) -> str:
    """Render the row of an objective; `measured` is its cell."""
    tone = "valid" if ok else "invalid" if judged else "degraded"
    return (
        f'<tr class="{tone}"><th>{escape(name)}</th>'
        f"<td>{'≤' if bound == 'max' else '≥'} {number(limit)} "
        f"{escape(unit)}</td>{measured}"
        f'<td class="state">{outcome_word(ok=ok, judged=judged)}</td>'
        f'<td class="wide">{escape(reason)}</td></tr>'
    )


def objectives(rows: Sequence[str]) -> str:
    """Render the table of all objectives."""
    head = "<th>Objective</th><th>Limit</th><th>Measured</th><th></th>"
    head += '<th class="text"></th>'
    return f"<h2>Service level objectives</h2>{table(head, rows)}" if rows else ""


def cell(value: float | None) -> str:
    """Render a number in a cell; a dash if it is not known."""
    return "<td><i>–</i></td>" if value is None else f"<td>{number(value)}</td>"


def number(value: float) -> str:
    """Render a number as a terminal shows it."""
    return escape(number_text.number(value))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith("?") else ".")
