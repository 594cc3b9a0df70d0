"""Events of a run on this machine. They kill, stop or delay the server's processes.

Without a process in the config, they affect the mock server that listens at the endpoint's URL. Its
page `/truth` identifies it; no other server has this page.
"""

import asyncio
import contextlib
import http.client
import json
import os
import signal
import ssl
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aiperf_svc.adapters.events.event_run import PROOF_S, EventFailed, EventRun, wait_for_proof
from aiperf_svc.adapters.host.process_stats import PROC, read_stat
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.urls import address_of, is_loopback
from aiperf_svc.domain.errors import ConfigError

LISTENING = "0A"
"""State of a listening socket in /proc/net/tcp."""
TRUTH_S = 5.0
"""Timeout of the mock server's own pages."""
ENDED_STATES = ("", "Z")
"""States of a process that has ended: it does not exist, or it is a zombie."""
_GUARD = 'read -r _ || exit 0; kill -STOP "$@" || exit 1; echo stopped; read -r _; kill -CONT "$@"'
"""Stops processes from the first line of its standard input until the end of the input, which also
follows if this process is killed."""


@dataclass(frozen=True)
class LocalProcess:
    """A process, distinguished from later ones with the same number."""

    pid: int
    name: str
    started: str
    """Start time in clock ticks since boot."""

    @property
    def text(self) -> str:
        return f"process {self.pid} ({self.name})"

    @property
    def state(self) -> str:
        """State letter of /proc/PID/stat; empty if it is gone."""
        found = read_stat(self.pid)
        return found.state if found is not None and found.started == self.started else ""


def _process(pid: int) -> LocalProcess | None:
    found = read_stat(pid)
    if found is None or found.state in ENDED_STATES:
        return None
    return LocalProcess(pid, found.name.strip(), found.started)


