"""Server and client of the socket file over which the runner follows a run on this machine.

A run in a cluster is followed over HTTP (`server.py`, `client.py`). On this machine the runner is
the only client, and importing an HTTP library in two processes would add a fifth to the CPU of a
short run (docs/decisions/0051-where-http-and-metrics-are-read-by-own-code.md). The folder of the
socket belongs to the runner, so no token is needed.

Each connection carries one request, a line of JSON, and one response, JSON up to the end of the
connection.
"""

import asyncio
from pathlib import Path
from time import time_ns
from typing import Any

import msgspec

from aiperf_svc.adapters.exports.result_files import Results, decode, encode
from aiperf_svc.adapters.host.tasks import cancel
from aiperf_svc.adapters.results_api.provider import ResultsProvider, refused_start
from aiperf_svc.adapters.results_api.run_api import ApiRefused, ApiUnavailable
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.core.events.report import EventReport
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line

RESPONSE_S = 10.0
"""Longest time until a response, in addition to the wait that the request asks for."""
CONFLICT = 409
"""Status of a refusal because something is not available yet, as over HTTP."""


class _Request(msgspec.Struct, omit_defaults=True):
    method: str
    """`status`, `summary`, `cancel`, `start`, `clock`, `events` or `collected`."""
    after: int | None = None
    timeout_s: float = 0.0
    reason: str = ""
    at_wall_ns: int = 0
    trial: int = 1
    events: tuple[EventReport, ...] = ()


class _Response(msgspec.Struct, omit_defaults=True):
    content: msgspec.Raw = msgspec.Raw(b"null")
    refused: str = ""


class LocalResultsServer:
    """Responds to requests about a run."""

    def __init__(self, provider: ResultsProvider) -> None:
        self._provider = provider
        self._server: asyncio.Server | None = None
        self._responding: set[asyncio.Task[Any]] = set()

    async def listen(self, path: Path) -> None:
        """Listen at the socket file `path`. Raises EnvironmentProblem."""
        try:
            self._server = await asyncio.start_unix_server(self._serve, str(path))
        except OSError as error:
            raise EnvironmentProblem(f"cannot listen on {path}: {error.strerror}") from error

    async def close(self) -> None:
        """Stop listening and end the open connections."""
        if self._server is not None:
            self._server.close()
        await cancel(*self._responding)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._responding.add(task)
        try:
            request = msgspec.json.decode(await reader.readline(), type=_Request)
            writer.write(msgspec.json.encode(await _respond(self._provider, request)))
            await writer.drain()
        except (ConnectionError, msgspec.DecodeError):
            return  # The runner has left.
        finally:
            writer.close()
            self._responding.discard(task)
        if request.method == "collected":
            self._provider.collected()


async def _respond(provider: ResultsProvider, request: _Request) -> _Response:
    content: Any = None
    match request.method:
        case "status":
            if request.after is not None:
                await provider.wait_change(request.after, request.timeout_s)
            content = provider.status()
        case "summary":
            found = provider.results()
            if found is None:
                return _Response(refused="the summary is not computed yet")
            content = msgspec.Raw(encode(found))
        case "cancel":
            provider.cancel(one_line(request.reason))
        case "start":
            if problem := refused_start(provider, request.at_wall_ns, request.trial):
                return _Response(refused=problem)
            provider.start(request.at_wall_ns)
        case "events":
            provider.set_events(request.at_wall_ns, request.events)
        case "clock":
            content = time_ns()
        case "collected" if not provider.status().is_settled:
            return _Response(refused="the results are not final yet")
    return _Response(msgspec.Raw(msgspec.json.encode(content)))


class LocalResultsClient:
    """A `RunApi` for the run that serves the socket file `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def status(self, *, after: int | None = None, timeout_s: float = 0.0) -> Status:
        """Return the run's state. With `after`, wait until its number differs or the time is up."""
        content = await self._call(_Request("status", after=after, timeout_s=timeout_s))
        return msgspec.json.decode(content, type=Status)

    async def results(self) -> Results:
        """Return the results of the run or experiment."""
        return decode(await self._call(_Request("summary")))

    async def cancel(self, reason: str) -> None:
        """Stop the run; what was measured is kept and reported."""
        await self._call(_Request("cancel", reason=reason))

    async def start(self, at_wall_ns: int, *, trial: int = 1) -> None:
        """Start the load of a held run, or of this trial of it, at this time."""
        await self._call(_Request("start", at_wall_ns=at_wall_ns, trial=trial))

    async def clock(self) -> int:
        """Return the time in ns by the clock of the records manager."""
        return msgspec.json.decode(await self._call(_Request("clock")), type=int)

    async def set_events(self, start_wall_ns: int, reports: tuple[EventReport, ...]) -> None:
        """Set all that is known of the events of the load that started at this time."""
        await self._call(_Request("events", at_wall_ns=start_wall_ns, events=reports))

    async def collected(self) -> None:
        """Tell the records manager that the results were fetched, so that it may end."""
        await self._call(_Request("collected"))

    async def _call(self, request: _Request) -> msgspec.Raw:
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(request.timeout_s + RESPONSE_S):
                reader, writer = await asyncio.open_unix_connection(str(self._path))
                writer.write(msgspec.json.encode(request) + b"\n")
                response = msgspec.json.decode(await reader.read(), type=_Response)
        except TimeoutError as error:
            raise ApiUnavailable("the records manager did not respond in time") from error
        except (OSError, msgspec.DecodeError) as error:
            raise ApiUnavailable(f"the records manager does not respond: {error}") from error
        finally:
            if writer is not None:
                writer.close()
        if response.refused:
            raise ApiRefused(f"results: {response.refused}", status=CONFLICT)
        return response.content
