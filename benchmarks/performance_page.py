"""The page of a benchmark's results: a table for each part, with the command that printed it."""

from typing import Any

INTRODUCTION = """\
# Performance

What was measured, on which machine, by which command. The server shares the machine's cores, so
compare ratios taken in one run, not rates between machines. Written by `make benchmark` from
[{source}](../benchmarks/results/{source}); not edited by hand.
"""
LONGEST_LIST = 12
"""A longer list is a timeline: it stays in the file."""


def page(results: dict[str, Any], *, source: str) -> str:
    """The page, as Markdown."""
    lines = [INTRODUCTION.format(source=source), "## The machine", ""]
    lines += _table([("", "")], results["machine"].items())
    lines += [f"Taken on {results['date']}.", ""]
    for part in results["parts"].values():
        lines += [f"## {part['title']}", "", f"`{part['command']}`, {part['took_s']:g} s", ""]
        if "failed" in part:
            lines += [f"Failed: {part['failed']}.", ""]
            continue
        figures = part["figures"]
        lines += _figures(figures if isinstance(figures, dict) else {"results": figures})
    return "\n".join(lines).rstrip() + "\n"


def _figures(figures: dict[str, Any]) -> list[str]:
    """Cases side by side become tables of their own; what is single goes into one."""
    lines: list[str] = []
    single: dict[str, Any] = {}
    for name, value in figures.items():
        if name == "machine":
            continue
        if name == "cases" and isinstance(value, dict):
            for case, found in value.items():
                lines += [f"### {case}", "", *_table([("figure", "value")], _flat(found))]
        elif isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            if len(value) <= LONGEST_LIST * 2:
                lines += [f"### {name}", "", *_rows(value)]
        elif isinstance(value, dict):
            lines += [f"### {name}", "", *_table([("figure", "value")], _flat(value))]
        else:
            single[name] = value
    if single:
        lines = _table([("figure", "value")], _flat(single)) + lines
    return lines


def _rows(rows: list[dict[str, Any]]) -> list[str]:
    """Objects with the same members, a row each."""
    flat = [dict(_flat(row)) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for row in flat:
        lines.append("| " + " | ".join(_text(row.get(name, "")) for name in columns) + " |")
    return [*lines, ""]


def _table(header: list[tuple[str, str]], pairs: Any) -> list[str]:
    lines = [f"| {left} | {right} |" for left, right in header]
    lines.append("| --- | ---: |")
    lines += [f"| {name} | {_text(value)} |" for name, value in pairs]
    return [*lines, ""]


def _flat(figures: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested members by their path; long lists stay in the file."""
    found: list[tuple[str, Any]] = []
    for name, value in figures.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict):
            found += _flat(value, f"{path}.")
        elif not isinstance(value, list):
            found.append((path, value))
        elif len(value) <= LONGEST_LIST and not any(isinstance(v, dict | list) for v in value):
            found.append((path, ", ".join(_text(v) for v in value)))
    return found


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")
