"""The one or two numbers of a run that are shown during an experiment."""

from aiperf_svc.core.compare.measured_run import RowKey
from aiperf_svc.core.experiments.outcomes import Measured
from aiperf_svc.core.results.run_result import INFERENCE

_OF_REQUESTS = {
    RowKey("request_throughput", "avg"): "requests/s",
    RowKey("time_to_first_token", "p99"): "ms TTFT p99",
    RowKey("request_latency", "p99"): "ms latency p99",
}
MOST = 2


def headline(measured: Measured) -> str:
    """Return throughput and tail latency of a benchmark of requests; of one on ranks its first
    metric."""
    if measured.kind == INFERENCE:
        texts = {key: text for key, text in _OF_REQUESTS.items() if key in measured.values}
    else:
        infos = ((key, measured.metrics[key.tag]) for key in measured.headline[:1])
        texts = {key: f"{info.unit} {info.name}" for key, info in infos}
    found = list(texts.items())[:MOST]
    return ", ".join(f"{measured.values[key]:,.4g} {text}" for key, text in found)
