"""`profile_export_aiperf_timeslices.json` and `.csv`: the results by slices of time, in AIPerf's
layout. The position of a slice in AIPerf's list is its number; ours names it, as slices without a
request are left out."""

import csv
from collections.abc import Sequence
from io import StringIO

import msgspec

from aiperf_svc.adapters.exports.json_export import input_config
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.results.slices import Slice
from aiperf_svc.core.results.summary import metric_stats
from aiperf_svc.domain.metric_catalog import CATALOG

NAME = "profile_export_aiperf_timeslices"
STATS = (
    "avg", "min", "max", "sum", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "std",
    "count",
)  # fmt: skip


def render_json(slices: Sequence[Slice], config: BenchmarkConfig) -> bytes:
    """Render the JSON file."""
    content = {
        "timeslices": [
            {
                "timeslice_index": each.index,
                "start_ns": each.start_wall_ns,
                "end_ns": each.end_wall_ns,
                "is_complete": each.is_complete,
                **metric_stats(each.metrics, each.scalars),
            }
            for each in slices
        ],
        "input_config": input_config(config),
    }
    return msgspec.json.encode(content) + b"\n"


def render_csv(slices: Sequence[Slice]) -> bytes:
    """Render the CSV file: a row for each slice, metric and statistic."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("Timeslice", "Metric", "Unit", "Stat", "Value"))
    for each in slices:
        for tag, found in sorted(metric_stats(each.metrics, each.scalars).items()):
            for stat in STATS:
                value = found.stat(stat)
                if value is not None:
                    shown = value if stat == "count" else f"{value:.2f}"
                    writer.writerow((each.index, CATALOG[tag].name, found.unit, stat, shown))
    return text.getvalue().encode()
