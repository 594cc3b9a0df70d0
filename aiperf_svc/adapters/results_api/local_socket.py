"""Server and client of the socket file through which the runner follows a run on this machine.

A run in a cluster is followed over HTTP (`server.py`, `client.py`). On this machine the runner is
the only client, and importing an HTTP library in two processes would add a fifth to the CPU time of
a short run (docs/decisions/0051-where-http-and-metrics-are-read-by-own-code.md). The folder of the
socket belongs to the runner, so no token is needed.

A connection carries one request, which is a line of JSON, and one response, which is JSON up to the
end of the connection.
"""

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from aiperf_svc.adapters.host.tasks import cancel
from aiperf_svc.adapters.results_api.provider import Refused, ResultsProvider, respond
from aiperf_svc.adapters.results_api.run_api import (
    ApiRefused,
    ApiUnavailable,
    Collected,
    Operation,
    RunApi,
)
from aiperf_svc.domain.errors import EnvironmentProblem

RESPONSE_S = 10.0
"""Timeout of a response, in addition to the wait in the request."""
MAX_REQUEST_BYTES = 2**40
"""Maximum size of a request, large enough for any: the runner sends all reports of a run at once
and is the only client."""
CONFLICT = 409
"""Status of a refusal because something is not available yet, as over HTTP."""


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
            self._server = await asyncio.start_unix_server(
                self._serve, str(path), limit=MAX_REQUEST_BYTES
            )
        except OSError as error:
            raise EnvironmentProblem(f"cannot listen on {path}: {error.strerror}") from error

    async def close(self) -> None:
        """Stop listening and close the open connections."""
        if self._server is not None:
            self._server.close()
        await cancel(*self._responding)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._responding.add(task)
        try:
            operation = msgspec.json.decode(await reader.readline(), type=Operation)
            response = await _response(self._provider, operation)
            writer.write(msgspec.json.encode(response))
            await writer.drain()
        except (ConnectionError, msgspec.DecodeError):
            return  # the runner has left
        finally:
            writer.close()
            self._responding.discard(task)
        if isinstance(operation, Collected) and not response.refused:
            self._provider.collected()


async def _response(provider: ResultsProvider, operation: Operation) -> _Response:
    try:
        return _Response(msgspec.Raw(await respond(provider, operation)))
    except Refused as refused:
        return _Response(refused=str(refused))


class LocalResultsClient(RunApi):
    """A client of the run that serves the socket file `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def _call(self, operation: Operation, *, wait_s: float = 0.0) -> bytes:
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(wait_s + RESPONSE_S):
                reader, writer = await asyncio.open_unix_connection(str(self._path))
                writer.write(msgspec.json.encode(operation) + b"\n")
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
        return bytes(response.content)
