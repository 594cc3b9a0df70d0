"""Sends a run's metrics to an OpenTelemetry collector during the run, and its results at the end.

A failure never fails the run. It is reported once, and the next values are sent again.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from time import time_ns
from typing import Self

import aiohttp
import msgspec

from aiperf_svc.adapters.connect_failure import connect_failure
from aiperf_svc.adapters.exports.result_files import Results
from aiperf_svc.adapters.host.tasks import cancel
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.adapters.telemetry import otlp_json
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import Json

INTERVAL_S = 5.0
"""Time between two requests."""
TIMEOUT_S = 5.0
"""Longest time for a request. The end of a run waits this long for its results."""


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
        """Take the newest status; it is sent at the next interval."""
        self._status = status

    async def finish(self, results: Results | None) -> None:
        """Send the last status, and the results if there are any."""
        status = self._status
        if status is None:
            return
        await self._post(otlp_json.live(status, self._origin, now_wall_ns=time_ns()))
        if isinstance(results, InferenceResult) and "request_count" in results.metrics:
            content = otlp_json.results(
                results, self._origin, elapsed_s=status.elapsed_s, now_wall_ns=time_ns()
            )
            await self._post(content)
        if self._failure:
            self._note(f"the results were not sent to {self._url}: {self._failure}")

    async def _send_each(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            status = self._status
            if status is not None:
                before = self._failure
                await self._post(otlp_json.live(status, self._origin, now_wall_ns=time_ns()))
                if self._failure and not before:
                    self._note(f"metrics are not sent to {self._url}: {self._failure}")

    async def _post(self, content: Json) -> None:
        assert self._session is not None
        try:
            # A redirect could take the keys of the headers elsewhere.
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
    """Return why the receiver has not accepted all points; empty if it has."""
    if not 200 <= status < 300:
        return f"the receiver responds with status {status}"
    with contextlib.suppress(msgspec.MsgspecError, AttributeError, TypeError, ValueError):
        partial = msgspec.json.decode(body).get("partialSuccess") or {}
        rejected = int(partial.get("rejectedDataPoints", 0))
        if rejected:
            text = one_line(str(partial.get("errorMessage", "")))
            return f"the receiver rejects {rejected:,} points: {text}"
    return ""
