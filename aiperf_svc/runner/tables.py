"""Prints a finished run on a terminal: results, errors, objectives, and the verdict.

Made from the content of profile_export_aiperf.json or results.json, so that it can be printed again
from there.
"""

from collections.abc import Sequence
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aiperf_svc.domain.foreign_text import lines, one_line
from aiperf_svc.domain.metric_catalog import METRICS, Kind
from aiperf_svc.domain.number_text import number
from aiperf_svc.runner.outcome import RunOutcome, is_experiment, is_run_result, own_part
from aiperf_svc.runner.run_tables import print_run_result
from aiperf_svc.runner.verdict_lines import indented, print_objectives, print_text, print_verdict

WIDE = 100
"""Columns of the whole table; a narrower terminal gets fewer statistics."""
STATS = ("avg", "min", "p50", "p90", "p99", "max")
NARROW_STATS = ("avg", "p50", "p90", "p99")
SHORT_UNITS = {"tokens/sec/user": "tok/s"}
"""Short form of a unit that is too long for its line."""
SHOWN_ERRORS = 8
SHOWN_MESSAGE = 400
"""Characters of an error's first message: why a certificate is refused, and what helps."""
ENDINGS = {"failed": ("Failed: ", "bold red"), "cancelled": ("Stopped early: ", "yellow")}


def print_results(outcome: RunOutcome, console: Console) -> None:
    """Everything about a finished run."""
    if outcome.summary is not None:
        console.print()
        if is_experiment(outcome.summary):
            _print_experiment(outcome, console)
        elif is_run_result(outcome.summary):
            print_run_result(outcome.summary, console)
        else:
            _print_summary(outcome.summary, console)
    _print_end(outcome, console)


def _print_experiment(outcome: RunOutcome, console: Console) -> None:
    # Only experiments need what it takes to sum up their trials.
    import msgspec

    from aiperf_svc.adapters.exports.experiment_file import TrialEntry
    from aiperf_svc.adapters.storage.experiment_artifacts import read_outcomes
    from aiperf_svc.core.experiments.search_report import SearchReport
    from aiperf_svc.core.experiments.summary import summarise
    from aiperf_svc.runner.experiment_tables import print_experiment, print_scenarios

    summary = outcome.summary
    assert summary is not None
    if outcome.artifacts is None:
        return
    trials = msgspec.convert(summary["trials"], tuple[TrialEntry, ...])
    found = summarise(read_outcomes(outcome.artifacts, trials))
    search = msgspec.convert(summary["search"], SearchReport) if summary["search"] else None
    print_experiment(found, console, search)
    print_scenarios(outcome.artifacts, console)


def _print_summary(summary: dict[str, Any], console: Console) -> None:
    console.print(_title(summary), style="bold")
    if any("p50" in value for value in summary.values() if isinstance(value, dict)):
        console.print(_distributions(summary, console.width))
    in_two = _scalars(summary, columns=2)
    needed = console.measure(in_two, options=console.options.update(max_width=WIDE)).maximum
    console.print(in_two if needed <= console.width else _scalars(summary, columns=1))
    _print_tiers(own_part(summary).get("goodput_tiers", ()), console)
    _print_notes(summary, console)
    _print_groups(summary, console)
    if summary.get("error_summary"):
        console.print(_errors(summary["error_summary"]))
    if own_part(summary).get("slo"):
        print_objectives(own_part(summary)["slo"], console)
    _print_accounts(own_part(summary).get("accounts", {}), console)
    _print_addresses(own_part(summary).get("target_addresses", ()), console)
    _print_connections(summary, console)
    _print_hooks(own_part(summary).get("hooks", ()), console)
    _print_proxy(own_part(summary).get("config", {}).get("endpoint", {}), console)
    _print_tls(own_part(summary).get("config", {}).get("endpoint", {}), console)
    _print_prompts(summary, console)
    _print_forced_length(own_part(summary), console)
    _print_verdict(own_part(summary), console)


def _print_groups(summary: dict[str, Any], console: Console) -> None:
    kinds: tuple[Literal["targets", "models"], ...] = ("targets", "models")
    for kind in kinds:
        if own_part(summary).get(kind):
            # Only runs with several of them need this.
            from aiperf_svc.core.results.joint_result import of_groups
            from aiperf_svc.runner.joint_tables import joint_tables

            for table in joint_tables(of_groups(summary, kind), console.width):
                console.print(table)


