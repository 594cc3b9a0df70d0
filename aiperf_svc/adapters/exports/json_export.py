"""`profile_export_aiperf.json`: AIPerf's schema 1.4, with our own keys beside its own.

AIPerf's keys keep its meaning. Ours: `p99_9`, `unreliable`, `censored_share`, `beyond` and
`relative_error` within a metric, and one object `aiperf_svc` with verdict, accounts, finish reasons
and SLO.
"""

from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import asdict

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.endpoint import Endpoint
from aiperf_svc.core.results.summary import FinishedRun, GroupResult, MetricSummary, Summary
from aiperf_svc.core.telemetry.findings import SystemReport
from aiperf_svc.domain.metric_catalog import CATALOG, METRICS, Kind
from aiperf_svc.domain.outcomes import ErrorKind, Phase

SCHEMA_VERSION = "1.4"
STATS = ("avg", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "min", "max", "std")
"""Statistics in AIPerf's order; `count` and `sum` follow, then our own."""
TIMED_STATS = ("avg", "p50", "p90", "p95", "p99", "min", "max", "std")


def render(summary: Summary) -> bytes:
    """Render the file's content."""
    return msgspec.json.format(msgspec.json.encode(export(summary)), indent=1) + b"\n"


def export(summary: Summary) -> dict[str, Any]:
    """Return the file's content as an object."""
    context = summary.context
    return {
        "schema_version": SCHEMA_VERSION,
        "aiperf_version": f"aiperf-svc {context.version}",
        "benchmark_id": context.run_id,
        **_metrics(summary),
        "input_config": input_config(context.config),
        "run_info": {
            "benchmark_id": context.run_id,
            "random_seed": context.config.random_seed,
            "trial": 0,
            "cli_command": context.cli_command,
        },
        "was_cancelled": context.was_cancelled,
        "is_complete": context.is_complete,
        "error_summary": error_summary(context),
        "start_time": iso_time(summary.first_start_wall_ns),
        "end_time": iso_time(summary.last_end_wall_ns),
        "aiperf_svc": {
            "version": context.version,
            "verdict": summary.verdict.verdict,
            "cause": summary.verdict.cause,
            "reasons": summary.verdict.reasons,
            "notes": summary.verdict.notes,
            "slo": summary.objectives,
            **({"goodput_tiers": summary.goodput_tiers} if summary.goodput_tiers else {}),
            "slo_batches": summary.objective_batches,
            **({"early_end": context.early_end.text} if context.early_end is not None else {}),
            "accounts": summary.accounts,
            "finish_reasons": summary.finish_reasons,
            "lost_services": context.lost_services,
            "health": context.health,
            "topology": context.topology,
            "target_addresses": list(map(asdict, context.target_addresses)),
            **({"hooks": list(map(asdict, context.hooks))} if context.hooks else {}),
            "config": context.config.model_dump(mode="json"),
            **_groups("targets", "url", summary.targets),
            **_groups("models", "model", summary.models),
            **({"system": system(summary.system)} if summary.system is not None else {}),
        },
    }


def system(report: SystemReport) -> dict[str, Any]:
    """Return what telemetry says about the system under test."""
    return {
        "verdict": report.verdict,
        "reasons": report.reasons,
        "checks": report.checks,
        "metrics": report.metrics,
        "sources": report.sources,
    }


def _groups(key: str, name: str, results: tuple[GroupResult, ...]) -> dict[str, Any]:
    return {key: [{name: each.name, **_metrics(each)} for each in results]} if results else {}


def _metrics(summary: Summary | GroupResult) -> dict[str, Any]:
    found: dict[str, Any] = {}
    concurrency = summary.concurrency if isinstance(summary, Summary) else {}
    for metric in METRICS:
        if metric.kind is Kind.SCALAR and metric.tag in summary.scalars:
            found[metric.tag] = {"unit": metric.unit, "avg": summary.scalars[metric.tag]}
        elif metric.kind is Kind.TIMED and concurrency:
            stats = {name: concurrency[name] for name in TIMED_STATS}
            found[metric.tag] = {"unit": metric.unit, **stats}
        elif metric.tag in summary.metrics:
            found[metric.tag] = distribution(summary.metrics[metric.tag])
    return found


