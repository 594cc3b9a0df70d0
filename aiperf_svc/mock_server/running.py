"""A mock server for the duration of a `with` block, in separate processes."""

import contextlib
import dataclasses
import http.client
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiperf_svc.mock_server.config import MockServerConfig, args_from_config
from aiperf_svc.mock_server.processes import MockServerError

# By its path and without the working folder, whose modules could otherwise shadow the standard
# library.
_PROGRAM = (sys.executable, "-P", str(Path(__file__).parents[1] / "__main__.py"), "mock-server")
_STOP_TIMEOUT_S = 10.0


def execute(arguments: Sequence[str], owner_fd: int) -> "subprocess.Popen[bytes]":
    """Start a mock server that ends when the pipe of `owner_fd` does."""
    return subprocess.Popen(
        [*_PROGRAM, *arguments, f"--owner-fd={owner_fd}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        pass_fds=(owner_fd,),
        # Ctrl-C is for the owner, which may still need responses; the pipe signals the end.
        process_group=0,
    )


start = execute
"""How `running` starts a server."""


class RunningMockServer:
    """A mock server that accepts connections; see `running`."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", owner_fd: int, urls: tuple[str, ...]
    ) -> None:
        self._process = process
        self._owner_fd = owner_fd
        self.urls = urls
        self.url = urls[0]
        self.port = urlsplit(self.url).port or 0
        self.pid = process.pid

    def truth(self, *, rows: bool = False) -> dict[str, Any]:
        """Return what the server did since its start or the last reset: counters over all
        processes, those of each process (`processes`), and with `rows` (and a config with `truth`)
        a list `rows` with one object per request."""
        found: dict[str, Any] = json.loads(self._call("GET", f"/truth?rows={int(rows)}"))
        return found

    def reset(self) -> None:
        """Restart the account in every process."""
        self._call("POST", "/truth/reset")

    def stop(self) -> None:
        """Stop every process of the server and wait for their end. May be called more than once."""
        if self._owner_fd < 0:
            return
        os.close(self._owner_fd)
        self._owner_fd = -1
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the kernel kills its children with it
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _call(self, method: str, target: str) -> bytes:
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            # Our own server on this machine, with a self-signed certificate.
            context = ssl._create_unverified_context()
            connection = http.client.HTTPSConnection(host, self.port, context=context)
        else:
            connection = http.client.HTTPConnection(host, self.port)
        with contextlib.closing(connection):
            key = self._api_key
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            connection.request(method, target, headers=headers)
            response = connection.getresponse()
            body = response.read()
            if response.status != 200:
                raise MockServerError(f"{method} {target} got response {response.status}: {body!r}")
            return body

    _api_key = ""


@contextmanager
def running(config: MockServerConfig) -> Iterator[RunningMockServer]:
    """Start a mock server, wait until clients can connect, and stop it at the end in all cases.

    The server also stops by itself if this process dies. Raises MockServerError if it does not
    start; its own message goes to stderr.
    """
    owner_read, owner_write = os.pipe()
    try:
        process = start(args_from_config(dataclasses.replace(config, json=True)), owner_read)
    except BaseException:
        os.close(owner_write)
        raise
    finally:
        os.close(owner_read)
    assert process.stdout is not None
    server = RunningMockServer(process, owner_write, ("",))
    try:
        line = process.stdout.readline()
        if not line:
            raise MockServerError(
                f"the mock server ended with status {process.wait()} before it listened"
            )
        server = RunningMockServer(process, owner_write, tuple(json.loads(line)["urls"]))
        server._api_key = config.api_key
        yield server
    finally:
        server.stop()
