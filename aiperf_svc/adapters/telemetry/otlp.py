"""Sends a run's metrics to an OpenTelemetry collector during the run, and its results at the end.

A failure never fails the run. It is reported once, and the next values are sent as usual.

Requests use the protocol's JSON encoding, which encodes 64-bit integers as strings. Counters are
cumulative sums since the start of the run. Distributions are summaries with their quantiles.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import time_ns
from typing import Self

import aiohttp
import msgspec

from aiperf_svc.adapters.connect_failure import connect_failure
from aiperf_svc.adapters.exports.result_files import Results
from aiperf_svc.adapters.host.tasks import cancel
from aiperf_svc.adapters.results_api.prometheus_text import Sample, samples
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.run_result import MetricStats
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import Json

INTERVAL_S = 5.0
"""Interval between requests."""
TIMEOUT_S = 5.0
"""Timeout of a request. The end of a run waits this long for its results."""
CUMULATIVE = 2
SCOPE = "aiperf_svc"
RESULT = "aiperf_result_"
"""Name prefix of results."""
_UNITS = {"sec": "s", "ms": "ms", "tokens": "{token}", "requests": "{request}"}
_QUANTILES = {
    "min": 0.0, "p1": 0.01, "p5": 0.05, "p10": 0.1, "p25": 0.25, "p50": 0.5, "p75": 0.75,
    "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999, "max": 1.0,
}  # fmt: skip


class OtlpSender:
    """Sends the metrics of one run, from its first status to its results."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        origin: Mapping[str, str],
        *,
        note: Callable[[str], None],
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._url = url
        self._origin = origin
        self._note = note
        self._interval_s = interval_s
        self._headers = headers
        self._status: Status | None = None
        self._start_wall_ns = 0
        """Start of the run, the same in all points except sums that were restarted."""
        self._sums: dict[tuple[str, ...], tuple[float, int]] = {}
        """The last value and the start of each sum."""
        self._sent_wall_ns = 0
        """Time of the last points."""
        self._failure = ""
        self._session: aiohttp.ClientSession | None = None
        self._sending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        headers = {**self._headers, "Content-Type": "application/json"}
        self._session = aiohttp.ClientSession(timeout=timeout, headers=headers)
        self._sending = asyncio.create_task(self._send_each(), name="otlp")
        return self

    async def __aexit__(self, *_error: object) -> None:
        assert self._session is not None
        if self._sending is not None:
            await cancel(self._sending)
        await self._session.close()

    def show(self, status: Status) -> None:
        """Store the newest status, which is sent at the next interval."""
        if self._status is None:
            self._start_wall_ns = time_ns() - round(status.elapsed_s * 1e9)
        self._status = status

    async def finish(self, results: Results | None) -> None:
        """Send the last status, and the results if there are any."""
        status = self._status
        if status is None:
            return
        await self._post(self._live_request(status))
        if isinstance(results, InferenceResult) and "request_count" in results.metrics:
            await self._post(results_request(results, self._origin, self._times()))
        if self._failure:
            self._note(f"the results were not sent to {self._url}: {self._failure}")

    async def _send_each(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            status = self._status
            if status is not None:
                before = self._failure
                await self._post(self._live_request(status))
                if self._failure and not before:
                    self._note(f"metrics are not sent to {self._url}: {self._failure}")

    def _live_request(self, status: Status) -> Json:
        """Return a request with the values of a status."""
        times = self._times()
        found = [
            (each, times | {"startTimeUnixNano": str(self._start_of(each))})
            for each in samples(status)
        ]
        self._sent_wall_ns = int(times["timeUnixNano"])
        return _request(self._origin, _live_metrics(found))

    def _times(self) -> Json:
        """Return the timestamps of current points."""
        return {
            "startTimeUnixNano": str(self._start_wall_ns),
            "timeUnixNano": str(time_ns()),
        }

    def _start_of(self, sample: Sample) -> int:
        """Return the start of a value. Sums of requests restart with each trial."""
        if sample.kind == "gauge":
            return self._start_wall_ns
        key = (sample.name, *sample.labels.values())
        last, start_wall_ns = self._sums.get(key, (0.0, self._start_wall_ns))
        if sample.value < last:
            start_wall_ns = self._sent_wall_ns
        self._sums[key] = sample.value, start_wall_ns
        return start_wall_ns

    async def _post(self, content: Json) -> None:
        assert self._session is not None
        try:
            # A redirect could send the keys in the headers to another server.
            async with self._session.post(
                self._url, data=msgspec.json.encode(content), allow_redirects=False
            ) as response:
                body = await response.content.read(4096)
                self._failure = _refusal(response.status, body)
        except TimeoutError:
            self._failure = f"no response within {TIMEOUT_S:g} s"
        except aiohttp.ClientConnectorError as error:
            self._failure = f"cannot connect: {connect_failure(error)}"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self._failure = one_line(str(error) or type(error).__name__)


def _refusal(status: int, body: bytes) -> str:
    """Return the reason why the receiver has not accepted all points; empty if it has."""
    if not 200 <= status < 300:
        return f"the receiver responds with status {status}"
    with contextlib.suppress(msgspec.MsgspecError, AttributeError, TypeError, ValueError):
        partial = msgspec.json.decode(body).get("partialSuccess") or {}
        rejected = int(partial.get("rejectedDataPoints", 0))
        if rejected:
            text = one_line(str(partial.get("errorMessage", "")))
            return f"the receiver rejects {rejected:,} points: {text}"
    return ""


def results_request(found: InferenceResult, origin: Mapping[str, str], times: Json) -> Json:
    """Return a request with the metrics of a run's results: request metrics with their quantiles,
    single numbers as gauges, the numbers of the system verdict, and the verdict. `origin` contains
    attributes of the run, `times` the timestamps of each point."""
    return _request(origin, _result_metrics(found, times))


def _request(origin: Mapping[str, str], metrics: Iterable[Json]) -> Json:
    scope = {"scope": {"name": SCOPE}, "metrics": list(metrics)}
    return {
        "resourceMetrics": [
            {"resource": {"attributes": _attributes(origin)}, "scopeMetrics": [scope]}
        ]
    }


def _attributes(labels: Mapping[str, str]) -> list[Json]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in labels.items()]


def _live_metrics(found: Iterable[tuple[Sample, Json]]) -> Iterator[Json]:
    """Yield the metrics of samples, each with the timestamps of its point."""
    metrics: dict[str, Json] = {}
    for each, times in found:
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