def distribution(metric: MetricSummary) -> dict[str, Any]:
    """Return a distribution as an object: AIPerf's keys, then ours."""
    measured = metric.distribution
    found: dict[str, Any] = {"unit": CATALOG[metric.tag].unit}
    found |= {name: measured.stats.get(name) for name in STATS}
    found |= {"count": measured.count, "sum": measured.stats.get("sum")}
    found["p99_9"] = measured.stats.get("p99_9")
    if measured.unreliable:
        found["unreliable"] = measured.unreliable
    if measured.censored:
        found |= {"censored_share": measured.censored_share, "beyond": measured.beyond}
    if metric.relative_error:
        found["relative_error"] = metric.relative_error
    return found


def input_config(config: BenchmarkConfig) -> dict[str, Any]:
    """Return the config with AIPerf's names, for tools that read load and model from it."""
    load, data = config.load, config.dataset
    phase: dict[str, Any] = {"name": "profiling", "kind": "profiling"}
    phase["type"] = load.arrival.pattern if load.is_open_loop else "concurrency"
    if load.fixed_schedule:
        phase["type"] = "fixed_schedule"
        phase["replay_speedup"] = load.replay_speedup
    if load.user_centric is not None:
        phase |= {"type": "user_centric", "users": load.user_centric.users}
    optional = {
        "requests": load.requests,
        "duration": load.duration / 1e9 if load.duration else None,
        "concurrency": load.concurrency,
        "prefill_concurrency": load.prefill_concurrency,
        "rate": load.user_centric.rate if load.user_centric else load.request_rate,
    }
    phase |= {name: value for name, value in optional.items() if value is not None}
    dataset: dict[str, Any] = {"name": "main", "type": data.kind.value}
    dataset |= {"entries": data.entries} if data.entries else {}
    dataset["random_seed"] = config.random_seed
    lengths = {"isl": {"mean": data.input_tokens.mean, "stddev": data.input_tokens.stddev}}
    if data.output_tokens:
        lengths["osl"] = {"mean": data.output_tokens.mean, "stddev": data.output_tokens.stddev}
    dataset["prompts"] = lengths
    return {
        "models": _models(config.endpoint),
        "endpoint": {
            "urls": list(config.endpoint.all_urls),
            "type": config.endpoint.type.value,
            "streaming": config.endpoint.streaming,
        },
        "datasets": [dataset],
        "phases": [phase],
        "artifacts": {"dir": config.artifacts.dir},
        "tokenizer": {"name": config.tokenizer.name},
    }


def _models(endpoint: Endpoint) -> dict[str, Any]:
    weights = endpoint.model_weights
    strategy = "weighted" if weights and endpoint.model_selection == "random" else None
    items: list[dict[str, Any]] = [{"name": name} for name in endpoint.all_models]
    for item, weight in zip(items, weights, strict=False):
        item["weight"] = weight
    if len(items) == 1:
        return {"items": items}
    return {"strategy": strategy or endpoint.model_selection, "items": items}


def error_summary(context: FinishedRun) -> list[dict[str, Any]]:
    """Return the errors of the profiling phase by kind, status and first message, the most frequent
    first."""
    counts: dict[tuple[int, int, str], int] = {}
    for sample in context.errors:
        if sample.phase is Phase.PROFILING:
            key = (sample.kind, sample.status, sample.message)
            counts[key] = counts.get(key, 0) + sample.count
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [
        {
            "error_details": {
                "code": status or None,
                "type": ErrorKind(kind).name.title().replace("_", ""),
                "message": message,
            },
            "count": count,
        }
        for (kind, status, message), count in ordered
    ]


def iso_time(wall_ns: int) -> str:
    """Format a time as AIPerf does: UTC without an offset, to the microsecond."""
    seconds, rest_ns = divmod(wall_ns, 10**9)
    moment = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None, microsecond=rest_ns // 1000)
    return moment.isoformat(timespec="microseconds")


def wall_ns(text: str) -> int:
    """Return the time that `iso_time` has formatted, to the microsecond. Raises ValueError."""
    moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    return (int(moment.timestamp()) * 10**6 + moment.microsecond) * 1000