def _title(summary: dict[str, Any]) -> str:
    config = own_part(summary).get("config", {})
    endpoint = config.get("endpoint", {})
    words = [config.get("name"), _urls(endpoint), _models(endpoint), endpoint.get("type")]
    if endpoint.get("streaming"):
        words.append("streaming")
    return " · ".join(one_line(str(word)) for word in words if word)


def _urls(endpoint: dict[str, Any]) -> str:
    more = len(endpoint.get("urls") or ())
    return f"{endpoint.get('url')} and {more} more" if more else str(endpoint.get("url") or "")


def _models(endpoint: dict[str, Any]) -> str:
    more = len(endpoint.get("models") or ())
    return f"{endpoint.get('model')} and {more} more" if more else str(endpoint.get("model") or "")


# --- metrics -------------------------------------------------------------------------------------


def _distributions(summary: dict[str, Any], width: int) -> Table:
    """Metrics with percentiles. With enough requests for it, p99.9 stands in for the deviation."""
    metrics = [m for m in METRICS if m.in_table and m.kind is not Kind.SCALAR and m.tag in summary]
    reliable = any(
        summary[m.tag].get("p99_9") is not None
        and "p99_9" not in summary[m.tag].get("unreliable", ())
        for m in metrics
        if m.kind is Kind.RECORD
    )
    stats: tuple[str, ...] = (*STATS[:5], "p99_9", "max") if reliable else (*STATS, "std")
    if width < WIDE:
        stats = NARROW_STATS
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("")
    for stat in stats:
        table.add_column(stat.replace("_", "."), justify="right", no_wrap=True)
    for metric in metrics:
        found = summary[metric.tag]
        unit = SHORT_UNITS.get(metric.unit, metric.unit)
        name = Text.assemble(metric.name, (f" ({unit})", "dim"))
        table.add_row(name, *(_stat(found, stat) for stat in stats))
    return table


def _stat(found: dict[str, Any], stat: str) -> Text:
    value, beyond = found.get(stat), found.get("beyond", {}).get(stat)
    if value is None and beyond is not None:
        return Text(f">{number(beyond)}", style="yellow")
    mark = "*" if stat in found.get("unreliable", ()) else ""
    return Text(f"{number(value)}{mark}", style="dim" if mark or value is None else "")


