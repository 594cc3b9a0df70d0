"""`report.html` of an inference benchmark: the run on one self-contained page that is complete
without its scripts."""

from aiperf_svc.adapters.exports.aiperf_exports import result_of
from aiperf_svc.adapters.exports.inference_file import iso_time
from aiperf_svc.adapters.report import charts, joint_page, tables, telemetry_charts
from aiperf_svc.adapters.report.blocks import (
    Block,
    Box,
    Code,
    Details,
    Header,
    Heading,
    Note,
    Numbers,
    Plots,
    Zoom,
    check_table,
    document,
    section,
    sentence,
    table_blocks,
    verdict_box,
)
from aiperf_svc.adapters.report.plots import Plot
from aiperf_svc.config.load import describe_load
from aiperf_svc.config.yaml_files import yaml_text
from aiperf_svc.core.events.report import event_tables
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.joint_result import of_groups
from aiperf_svc.core.results.remarks import remarks
from aiperf_svc.core.results.summary import Summary
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.metric_catalog import METRICS

_VALID = "The client kept up: these are the numbers of the server."


def render(summary: Summary, result: InferenceResult | None = None) -> bytes:
    """Render the file. `result` is the summary's result, if it has already been computed."""
    result = result or result_of(summary)
    over_time = [*_replicas(summary), *charts.over_time(summary)]
    # Two columns: the first plot spans both if that avoids a gap.
    latency = charts.latency_by_percentile(summary, is_wide=len(over_time) % 2 == 0)
    plots = [latency, *over_time] if latency is not None else over_time
    system_plots = telemetry_charts.draw(summary)
    client_plots = telemetry_charts.draw_client(summary)
    shown = {metric.tag for metric in METRICS if metric.in_table}
    rest = {metric.tag for metric in METRICS} - shown
    system_checks = () if summary.system is None else summary.system.checks
    blocks = [
        _header(summary),
        verdict_box(summary.verdict, _VALID),
        *tables.errors(result.errors),
        *_system(summary),
        _numbers(result),
        *tables.objectives(result),
        *table_blocks(event_tables(summary.events)),
        Plots(plots),
        Plots(system_plots, title="Server and GPUs"),
        Plots(client_plots, title="Client"),
        Heading("Metrics"),
        *tables.distributions(result, shown),
        tables.scalars(result, shown),
        *_remarks(result),
        *tables.quality(summary.context.quality),
        *table_blocks(result.shown_tables),
        *_groups(result),
        Details(
            "All other metrics",
            [*tables.distributions(result, rest), tables.scalars(result, rest)],
        ),
        Details("All checks of the verdict", [check_table(summary.verdict.checks)]),
        Details("All checks of the system", [check_table(system_checks)]),
        Details("GPU values that did not change", [telemetry_charts.constants(summary)]),
        Details("Finish reasons", [tables.finish_reasons(summary.finish_reasons)]),
        tables.hardware(summary.provenance),
        Details("Accounts", [tables.accounts(summary.accounts)]),
        Details("Configuration", [Code(yaml_text(summary.context.config.model_dump(mode="json")))]),
        Zoom([*plots, *system_plots, *client_plots]),
    ]
    return document(summary.context.config.name, blocks)


def _replicas(summary: Summary) -> list[Plot]:
    """Plot the replicas above the load, with the same time axis."""
    if summary.scaling is None or summary.timeline is None:
        return []
    length_s = summary.timeline.width_s * len(summary.timeline.in_flight)
    return telemetry_charts.draw_replicas(summary.scaling, length_s)


def _remarks(result: InferenceResult) -> list[Note]:
    """Return how the tokens in the tables above were counted, and the limits of their numbers."""
    texts = (result.token_source, *remarks(result))
    return [Note(sentence(one_line(text))) for text in texts if text]


def _groups(result: InferenceResult) -> list[Block]:
    """Return a column for each target and for each model, if there are several."""
    blocks: list[Block] = []
    for joint in (of_groups(result, "targets"), of_groups(result, "models")):
        if joint.members:
            blocks += section(joint.kind.capitalize(), joint_page.columns(joint, is_short=True))
    return blocks


def _system(summary: Summary) -> list[Block]:
    """Return the verdict on the system under test: failed checks, then information."""
    report = summary.system
    if report is None:
        return []
    lines = [(sentence(each.text), sentence(each.remedy)) for each in report.reasons]
    lines += [(sentence(each.text), "") for each in report.checks if each.severity is Severity.INFO]
    headline = "Server and GPU metrics during the load:"
    verdict = report.verdict
    return [Box(verdict, headline, lines, title="System:", label=verdict)] if lines else []


def _header(summary: Summary) -> Header:
    context, config = summary.context, summary.context.config
    load_texts = describe_load(config.load, with_pattern=True)
    targets = (config.endpoint.all_models, config.endpoint.all_urls)
    facts = [*(" and ".join(each) for each in targets), ", ".join(load_texts)]
    facts.append(f"{iso_time(summary.first_start_wall_ns)[:19].replace('T', ' ')} UTC")
    if context.was_cancelled:
        facts.append("stopped by the user")
    elif not context.is_complete:
        facts.append("incomplete")
    return Header(config.name, facts)


def _numbers(result: InferenceResult) -> Numbers:
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
    return tables.large_numbers(result, wanted)
