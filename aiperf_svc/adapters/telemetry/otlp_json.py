"""Converts a run's status and results to OTLP metrics in the protocol's JSON encoding.

Counters are cumulative sums since the start of the run. Distributions are summaries with their
quantiles. The encoding has 64-bit integers as strings.
"""

from collections.abc import Iterable, Iterator, Mapping

from aiperf_svc.adapters.results_api.prometheus_text import Sample, samples
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.run_result import MetricStats
from aiperf_svc.domain.json_objects import Json

CUMULATIVE = 2
SCOPE = "aiperf_svc"
RESULT = "aiperf_result_"
"""Prefix of the names of results."""
_UNITS = {"sec": "s", "ms": "ms", "tokens": "{token}", "requests": "{request}"}
_QUANTILES = {
    "min": 0.0, "p1": 0.01, "p5": 0.05, "p10": 0.1, "p25": 0.25, "p50": 0.5, "p75": 0.75,
    "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999, "max": 1.0,
}  # fmt: skip


def live(status: Status, origin: Mapping[str, str], *, now_wall_ns: int) -> Json:
    """Return a request with the values of a status. `origin` are attributes of the run."""
    times = _times(now_wall_ns - round(status.elapsed_s * 1e9), now_wall_ns)
    return _request(origin, _live_metrics(samples(status), times))


def results(
    found: InferenceResult, origin: Mapping[str, str], *, elapsed_s: float, now_wall_ns: int
) -> Json:
    """Return a request with the metrics of a run's results: request metrics with their quantiles,
    single numbers as gauges, numbers of the verdict on the system, and the verdict."""
    times = _times(now_wall_ns - round(elapsed_s * 1e9), now_wall_ns)
    return _request(origin, _result_metrics(found, times))


def _times(start_wall_ns: int, now_wall_ns: int) -> Json:
    return {"startTimeUnixNano": str(start_wall_ns), "timeUnixNano": str(now_wall_ns)}


def _request(origin: Mapping[str, str], metrics: Iterable[Json]) -> Json:
    scope = {"scope": {"name": SCOPE}, "metrics": list(metrics)}
    return {
        "resourceMetrics": [
            {"resource": {"attributes": _attributes(origin)}, "scopeMetrics": [scope]}
        ]
    }


def _attributes(labels: Mapping[str, str]) -> list[Json]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in labels.items()]


def _live_metrics(found: Iterable[Sample], times: Json) -> Iterator[Json]:
    metrics: dict[str, Json] = {}
    for each in found:
        point = {**times, "asDouble": each.value, "attributes": _attributes(each.labels)}
        known = metrics.get(each.name)
        if known is not None:
            known["sum" if each.kind == "counter" else "gauge"]["dataPoints"].append(point)
            continue
        # Receivers such as Prometheus append `_total` again.
        metric = {"name": each.name.removesuffix("_total"), "description": each.text}
        metric["unit"] = "s" if each.name.endswith("_seconds") else "1"
        metrics[each.name] = metric | _data(each.kind, point)
    yield from metrics.values()


def _data(kind: str, point: Json) -> Json:
    if kind == "gauge":
        return {"gauge": {"dataPoints": [point]}}
    whole = {"aggregationTemporality": CUMULATIVE, "isMonotonic": True}
    return {"sum": {"dataPoints": [point], **whole}}


def _result_metrics(found: InferenceResult, times: Json) -> Iterator[Json]:
    for tag, metric in found.metrics.items():
        mean = metric.stat("avg")
        if mean is not None:
            yield _metric(tag, metric, mean, times)
    for name, value in (found.system.metrics if found.system is not None else {}).items():
        yield _gauge(name, "", value, times)
    yield _gauge("verdict", "1", 1.0, times, {"verdict": found.verdict, "cause": found.cause})


def _metric(tag: str, metric: MetricStats, mean: float, times: Json) -> Json:
    unit = _UNITS.get(metric.unit, metric.unit)
    count, known = metric.count or 0, {name: metric.stat(name) for name in _QUANTILES}
    if not count or known["p50"] is None:
        return _gauge(tag, unit, mean, times)
    quantiles = [
        {"quantile": _QUANTILES[name], "value": value}
        for name, value in known.items()
        if value is not None
    ]
    total = metric.stat("sum")
    point = {
        **times,
        "count": str(int(count)),
        "sum": mean * count if total is None else total,
        "quantileValues": quantiles,
    }
    return {"name": RESULT + tag, "unit": unit, "summary": {"dataPoints": [point]}}


def _gauge(
    name: str, unit: str, value: float, times: Json, labels: Mapping[str, str] | None = None
) -> Json:
    known = {key: label for key, label in (labels or {}).items() if label}
    point = {**times, "asDouble": value, "attributes": _attributes(known)}
    return {"name": RESULT + name, "unit": unit, "gauge": {"dataPoints": [point]}}