class LocalServer:
    def __init__(self, config: BenchmarkConfig) -> None:
        self._config = config

    def check(self) -> None:
        """Find the targets of each event before anything is started. Raises ConfigError."""
        for number, event in enumerate(self._config.events):
            try:
                if event.do == "delay":
                    self._truth()
                    continue
                for each in self._find(event.process):
                    _signal(each, 0)  # may this user signal it?
            except EventFailed as error:
                raise ConfigError(f"events: number {number + 1} ({event.do}): {error}") from error

    async def perform(self, run: EventRun) -> None:
        """Carry out an event. Raises EventFailed."""
        if run.event.do == "delay":
            await self._delay(run)
            return
        chosen = run.pick(await asyncio.to_thread(self._find, run.event.process))
        for each in chosen:
            _signal(each, 0)
        await run.until_due()
        await {"kill": _kill, "stall": _stall}[run.event.do](run, chosen)

    # --- choosing processes ----------------------------------------------------------------------

    def _find(self, name: str | None) -> list[LocalProcess]:
        """Return the processes with this name, or those of the mock server. Raises EventFailed."""
        if name is None:
            self._truth()
            found = _listeners(self._port)
            if not found:
                raise EventFailed(f"no process of this user listens at port {self._port}")
            return found
        if name.isdecimal():
            one = _process(int(name))
            if one is None:
                raise EventFailed(f"no process has the number {name}")
            return [one]
        found = [each for each in map(_process, _pids()) if each is not None and each.name == name]
        if not found:
            raise EventFailed(f"no process is named {name!r} (/proc/PID/comm)")
        if len(found) > 1:
            pids = ", ".join(str(each.pid) for each in found)
            raise EventFailed(
                f"{len(found)} processes are named {name!r}: {pids}; name one by its number"
            )
        return found

    @property
    def _port(self) -> int:
        host, port, _ = address_of(self._config.endpoint.url)
        if not is_loopback(host):
            raise EventFailed(
                f"{self._config.endpoint.url} is not on this machine: name the process (process), "
                "or run in a stack"
            )
        return port

    def _truth(self, path: str = "/truth", method: str = "GET") -> dict[str, Any]:
        """Return a page of the mock server. Raises EventFailed if another server listens."""
        port = self._port
        host, _, is_tls = address_of(self._config.endpoint.url)
        connection: http.client.HTTPConnection
        if is_tls:
            # A page of a server on this machine; the request contains no secret.
            context = ssl._create_unverified_context()
            connection = http.client.HTTPSConnection(host, port, timeout=TRUTH_S, context=context)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=TRUTH_S)
        key = os.environ.get(self._config.endpoint.api_key_env or "", "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        with contextlib.closing(connection):
            try:
                connection.request(method, path, headers=headers)
                response = connection.getresponse()
                body = response.read()
            except (OSError, http.client.HTTPException) as error:
                raise EventFailed(f"the server at port {port} does not respond: {error}") from error
        if response.status == http.HTTPStatus.CONFLICT:
            raise EventFailed(json.loads(body)["error"]["message"])
        try:
            found = json.loads(body)
            is_mock = response.status == http.HTTPStatus.OK and "processes" in found
        except ValueError:
            is_mock = False
        if not is_mock:
            raise EventFailed(
                f"the server at port {port} is not the mock server (aiperf-svc mock-server); to "
                "disturb another one, name its process (process) and set foreign: true"
            )
        assert isinstance(found, dict)
        return found

    # --- delay -----------------------------------------------------------------------------------

    async def _delay(self, run: EventRun) -> None:
        latency_ns, length_ns = run.event.latency or 0, run.event.duration or 0
        before = (await asyncio.to_thread(self._truth))["delayed"]
        subject = f"the mock server at port {self._port}"
        path = f"/truth/delay?latency_ns={latency_ns}&for_ns={length_ns}"
        await run.until_due()
        run.begin(subject)
        await asyncio.to_thread(self._truth, path, "POST")
        try:
            await run.hold()
        finally:
            # If this process is gone, the server ends the delay by itself, a little later.
            await asyncio.to_thread(self._truth, "/truth/delay?latency_ns=0&for_ns=0", "POST")
        run.end()
        delayed = (await asyncio.to_thread(self._truth))["delayed"] - before
        if not delayed:
            raise EventFailed("not verified: the server has delayed no request")
        run.verify(f"/truth: {delayed:,} requests delayed by {latency_ns / 1e6:g} ms")


async def _kill(run: EventRun, chosen: Sequence[LocalProcess]) -> None:
    run.begin(_names(chosen))
    for each in chosen:
        _signal(each, signal.SIGKILL)

    async def check() -> str | None:
        return "gone" if all(each.state in ENDED_STATES for each in chosen) else None

    await wait_for_proof(check, f"{_names(chosen)} still runs", PROOF_S)
    run.verify("gone from /proc")


async def _stall(run: EventRun, chosen: Sequence[LocalProcess]) -> None:
    async with _stopped(run, chosen):

        async def check() -> str | None:
            states = {each.state for each in chosen}
            return "T" if states == {"T"} else None

        await wait_for_proof(check, f"{_names(chosen)} is not stopped", PROOF_S)
        run.verify("state T in /proc/PID/stat")
        await run.hold()
        left = [each for each in chosen if each.state != "T"]
        if left:
            raise EventFailed(f"{_names(left)} did not stay stopped for its duration")

    async def continued() -> str | None:
        return None if any(each.state == "T" for each in chosen) else "continued"

    await wait_for_proof(continued, f"{_names(chosen)} is still stopped", PROOF_S)
    run.verify("continued afterwards")


@contextlib.asynccontextmanager
async def _stopped(run: EventRun, chosen: Sequence[LocalProcess]) -> AsyncIterator[None]:
    """Stop processes while the context is open, at most until this process ends."""
    pids = [str(each.pid) for each in chosen]
    guard = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", _GUARD, "sh", *pids,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert guard.stdin is not None
    assert guard.stdout is not None
    try:
        run.begin(_names(chosen))
        guard.stdin.write(b"stop\n")
        if not await guard.stdout.readline():
            _, errors = await guard.communicate()
            raise EventFailed(f"cannot stop {_names(chosen)}: {errors.decode().strip()}")
        yield
    finally:
        guard.stdin.close()
        await guard.wait()
        run.end()


def _signal(process: LocalProcess, number: int) -> None:
    try:
        os.kill(process.pid, number)
    except OSError as error:
        raise EventFailed(f"{process.text}: {error.strerror}") from error


def _names(processes: Iterable[LocalProcess]) -> str:
    return ", ".join(each.text for each in processes)


def _pids() -> list[int]:
    return sorted(int(each.name) for each in PROC.iterdir() if each.name.isdecimal())


def _listeners(port: int) -> list[LocalProcess]:
    """Return the processes that listen on a port, as far as visible to this user."""
    inodes = set()
    for family in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (PROC / "net" / family).read_text().splitlines()[1:]:
                fields = line.split()
                is_here = int(fields[1].rpartition(":")[2], 16) == port
                if is_here and fields[3] == LISTENING:
                    inodes.add(f"socket:[{fields[9]}]")
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            links = (str(each.readlink()) for each in (PROC / str(pid) / "fd").iterdir())
            if any(link in inodes for link in links):
                found.append(_process(pid))
    return [each for each in found if each is not None]
