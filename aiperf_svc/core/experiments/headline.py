"""The one or two numbers of a run that are shown while an experiment goes on."""

from typing import Any

_OF_REQUESTS = (
    ("request_throughput", "avg", "requests/s"),
    ("time_to_first_token", "p99", "ms TTFT p99"),
    ("request_latency", "p99", "ms latency p99"),
)
MOST = 2


def headline(summary: dict[str, Any]) -> str:
    """Return throughput and tail latency of a benchmark of requests; of one on ranks its first
    metric. `summary` is the content of profile_export_aiperf.json or results.json."""
    if "metrics" in summary:
        found = [
            (metric["avg"], f"{metric['unit']} {metric['name']}")
            for metric in summary["metrics"][:1]
        ]
    else:
        found = [
            (value, text)
            for tag, statistic, text in _OF_REQUESTS
            if (value := summary.get(tag, {}).get(statistic)) is not None
        ]
    return ", ".join(f"{value:,.4g} {text}" for value, text in found[:MOST])
