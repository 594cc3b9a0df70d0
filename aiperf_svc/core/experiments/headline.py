"""Numbers shown during an experiment: one or two of a run, and the time left."""

from aiperf_svc.core.compare.measured_run import RowKey
from aiperf_svc.core.experiments.outcomes import Measured
from aiperf_svc.core.results.run_result import INFERENCE
from aiperf_svc.domain.number_text import significant


def time_left_s(*, left: int, ended: int, took_s: float, since_s: float) -> float | None:
    """Return the expected seconds until the last trial has ended; None before the end of the first
    trial.

    `left` is the number of unfinished trials, the current one included. `ended` trials took
    `took_s` together, and the latest one ended `since_s` ago. Neither includes the start of the
    processes.
    """
    if not ended:
        return None
    return max(0.0, left * took_s / ended - since_s)


_INFERENCE_LABELS = {
    RowKey("request_throughput", "avg"): "requests/s",
    RowKey("time_to_first_token", "p99"): "ms TTFT p99",
    RowKey("request_latency", "p99"): "ms latency p99",
}
MAX_METRICS = 2


def headline(measured: Measured) -> str:
    """Return throughput and tail latency of an inference benchmark, or the first metric of a
    benchmark on ranks."""
    if measured.kind == INFERENCE:
        texts = {key: text for key, text in _INFERENCE_LABELS.items() if key in measured.values}
    else:
        infos = ((key, measured.metrics[key.tag]) for key in measured.headline[:1])
        texts = {key: f"{info.unit} {info.name}" for key, info in infos}
    found = list(texts.items())[:MAX_METRICS]
    return ", ".join(f"{significant(measured.values[key])} {text}" for key, text in found)
