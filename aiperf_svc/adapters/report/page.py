"""`report.html` of an inference benchmark: the run on one self-contained page.

Its scripts only zoom, and the page is whole without them.
Every text that came from outside (names, URLs, error messages) is escaped.
"""

from html import escape

from aiperf_svc.adapters.exports import config_export
from aiperf_svc.adapters.exports.inference_file import iso_time
from aiperf_svc.adapters.exports.json_export import result_of
from aiperf_svc.adapters.report import charts, joint_page, layout, tables, telemetry_charts, zoom
from aiperf_svc.config.load_texts import load_words
from aiperf_svc.core.results.joint_result import of_groups
from aiperf_svc.core.results.summary import Summary, error_counts
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.domain.metric_catalog import METRICS

_HEADLINES = {
    Severity.VALID: "The client kept up: these are the server's numbers.",
    Severity.DEGRADED: "Read with care: something below may have touched the numbers.",
    Severity.INVALID: "Do not use these numbers.",
}
_CAUSES = {
    "client-bound": "Do not use these numbers: the client, not the server, was the limit.",
    "target-failing": "Do not use these numbers: the target failed too many of the requests.",
    "process-lost": "Do not use these numbers: a process of the client was lost.",
    "run-failed": "Do not use these numbers: the run failed.",
    "ended-early": "No measurement: the search knew enough, and ended the load.",
}


def render(summary: Summary) -> bytes:
    """Render the file's content."""
    return layout.document(summary.context.config.name, _sections(summary))


def _sections(summary: Summary) -> list[str]:
    over_time = charts.over_time(summary)
    # Two columns: the first plot takes both when that leaves no hole.
    latency = charts.latency_by_percentile(summary, is_wide=len(over_time) % 2 == 0)
    plots = [plot for plot in (latency, *over_time) if plot]
    system_plots = telemetry_charts.draw(summary)
    client_plots = telemetry_charts.draw_client(summary)
    constants = telemetry_charts.constants(summary)
    shown = {metric.tag for metric in METRICS if metric.in_table}
    rest = {metric.tag for metric in METRICS} - shown
    errors = error_counts(summary.context.errors)
    config = escape(config_export.render(summary.context.config))
    return [
        _header(summary),
        layout.verdict_box(summary.verdict, _HEADLINES, _CAUSES),
        tables.errors(errors) if errors else "",
        _system(summary),
        _numbers(summary),
        tables.objectives(summary),
        layout.plots(plots),
        layout.plots(system_plots, title="Server and GPUs"),
        layout.plots(client_plots, title="Client"),
        "<h2>Metrics</h2>",
        tables.distributions(summary, shown),
        tables.scalars(summary, shown),
        tables.goodput_tiers(summary),
        _groups(summary),
        layout.details("All other metrics", _others(summary, rest)),
        layout.details("All checks of the verdict", layout.checks(summary.verdict.checks)),
        layout.details("All checks of the system", _system_checks(summary)),
        layout.details("GPU values that did not change", constants),
        layout.details("Finish reasons", tables.finish_reasons(summary.finish_reasons)),
        layout.details("Accounts", tables.accounts(summary.accounts)),
        layout.details("Configuration", f"<pre>{config}</pre>"),
        zoom.scripts([*plots, *system_plots, *client_plots]),
    ]


def _groups(summary: Summary) -> str:
    """A column for each of several targets, and of several models."""
    if not summary.targets and not summary.models:
        return ""
    result, found = result_of(summary), ""
    if summary.targets:
        columns = joint_page.columns(of_groups(result, "targets"), is_short=True)
        found += f"<h2>Targets</h2>{columns}"
    if summary.models:
        columns = joint_page.columns(of_groups(result, "models"), is_short=True)
        found += f"<h2>Models</h2>{columns}"
    return found


def _system(summary: Summary) -> str:
    """The verdict on the system, with what was only told."""
    report = summary.system
    if report is None:
        return ""
    told = [check for check in report.checks if check.severity is Severity.INFO]
    return layout.system_box(report.verdict, report.reasons, told)


def _system_checks(summary: Summary) -> str:
    return layout.checks(summary.system.checks) if summary.system is not None else ""


def _header(summary: Summary) -> str:
    context, config = summary.context, summary.context.config
    asked = load_words(config.load, with_pattern=True)
    targets = (config.endpoint.all_models, config.endpoint.all_urls)
    facts = [*(" and ".join(each) for each in targets), ", ".join(asked)]
    facts.append(f"{iso_time(summary.first_start_wall_ns)[:19].replace('T', ' ')} UTC")
    if context.was_cancelled:
        facts.append("stopped by the user")
    elif not context.is_complete:
        facts.append("not complete")
    return layout.header(config.name, facts)


def _numbers(summary: Summary) -> str:
    wanted = (
        ("Request throughput", "request_throughput", "avg"),
        ("Output tokens", "output_token_throughput", "avg"),
        ("TTFT p50", "time_to_first_token", "p50"),
        ("TTFT p99", "time_to_first_token", "p99"),
        ("ITL p50", "inter_token_latency", "p50"),
        ("Request latency p50", "request_latency", "p50"),
        ("Request latency p99", "request_latency", "p99"),
        ("In flight, mean", "effective_concurrency", "avg"),
        ("Goodput", "goodput", "avg"),
        ("Completed", "request_count", "avg"),
        ("Errors", "error_request_count", "avg"),
        ("Duration", "benchmark_duration", "avg"),
    )
    return tables.large_numbers(summary, wanted)


def _others(summary: Summary, tags: set[str]) -> str:
    return tables.distributions(summary, tags) + tables.scalars(summary, tags)
