"""Files of a run in AIPerf's layout. `profile_export_aiperf.csv` has two blocks, distributions and
single numbers by tag. `profile_export_aiperf_timeslices.json` and `.csv` have the results by slices
of time. AIPerf numbers slices by their position in the list; here each slice has its number,
because slices without requests are left out.
"""

from collections.abc import Sequence

import msgspec
from msgspec.structs import asdict

from aiperf_svc.adapters.exports.file_content import csv_file
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.endpoint import Endpoint
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.run_result import MetricStats
from aiperf_svc.core.results.slices import Slice
from aiperf_svc.core.results.summary import Summary, inference_result
from aiperf_svc.domain.foreign_text import csv_cell
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.domain.metric_catalog import CATALOG, METRICS, Kind

PERCENTILES = ("p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99")
STATS = ("avg", "min", "max", "sum", *PERCENTILES, "std")
"""Statistics in AIPerf's order; those of slices also have the count."""
SLICES = "profile_export_aiperf_timeslices"


class TimeSlice(msgspec.Struct, frozen=True, kw_only=True):
    """A slice of time, without its metrics, whose keys are on the same level."""

    timeslice_index: int
    start_ns: int
    end_ns: int
    is_complete: bool


class TimeSlices(msgspec.Struct, frozen=True, kw_only=True):
    """Content of profile_export_aiperf_timeslices.json: the source of its JSON Schema."""

    timeslices: tuple[TimeSlice, ...]
    input_config: Json


def render_csv(summary: Summary) -> bytes:
    """Render `profile_export_aiperf.csv`. An unknown number is an empty cell."""
    lines: list[Sequence[object]] = [("Metric", *STATS)]
    for tag in sorted(_distributions(summary)):
        cells = (csv_number(tag, summary.measured(tag, stat)) for stat in STATS)
        lines.append((csv_cell(CATALOG[tag].header), *cells))
    lines += [(), ("Metric", "Value")]
    for tag in sorted(summary.scalars):
        lines.append((csv_cell(CATALOG[tag].header), csv_number(tag, summary.scalars[tag])))
    for tier in summary.goodput_tiers:
        values = (("Goodput", tier.goodput), ("Good Request Count", tier.good_request_count))
        for name, value in values:
            tag = name.lower().replace(" ", "_")
            lines.append((csv_cell(f"{CATALOG[tag].header} [{tier.name}]"), csv_number(tag, value)))
    return csv_file(lines)


def _distributions(summary: Summary) -> set[str]:
    timed = {m.tag for m in METRICS if m.kind is Kind.TIMED} if summary.concurrency else set()
    return timed | set(summary.metrics)


def csv_number(tag: str, value: float | None, decimals: int = 2) -> str:
    """Format a number with AIPerf's decimals, and with four digits a single number below 1 that
    only this program has: a share, a price, an energy or a tool's metric."""
    if value is None:
        return ""
    metric = CATALOG.get(tag)
    is_ours = metric is None or (metric.is_ours and metric.kind is Kind.SCALAR)
    return f"{value:.4g}" if is_ours and 0 < abs(value) < 1 else f"{value:.{decimals}f}"


def render_slices_json(slices: Sequence[Slice], config: BenchmarkConfig) -> bytes:
    found = [{**asdict(_without_metrics(each)), **each.metrics} for each in slices]
    content = {"timeslices": found, "input_config": input_config(config)}
    return msgspec.json.encode(content) + b"\n"


def _without_metrics(each: Slice) -> TimeSlice:
    return TimeSlice(
        timeslice_index=each.index,
        start_ns=each.start_wall_ns,
        end_ns=each.end_wall_ns,
        is_complete=each.is_complete,
    )


def slices_schema() -> Json:
    """Return the JSON Schema of the file. Every other key of a slice is a metric."""
    (file, metric), definitions = msgspec.json.schema_components(
        (TimeSlices, MetricStats), ref_template="#/$defs/{name}"
    )
    definitions[TimeSlice.__name__]["additionalProperties"] = metric
    return {**file, "$defs": definitions}


def render_slices_csv(slices: Sequence[Slice]) -> bytes:
    """Render the CSV file: a row for each slice, metric and statistic."""
    lines: list[Sequence[object]] = [("Timeslice", "Metric", "Unit", "Stat", "Value")]
    for each in slices:
        for tag, found in sorted(each.metrics.items()):
            for stat in (*STATS, "count"):
                value = found.stat(stat)
                if value is not None:
                    shown = value if stat == "count" else csv_number(tag, value)
                    lines.append((each.index, CATALOG[tag].name, found.unit, stat, shown))
    return csv_file(lines)


def result_of(summary: Summary) -> InferenceResult:
    """Return the results that the records manager sends to other processes."""
    config = msgspec.json.encode(input_config(summary.context.config))
    return inference_result(summary, aiperf_config=msgspec.Raw(config))


def input_config(config: BenchmarkConfig) -> dict[str, object]:
    """Return the config with AIPerf's names, for tools that read the load and model from it."""
    load, data = config.load, config.dataset
    phase: dict[str, object] = {"name": "profiling", "kind": "profiling"}
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
    dataset: dict[str, object] = {"name": "main", "type": data.kind.value}
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


def _models(endpoint: Endpoint) -> dict[str, object]:
    weights = endpoint.model_weights
    strategy = "weighted" if weights and endpoint.model_selection == "random" else None
    items: list[dict[str, object]] = [{"name": name} for name in endpoint.all_models]
    for item, weight in zip(items, weights, strict=False):
        item["weight"] = weight
    if len(items) == 1:
        return {"items": items}
    return {"strategy": strategy or endpoint.model_selection, "items": items}
