"""A run sends its metrics to an OTLP receiver, whose failures change nothing else."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from aiperf_svc.adapters.telemetry.otlp import OtlpSender
from tests.support.fake_results import decoded
from tests.support.fake_results_api import make_status as status
from tests.support.scripted_server import served

ORIGIN = {"service.name": "aiperf-svc"}
SUMMARY = {
    "request_count": {"unit": "requests", "avg": 40.0},
    "request_latency": {
        "unit": "ms", "avg": 2.0, "min": 1.0, "p50": 2.0, "p99": 3.0, "max": 3.0, "count": 40,
    },
        "aiperf_svc": {
        "verdict": "invalid", "cause": "client-bound", "system": {
            "verdict": "valid", "reasons": [], "checks": [], "sources": [],
            "metrics": {"gpu_power": 400.0},
        },
    },
}  # fmt: skip


class Receiver:
    """Records received metrics."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}
        self.response: tuple[int, str] = (200, "{}")
        self.came = asyncio.Event()

    async def take(self, request: web.Request) -> web.Response:
        assert request.path == "/v1/metrics"
        assert request.content_type == "application/json"
        self.headers = dict(request.headers)
        self.bodies.append(await request.json())
        self.came.set()
        code, text = self.response
        return web.Response(status=code, text=text, content_type="application/json")

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Return the newest value of each metric."""
        return {
            metric["name"]: metric
            for body in self.bodies
            for resource in body["resourceMetrics"]
            for scope in resource["scopeMetrics"]
            for metric in scope["metrics"]
        }


@asynccontextmanager
async def receiver() -> AsyncIterator[tuple[Receiver, str]]:
    found = Receiver()
    async with served("/{path:.*}", found.take) as url:
        yield found, f"{url}/v1/metrics"


def sender(url: str, notes: list[str], **options: Any) -> OtlpSender:
    return OtlpSender(url, {"api-key": "s3cret"}, ORIGIN, note=notes.append, **options)


async def test_status_is_sent_at_intervals_and_results_last() -> None:
    notes: list[str] = []
    async with receiver() as (found, url), sender(url, notes, interval_s=0.05) as sending:
        sending.show(status(completed=7, in_flight=3, elapsed_s=5.0))
        await asyncio.wait_for(found.came.wait(), 10)
        live = found.metrics()
        await sending.finish(decoded(SUMMARY))
    assert notes == []
    assert found.headers["api-key"] == "s3cret"
    completed = live["aiperf_requests_completed"]["sum"]
    assert (completed["aggregationTemporality"], completed["isMonotonic"]) == (2, True)
    (point,) = completed["dataPoints"]
    assert point["asDouble"] == 7
    assert point["attributes"] == [{"key": "phase", "value": {"stringValue": "profiling"}}]
    assert int(point["timeUnixNano"]) - int(point["startTimeUnixNano"]) >= 5 * 10**9
    assert live["aiperf_requests_in_flight"]["gauge"]["dataPoints"][0]["asDouble"] == 3
    results = found.metrics()
    assert results["aiperf_result_request_count"]["gauge"]["dataPoints"][0]["asDouble"] == 40
    (latency,) = results["aiperf_result_request_latency"]["summary"]["dataPoints"]
    assert (latency["count"], latency["sum"]) == ("40", 80.0)
    assert {"quantile": 0.99, "value": 3.0} in latency["quantileValues"]
    assert results["aiperf_result_gpu_power"]["gauge"]["dataPoints"][0]["asDouble"] == 400
    assert "client-bound" in json.dumps(results["aiperf_result_verdict"])
    assert "aiperf_result_input_config" not in results


async def test_points_of_a_run_have_one_start() -> None:
    async with receiver() as (found, url), sender(url, [], interval_s=0.02) as sending:
        sending.show(status(elapsed_s=5.0))
        await asyncio.wait_for(found.came.wait(), 10)
        sending.show(status(elapsed_s=7.0))
        await sending.finish(decoded(SUMMARY))
    assert len(found.bodies) > 2
    starts = set(re.findall(r'"startTimeUnixNano": "(\d+)"', json.dumps(found.bodies)))
    assert len(starts) == 1


async def test_sums_of_the_next_trial_have_another_start() -> None:
    points = []
    async with receiver() as (found, url), sender(url, []) as sending:
        for completed in (5, 7, 2, 3):
            sending.show(status(completed=completed))
            await sending.finish(None)
            (point,) = found.metrics()["aiperf_requests_completed"]["sum"]["dataPoints"]
            points.append(point)
    starts = [int(point["startTimeUnixNano"]) for point in points]
    assert starts[0] == starts[1] < starts[2] == starts[3]
    assert starts[2] == int(points[1]["timeUnixNano"])


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ((500, ""), "the receiver responds with status 500"),
        ((307, ""), "the receiver responds with status 307"),
        (
            (200, '{"partialSuccess": {"rejectedDataPoints": "3", "errorMessage": "too old"}}'),
            "the receiver rejects 3 points: too old",
        ),
    ],
)
async def test_refusing_receiver_is_reported_once_and_last(
    response: tuple[int, str], reason: str
) -> None:
    notes: list[str] = []
    async with receiver() as (found, url), sender(url, notes, interval_s=0.02) as sending:
        found.response = response
        sending.show(status())
        while len(found.bodies) < 4:
            found.came.clear()
            await asyncio.wait_for(found.came.wait(), 10)
        await sending.finish(decoded(SUMMARY))
    assert notes == [
        f"metrics are not sent to {url}: {reason}",
        f"the results were not sent to {url}: {reason}",
    ]


async def test_unreachable_receiver_is_reported() -> None:
    notes: list[str] = []
    url = "http://127.0.0.1:1/v1/metrics"
    async with sender(url, notes) as sending:
        sending.show(status())
        await sending.finish(None)
    assert notes == [f"the results were not sent to {url}: cannot connect: Connection refused"]
    async with receiver() as (found, url), sender(url, notes) as sending:
        found.response = (200, "\x00 thanks")
        sending.show(status())
        await sending.finish(None)
    assert len(notes) == 1
