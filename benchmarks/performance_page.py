"""Generates the tables of docs/performance.md: one for each benchmark, with its command.

The page above `BEGIN` and below `END` is written by hand.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.performance_plots import Bar, bars

BEGIN = "<!-- Printed by benchmarks/performance_page.py from here. -->"
END = "<!-- Printed to here. -->"
SOURCE = "The tables of this part are printed from [{source}](../benchmarks/results/{source})."
CLIENT_BOUND = """\
`client-bound` means that the speed of the client alone explains the result. The server of these
loads adds no latency, so the client is the limit by design and the verdict says so: the rates are
the most that the client can do. Rates, CPU and memory of the client are valid figures; do not read
the latencies of such a run as those of the server.
"""
MAX_LIST_ITEMS = 12
"""Longer lists are timelines and stay in the file."""
PLOTS = {"speed": "performance-cpu.svg", "truth": "performance-truth.svg"}
"""File of each part's plot in `images/` next to the page."""

Figures = dict[str, Any]
Lines = list[str]


def page(current: str, results: Figures, *, source: str) -> str:
    """Return the current page with its generated part rebuilt from `results`."""
    above, rest = current.split(BEGIN)
    _, below = rest.split(END)
    return f"{above}{BEGIN}\n\n{_printed(results, source=source)}\n{END}{below}"


def _printed(results: Figures, *, source: str) -> str:
    lines = [SOURCE.format(source=source), "", "## The machine", ""]
    lines += _table(("", ""), results["machine"].items())
    lines += [f"Taken on {results['date']}.", ""]
    for name, part in results["parts"].items():
        stolen = part.get("stolen_share")
        of_host = f", {stolen:.1%} of the CPU taken by the host" if stolen is not None else ""
        cpu = part.get("cpu", results["machine"]["cpu"])
        # Parts of one day may come from different machines.
        where = f", on {cpu}" if cpu != results["machine"]["cpu"] else ""
        command_text = f"`{part['command']}`, {part['took_s']:g} s{where}{of_host}"
        lines += [f"## {part['title']}", "", command_text, ""]
        if "failed" in part:
            lines += [f"Failed: {part['failed']}.", ""]
            continue
        if name in PLOTS:
            lines += [f"![{part['title']}](images/{PLOTS[name]})", ""]
        view: Callable[[Any], Lines] = _VIEWS.get(name) or _any
        lines += view(part["figures"])
    return "\n".join(lines).rstrip() + "\n"


def plots(results: Figures) -> dict[str, str]:
    """Return SVG by file name for the measured parts that have a plot."""
    drawn = {"speed": _cpu_plot, "truth": _truth_plot}
    return {
        PLOTS[name]: draw(results["parts"][name]["figures"])
        for name, draw in drawn.items()
        if "figures" in results["parts"].get(name, {})
    }


# --- speed ---------------------------------------------------------------------------------------


def _speed(figures: Figures) -> Lines:
    cases = figures["cases"]
    loads = [name for name in ("requests", "streams", "interpreted") if name in cases]
    lines: Lines = []
    if loads:
        lines += [*_speed_summary({load: cases[load] for load in loads}), CLIENT_BOUND]
        flat = {load: dict(_flat(_verdict_first(cases[load]))) for load in loads}
        names = list(dict.fromkeys(name for load in loads for name in flat[load]))
        lines += _table(
            ("figure", *loads),
            ([name, *(flat[load].get(name) for load in loads)] for name in names),
        )
    for name, found in cases.items():
        if name not in loads:
            figures_of_case = _flat(_verdict_first(found))
            lines += [f"### {name}", "", *_table(("figure", "value"), figures_of_case)]
    rows = (
        (
            each["name"],
            each["value"],
            each["target"],
            "met" if each["met"] else "missed",
            cases[each["name"].partition(".")[0]].get("verdict"),
        )
        for each in figures["targets"]
    )
    return lines + _table(("target", "measured", "wanted", "", "verdict of the run"), rows)


def _speed_summary(loads: Figures) -> Lines:
    """Return the rates, each with the verdict of its run."""
    header = (
        *("load", "requests/s", "chunks/s", "of wrk", "CPU of a request, µs"),
        *("CPU of a chunk, µs", "verdict of the run"),
    )
    keys = (
        *("requests_per_s", "chunks_per_s", "ratio_to_wrk", "cpu_us_per_request"),
        *("cpu_us_per_chunk", "verdict"),
    )
    return _table(
        header, ((name, *(load.get(key) for key in keys)) for name, load in loads.items())
    )


def _cpu_plot(figures: Figures) -> str:
    """Return a plot of CPU per request by service, with the server's next to it."""
    cases = figures["cases"]
    rows = []
    for case, unit, key in (
        ("requests", "one-token request", "cpu_us_per_request_by_service"),
        ("streams", "chunk of a stream", "cpu_us_per_chunk_by_service"),
    ):
        parts = dict(cases[case][key])
        server = parts.pop("server")
        rows.append(Bar(unit, parts, "µs"))
        rows.append(Bar("… at the mock server", {"server": server}, "µs"))
    return bars("CPU by service", "µs", rows)