def _scalars(summary: dict[str, Any], *, columns: int) -> Table:
    """Metrics that are one number, so many in a line."""
    cells = [
        (Text.assemble(metric.name), Text(number(summary[metric.tag]["avg"])), metric.unit)
        for metric in METRICS
        if metric.in_table and metric.kind is Kind.SCALAR and metric.tag in summary
    ]
    table = Table.grid(padding=(0, 1))
    for _ in range(columns):
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(style="dim", no_wrap=True, min_width=14)
    lines = -(-len(cells) // columns)
    for line in range(lines):
        table.add_row(*(part for cell in cells[line::lines] for part in cell))
    return table


def _print_tiers(tiers: Sequence[dict[str, Any]], console: Console) -> None:
    """Print the goodput by each set of limits, if there are several."""
    if not tiers:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("tier", "limits"):
        table.add_column(column, overflow="fold")
    for column in ("good requests", "of those due", "goodput (requests/sec)"):
        table.add_column(column, justify="right")
    for tier in tiers:
        limits = ", ".join(f"{metric} {limit}" for metric, limit in tier["limits"].items())
        share = tier["attainment"]
        table.add_row(
            one_line(tier["name"]),
            one_line(limits),
            number(tier["good_request_count"]),
            "–" if share is None else f"{share:.2%}",
            number(tier["goodput"]),
        )
    console.print(table)


def _print_notes(summary: dict[str, Any], console: Console) -> None:
    """Print the meaning of the marks in the table, if there are any, and what is missing in it."""
    metrics = [m for m in METRICS if m.in_table and isinstance(summary.get(m.tag), dict)]
    shown = {*STATS, "p99_9"}
    if any(shown & set(summary[m.tag].get("unreliable", ())) for m in metrics):
        console.print("* fewer than one request is expected beyond this percentile", style="dim")
    censored = [m for m in metrics if summary[m.tag].get("censored_share")]
    if censored:
        names = ", ".join(f"{m.name} {summary[m.tag]['censored_share']:.2%}" for m in censored)
        print_text(
            console, f"> lies beyond this; cut before their responses ended: {names}", style="dim"
        )
    _print_token_source(summary, console)
    for note in own_part(summary).get("notes", ()):
        print_text(console, Text(one_line(note), style="yellow"))


def _print_token_source(summary: dict[str, Any], console: Console) -> None:
    """Print whose token counts the table has."""
    if not {"input_sequence_length", "output_sequence_length"} & summary.keys():
        return
    config = own_part(summary).get("config", {})
    name = (config.get("tokenizer") or {}).get("name")
    if name and not config["endpoint"].get("use_server_token_count"):
        text = f"Tokens: counted by the tokenizer {name}"
        if "usage_prompt_tokens" in summary or "usage_completion_tokens" in summary:
            text += "; --use-server-token-count takes the server's counts"
    else:
        text = "Tokens: as the server counts them (usage)"
    print_text(console, Text(one_line(text), style="dim"))


# --- errors and objectives -----------------------------------------------------------------------


def _errors(errors: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Errors", title_justify="left")
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("status", justify="right", no_wrap=True)
    table.add_column("first message", overflow="fold")
    for error in errors[:SHOWN_ERRORS]:
        details = error["error_details"]
        message = one_line(str(details.get("message") or ""))
        table.add_row(
            number(error["count"]),
            one_line(str(details["type"])),
            str(details.get("code") or ""),
            Text(message[:SHOWN_MESSAGE], style="red"),
        )
    if len(errors) > SHOWN_ERRORS:
        rest = sum(error["count"] for error in errors[SHOWN_ERRORS:])
        table.add_row(number(rest), f"{len(errors) - SHOWN_ERRORS} more kinds", "", "")
    return table


# --- whether to believe it -----------------------------------------------------------------------


def _print_accounts(accounts: dict[str, Any], console: Console) -> None:
    if not accounts:
        return
    outcomes = [
        f"{number(accounts[name])} {name}"
        for name in ("completed", "errored", "cancelled", "abandoned", "unsent", "lost")
        if accounts[name] or name in ("completed", "errored")
    ]
    lost = f" + {number(accounts['records_lost'])} lost" if accounts["records_lost"] else ""
    retries = f" + {number(accounts['retries'])} sent again" if accounts.get("retries") else ""
    print_text(
        console,
        f"\nAccounts: {number(accounts['issued'])} issued = {' + '.join(outcomes)}; "
        f"{number(accounts['requests_sent'])} requests sent = {number(accounts['records'])} "
        f"records{lost}{retries}",
    )
    for violation in accounts.get("violations", ()):
        print_text(console, Text(f"  ✗ {one_line(violation)}", style="bold red"))


def _print_addresses(uses: Sequence[dict[str, Any]], console: Console) -> None:
    """Print the use of each address of the target, if there are several."""
    if len(uses) < 2:
        return
    console.print("Target addresses:")
    for use in uses:
        line = f"{use['address']}: {number(use['requests'])} requests, "
        line += f"{number(use['connections'])} connections"
        text = Text(line)
        if use["failures"]:
            count = number(use["failures"])
            failed = f"; {count} could not be made, last: {use['error']}"
            down = "; down at the end" if use["is_down"] else ""
            text.append(failed + down, style="bold yellow")
        console.print(indented(text, 2))


def _print_hooks(calls: Sequence[dict[str, Any]], console: Console) -> None:
    """Print each hook that the run has called."""
    for call in calls:
        text = Text(f"Called {one_line(call['text'])}: {number(call['took_ms'])} ms", style="dim")
        if call["problem"]:
            text.append(f"; it failed: {one_line(call['problem'])}", style="bold yellow")
        print_text(console, text)


def _print_connections(summary: dict[str, Any], console: Console) -> None:
    """Print a note if connections were made ahead, whose connecting is in no latency."""
    ahead, waited = (
        summary.get(f"{kind}_request_count", {}).get("avg", 0)
        for kind in ("preconnected", "connected")
    )
    if ahead:
        text = f"Connections: {number(ahead)} were made ahead of their first requests, whose "
        text += "latencies are without connecting"
        if waited:
            text += f"; {number(waited)} requests waited for a new one, which is in their latencies"
        print_text(console, text)


def _print_proxy(endpoint: dict[str, Any], console: Console) -> None:
    if endpoint.get("proxy"):
        text = f"Proxy: requests went through {endpoint['proxy']}, which was measured too"
        print_text(console, one_line(text))


def _print_tls(endpoint: dict[str, Any], console: Console) -> None:
    if endpoint.get("url", "").startswith("https:") and not endpoint["tls"]["verify"]:
        text = "TLS: the server's certificate was not checked (endpoint.tls.verify: false)"
        print_text(console, Text(text, style="bold yellow"))


def _print_prompts(summary: dict[str, Any], console: Console) -> None:
    """Print a note if prompts were repeated or are alike, which a server's cache makes faster."""
    ours = own_part(summary)
    dataset = ours.get("topology", {}).get("dataset", {})
    entries, distinct = dataset.get("entries", 0), dataset.get("distinct_entries")
    used = summary.get("distinct_prompt_count", {}).get("avg", 0)
    issued = ours.get("accounts", {}).get("issued", 0)
    if not used or (issued <= used and distinct in (None, entries)):
        return
    different = "" if distinct is None else f" ({number(distinct)} of them distinct)"
    print_text(
        console,
        f"Prompts: {number(used)} of the dataset's {number(entries)} entries{different}, "
        f"each sent {issued / used:.3g} times on average",
    )


def _print_forced_length(ours: dict[str, Any], console: Console) -> None:
    """Print how many requests asked for forced output lengths, and a note if the server refused
    them."""
    asked = ours.get("topology", {}).get("dataset", {}).get("forced_output_length", {})
    if count := asked.get("requests"):
        sent = "1 request" if count == 1 else f"{number(count)} requests"
        print_text(
            console,
            f"Probe: {sent} before the load asked whether the server takes ignore_eos and "
            "min_tokens; no other number here counts them",
        )
    if asked.get("finding") == "refused":
        print_text(
            console,
            "Output length: before the load the server refused ignore_eos and min_tokens "
            f"({asked['said']}), so requests went without them",
        )


def _print_verdict(ours: dict[str, Any], console: Console) -> None:
    if ours.get("verdict") is not None:
        verdict, cause = ours["verdict"], ours.get("cause", "")
        reasons = ours.get("reasons", ())
        print_verdict("Verdict on the client", verdict, cause, reasons, console)
    if ours.get("system") is not None:
        _print_system(ours["system"], console)


def _print_system(system: dict[str, Any], console: Console) -> None:
    """What servers and GPU exporters said during the run."""
    reasons = system["reasons"]
    print_verdict("Verdict on the system", system["verdict"], "", reasons, console)
    for check in system["checks"]:
        if check["severity"] == "info":
            console.print(indented(Text(one_line(check["text"]), style="dim"), 2))


def _print_end(outcome: RunOutcome, console: Console) -> None:
    text = outcome.reason or ("" if outcome.summary else "nothing was measured")
    if text:
        prefix, style = ENDINGS.get(outcome.state, ("", "bold red"))
        print_text(console, Text(f"{prefix}{lines(text)}", style=style))
    if outcome.artifact_error:
        print_text(console, Text(f"error: {lines(outcome.artifact_error)}", style="bold red"))
    if outcome.artifacts is not None:
        report = outcome.artifacts / "report.html"
        where = report if report.is_file() else f"{outcome.artifacts}/"
        console.print(Text(f"Artifacts: {where}"), soft_wrap=True)
        if outcome.was_interrupted and is_experiment(outcome.summary or {}):
            how = f"the trials that are left: the same command with --resume {outcome.artifacts}"
            console.print(Text(how), soft_wrap=True)
    if outcome.uploaded_to:
        console.print(Text(f"Uploaded: {outcome.uploaded_to}/"), soft_wrap=True)
    if outcome.left:
        console.print(Text("Left behind:", style="bold red"))
        for each in outcome.left:
            print_text(console, Text(f"  {one_line(each)}"))
