"""Both ends of the socket file over which the runner follows a run on this machine.

A run in a cluster is followed over HTTP (`server.py`, `client.py`). On this machine nobody but the
runner asks, and two imports of an HTTP library would take longer than a short run. The folder of
the socket is the runner's own, so no token is needed.

Each connection carries one question, a line of JSON, and its reply, JSON up to the end of the
connection.
"""

import asyncio
from pathlib import Path
from time import time_ns
from typing import Any

import msgspec

from aiperf_svc.adapters.results_api.provider import ResultsProvider, refused_start
from aiperf_svc.adapters.results_api.run_api import ApiRefused, ApiUnavailable
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line

RESPONSE_S = 10.0
"""Longest time until a reply, in addition to the time that the question says to wait."""
CONFLICT = 409
"""Status of a refusal: what is asked for is not there yet, as over HTTP."""


class _Question(msgspec.Struct, omit_defaults=True):
    about: str
    """`status`, `summary`, `cancel`, `start`, `clock` or `collected`."""
    after: int | None = None
    timeout_s: float = 0.0
    reason: str = ""
    at_wall_ns: int = 0
    trial: int = 1


class _Reply(msgspec.Struct, omit_defaults=True):
    content: msgspec.Raw = msgspec.Raw(b"null")
    refused: str = ""


class LocalResultsServer:
    """Replies to the questions about a run."""

    def __init__(self, provider: ResultsProvider) -> None:
        self._provider = provider
        self._server: asyncio.Server | None = None
        self._replying: set[asyncio.Task[Any]] = set()

    async def listen(self, path: Path) -> None:
        """Start to listen at the socket file `path`. Raises EnvironmentProblem."""
        try:
            self._server = await asyncio.start_unix_server(self._serve, str(path))
        except OSError as error:
            raise EnvironmentProblem(f"cannot listen on {path}: {error.strerror}") from error

    async def close(self) -> None:
        """Stop listening and end the open connections."""
        if self._server is not None:
            self._server.close()
        for task in self._replying:
            task.cancel()
        await asyncio.gather(*self._replying, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._replying.add(task)
        try:
            question = msgspec.json.decode(await reader.readline(), type=_Question)
            writer.write(msgspec.json.encode(await _reply(self._provider, question)))
            await writer.drain()
        except (ConnectionError, msgspec.DecodeError):
            return  # The runner has left.
        finally:
            writer.close()
            self._replying.discard(task)
        if question.about == "collected":
            self._provider.collected()


async def _reply(provider: ResultsProvider, question: _Question) -> _Reply:
    content: Any = None
    match question.about:
        case "status":
            if question.after is not None:
                await provider.wait_change(question.after, question.timeout_s)
            content = provider.status()
        case "summary":
            content = provider.summary()
            if content is None:
                return _Reply(refused="the summary is not computed yet")
        case "cancel":
            provider.cancel(one_line(question.reason))
        case "start":
            if problem := refused_start(provider, question.at_wall_ns, question.trial):
                return _Reply(refused=problem)
            provider.start(question.at_wall_ns)
        case "clock":
            content = time_ns()
        case "collected" if not provider.status().is_settled:
            return _Reply(refused="the results are not final yet")
    return _Reply(msgspec.Raw(msgspec.json.encode(content)))


class LocalResultsClient:
    """Asks about the run that serves the socket file `path`. It is a `RunApi`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def status(self, *, after: int | None = None, timeout_s: float = 0.0) -> Status:
        """Return the run's state. With `after`, wait until its number differs or the time is up."""
        content = await self._ask(_Question("status", after=after, timeout_s=timeout_s))
        return msgspec.json.decode(content, type=Status)

    async def summary(self) -> dict[str, Any]:
        """Return the content of profile_export_aiperf.json."""
        summary: dict[str, Any] = msgspec.json.decode(await self._ask(_Question("summary")))
        return summary

    async def cancel(self, reason: str) -> None:
        """Stop the run; what was measured is kept and reported."""
        await self._ask(_Question("cancel", reason=reason))

    async def start(self, at_wall_ns: int, *, trial: int = 1) -> None:
        """Start the load of a held run, or of this trial of it, at this time."""
        await self._ask(_Question("start", at_wall_ns=at_wall_ns, trial=trial))

    async def clock(self) -> int:
        """Return the time in ns by the clock of the records manager."""
        return msgspec.json.decode(await self._ask(_Question("clock")), type=int)

    async def collected(self) -> None:
        """Tell the records manager that the results were fetched, so that it may end."""
        await self._ask(_Question("collected"))

    async def _ask(self, question: _Question) -> msgspec.Raw:
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(question.timeout_s + RESPONSE_S):
                reader, writer = await asyncio.open_unix_connection(str(self._path))
                writer.write(msgspec.json.encode(question) + b"\n")
                reply = msgspec.json.decode(await reader.read(), type=_Reply)
        except TimeoutError as error:
            raise ApiUnavailable("the records manager did not respond in time") from error
        except (OSError, msgspec.DecodeError) as error:
            raise ApiUnavailable(f"the records manager does not respond: {error}") from error
        finally:
            if writer is not None:
                writer.close()
        if reply.refused:
            raise ApiRefused(f"results: {reply.refused}", status=CONFLICT)
        return reply.content