# --- truth ---------------------------------------------------------------------------------------


def _truth(figures: Figures) -> Lines:
    header = (
        *("case", "asked", "achieved", "TTFT mean", "p50", "p99", "p99.9"),
        *("ITL mean", "ITL p99", "latency p99", "arrival p50", "arrival p99", "verdict"),
    )
    rows = []
    for case in figures["cases"]:
        ttft, gap = case["ttft_error_ms"], case["inter_token_error_ms"]
        arrival = case["arrival_error_ms"]
        rows.append(
            (
                case["case"],
                case["load"]["asked"],
                round(case["load"]["achieved"], 1),
                *(_ms(ttft[name]) for name in ("mean", "p50", "p99", "p99.9")),
                *(_ms(gap[name]) for name in ("mean", "p99")),
                _ms(case["request_error_ms"]["p99"]),
                *(_ms(arrival[name]) for name in ("p50", "p99")),
                " ".join([case["verdict"], *case["fired"]]),
            )
        )
    note = "Errors in milliseconds: what the client measured less what the server did."
    return [
        *_table(header, rows),
        note,
        "",
        *_targets(
            (
                f"{t['case']} {t['figure']} {t['stat']}",
                t["measured_ms"],
                f"below {t['below_ms']:g} ms",
                t["is_met"],
            )
            for t in figures["targets"]
        ),
    ]


def _ms(value: float) -> str:
    return f"{value:.3f}"


def _truth_plot(figures: Figures) -> str:
    rows = [
        Bar(
            case["case"],
            {"error": max(abs(case["ttft_error_ms"]["p99"]), 1e-3)},
            f"ms, {case['verdict']}",
        )
        for case in figures["cases"]
    ]
    return bars("Error of time to first token, p99", "ms", rows, is_log=True)


# --- the verdict ---------------------------------------------------------------------------------


def _classifier(figures: Figures) -> Lines:
    names = list(figures["kinds"][0])
    rows = ([kind[name] for name in names] for kind in figures["kinds"])
    summary = {
        "runs": figures["runs"],
        "spoiled, by the server's account": figures["spoiled"],
        "of these called valid": len(figures["spoiled_called_valid"]),
        "honest and not spoiled": figures["honest"],
        "of these not called valid": figures["honest_not_called_valid"],
        "honest, disturbed by the host": figures["disturbed"],
        "the rule holds": figures["passed"],
        "with enough honest runs to judge": figures["is_proof"],
    }
    return _table(("", ""), summary.items()) + _table(names, rows)


_VIEWS: dict[str, Callable[[Figures], Lines]] = {
    "speed": _speed,
    "memory": _speed,
    "truth": _truth,
    "apis": _truth,
    "classifier": _classifier,
}


# --- other measurements --------------------------------------------------------------------------


def _any(figures: Any) -> Lines:
    if not isinstance(figures, dict):
        figures = {"results": figures}
    lines: Lines = []
    single: Figures = {}
    for name, value in figures.items():
        if name == "machine":
            continue
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            if len(value) <= MAX_LIST_ITEMS * 2:
                flat = [dict(_flat(row)) for row in value]
                columns = list(dict.fromkeys(key for row in flat for key in row))
                rows = ([row.get(column, "") for column in columns] for row in flat)
                lines += [f"### {name}", "", *_table(columns, rows)]
        elif isinstance(value, dict):
            lines += [f"### {name}", "", *_table(("figure", "value"), _flat(value))]
        else:
            single[name] = value
    single = _verdict_first(single)
    return (_table(("figure", "value"), _flat(single)) if single else []) + lines


def _verdict_first(figures: Figures) -> Figures:
    """Return the same figures with each run's verdict above the figures that it judges."""
    verdict = {"verdict": figures["verdict"]} if "verdict" in figures else {}
    return verdict | figures


def _targets(rows: Iterable[tuple[str, float, str, bool]]) -> Lines:
    marked = [(*row[:3], "met" if row[3] else "missed") for row in rows]
    return _table(("target", "measured", "wanted", ""), marked) if marked else []


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Lines:
    lines = ["| " + " | ".join(header) + " |"]
    lines.append("| --- |" + " ---: |" * (len(header) - 1))
    lines += ["| " + " | ".join(_text(value) for value in row) + " |" for row in rows]
    return [*lines, ""]


def _flat(figures: Figures, prefix: str = "") -> list[tuple[str, Any]]:
    """Return nested members by path. Long lists stay in the file."""
    found: list[tuple[str, Any]] = []
    for name, value in figures.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict):
            found += _flat(value, f"{path}.")
        elif not isinstance(value, list):
            found.append((path, value))
        elif len(value) <= MAX_LIST_ITEMS and not any(isinstance(v, dict | list) for v in value):
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
