"""`server_metrics_export.jsonl`, `.json` and `.csv`: servers' metrics pages in AIPerf's format, and
`gpu_telemetry_export.jsonl`: those of GPU exporters."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.adapters.exports.aiperf_exports import input_config
from aiperf_svc.adapters.exports.file_content import csv_file, json_file
from aiperf_svc.adapters.exports.inference_file import iso_time
from aiperf_svc.core.results.summary import Summary
from aiperf_svc.core.telemetry.families import PORTABLE
from aiperf_svc.core.telemetry.log import SourceLog
from aiperf_svc.core.telemetry.series import gpus
from aiperf_svc.core.telemetry.statistics import QUANTILES, Family, families, statistics
from aiperf_svc.core.telemetry.system_report import SourceReport
from aiperf_svc.domain.foreign_text import csv_cell

SCHEMA_VERSION = "1.0"
_STATS = {
    "gauge": ("avg", "min", "max", "std", *(f"p{q}" for q in QUANTILES)),
    "counter": ("total", "rate", "rate_avg", "rate_min", "rate_max", "rate_std"),
    "histogram": (
        "count", "sum", "avg", "count_rate", "sum_rate", *(f"p{q}_estimate" for q in QUANTILES),
    ),
}  # fmt: skip
_UNITS = (
    ("_seconds", "seconds"),
    ("_tokens", "tokens"),
    ("_bytes", "bytes"),
    ("_requests", "requests"),
    ("_reqs", "requests"),
    ("_ratio", "ratio"),
    ("_perc", "percent"),
)
_RATIOS = {name for each in PORTABLE if each.unit == "ratio" for name in each.families}
"""Families with values up to 1, whatever suffix their names have."""


def servers(summary: Summary) -> list[tuple[SourceLog, SourceReport]]:
    """Return the sources that are servers, including untrusted ones."""
    reports = summary.system.sources if summary.system is not None else ()
    pairs = zip(summary.telemetry, reports, strict=True)
    return [(log, report) for log, report in pairs if not log.is_gpu]


def render_lines(summary: Summary) -> Iterator[bytes]:
    """Yield a line for each page of each server."""
    for log, _ in servers(summary):
        found = [(family, _curves(family, log)) for family in families(log)]
        for index, wall_ns in enumerate(log.wall_ns.tolist()):
            metrics: dict[str, list[dict[str, object]]] = {}
            for family, curves in found:
                values = {part: float(curve[index]) for part, curve in curves.items()}
                if not any(math.isnan(value) for value in values.values()):
                    metrics.setdefault(family.name, []).append(_point(family, values))
            line = {
                "endpoint_url": log.url,
                "timestamp_ns": wall_ns,
                "endpoint_latency_ns": int(log.latency_ns[index]),
                "metrics": metrics,
            }
            yield msgspec.json.encode(line) + b"\n"


def _curves(family: Family, log: SourceLog) -> dict[str, NDArray[np.float64]]:
    return {part: log.curve(number).values for part, number in family.numbers.items()}


def _point(family: Family, values: dict[str, float]) -> dict[str, object]:
    point: dict[str, object] = {"labels": dict(family.labels)} if family.labels else {}
    if family.type != "histogram":
        return point | {"value": values["value"]}
    ends = {part: values.pop(part) for part in ("sum", "count") if part in values}
    return point | {"histogram": values} | ends


class _Metric(msgspec.Struct, kw_only=True):
    type: str
    description: str = ""
    unit: str | None
    series: list[dict[str, object]] = []


def render_json(summary: Summary) -> bytes:
    """Render the statistics of each series under load."""
    begin_ns, end_ns = window(summary)
    metrics: dict[str, _Metric] = {}
    for log, _ in servers(summary):
        for family in families(log):
            entry = metrics.setdefault(
                family.name, _Metric(type=family.type, unit=unit_of(family.name))
            )
            series = {"endpoint_url": log.url, "labels": dict(family.labels) or None}
            entry.series.append(series | statistics(family, log, begin_ns, end_ns))
    pairs = servers(summary)
    content = {
        "schema_version": SCHEMA_VERSION,
        "aiperf_version": None,
        "benchmark_id": summary.context.run_id,
        "summary": {
            "endpoints_configured": [log.url for log, _ in pairs],
            "endpoints_successful": [log.url for log, _ in pairs if log.has_pages],
            "start_time": iso_time(begin_ns),
            "end_time": iso_time(end_ns),
            "endpoint_info": {log.url: _info(log, report) for log, report in pairs},
        },
        "metrics": dict(sorted(metrics.items())),
        "input_config": input_config(summary.context.config),
    }
    return json_file(content)


def _info(log: SourceLog, report: SourceReport) -> dict[str, object]:
    times, updates = log.wall_ns, log.updates
    if not len(times):
        return {"total_fetches": report.failures, "problem": report.problem}
    gaps_ms = np.diff(updates) / 1e6
    return {
        "total_fetches": len(times) + report.failures,
        "first_fetch_ns": int(times[0]),
        "last_fetch_ns": int(times[-1]),
        "avg_fetch_latency_ms": report.latency_ms,
        "unique_updates": len(updates),
        "first_update_ns": int(updates[0]),
        "last_update_ns": int(updates[-1]),
        "duration_seconds": float(updates[-1] - updates[0]) / 1e9,
        "avg_update_interval_ms": float(gaps_ms.mean()) if len(gaps_ms) else None,
        "median_update_interval_ms": float(np.median(gaps_ms)) if len(gaps_ms) else None,
        "failed_fetches": report.failures,
        "problem": report.problem,
        "notes": report.notes,
    }


def render_csv(summary: Summary) -> bytes:
    """Render the statistics as a block for each type."""
    begin_ns, end_ns = window(summary)
    rows: dict[str, list[list[str]]] = {kind: [] for kind in _STATS}
    for log, _ in servers(summary):
        for family in families(log):
            kind = family.type if family.type in _STATS else "gauge"
            stats: Any = statistics(family, log, begin_ns, end_ns)["stats"]
            values = [_text(stats.get(name)) for name in _STATS[kind]]
            labels = ",".join(f"{name}={value}" for name, value in family.labels)
            head = [urlsplit(log.url).netloc, family.type, family.name, unit_of(family.name) or ""]
            rows[kind].append([*map(csv_cell, head), *values, csv_cell(labels)])
    lines: list[Sequence[object]] = []
    for kind, found in rows.items():
        if found:
            lines += [()] if lines else []
            lines.append(("Endpoint", "Type", "Metric", "Unit", *_STATS[kind], "Labels"))
            lines += found
    return csv_file(lines)


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.12g}"


def unit_of(name: str) -> str | None:
    """Return the unit of a family, by its name."""
    if name in _RATIOS:
        return "ratio"
    return next((unit for suffix, unit in _UNITS if name.endswith(suffix)), None)


def render_gpu_lines(logs: Iterable[SourceLog]) -> Iterator[bytes]:
    """Yield a line for each GPU on each page where one of its values has changed."""
    for gpu in gpus(logs):
        log, labels, fields = gpu.log, gpu.labels, gpu.fields
        curves = {name: log.curve(*at).values * f.scale for name, (f, at) in fields.items()}
        numbers = [number for _, at in fields.values() for number in at]
        changed = {int(t) for number in numbers for t in log.changes(number).wall_ns}
        for index, wall_ns in enumerate(log.wall_ns.tolist()):
            if wall_ns not in changed:
                continue
            data = {name: float(values[index]) for name, values in curves.items()}
            line = {
                "timestamp_ns": wall_ns,
                "dcgm_url": log.url,
                "gpu_index": int(gpu.index) if gpu.index.isdecimal() else 0,
                "gpu_model_name": labels.get(gpu.exporter.model, ""),
                "gpu_uuid": gpu.uuid,
                "pci_bus_id": labels.get("pci_bus_id"),
                "device": labels.get("device"),
                "hostname": labels.get(gpu.exporter.host),
                "telemetry_data": {k: v for k, v in data.items() if not math.isnan(v)},
            }
            yield msgspec.json.encode(line) + b"\n"


def window(summary: Summary) -> tuple[int, int]:
    """Return the start and end of the load, which limit the statistics."""
    begin_ns = summary.context.profiling.start_wall_ns or summary.first_start_wall_ns
    return begin_ns, summary.last_end_wall_ns
