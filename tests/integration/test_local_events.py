"""Events of a local run, applied to real processes."""

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.events.event_run import EventRun
from aiperf_svc.adapters.events.local_processes import LocalServer
from aiperf_svc.config.events import Event
from aiperf_svc.core.events.report import EventReport
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import RunningMockServer, running
from tests.support.small_configs import small_config

TOKENS = 4
WAIT_S = 60.0


@pytest.fixture
def mock() -> Iterator[RunningMockServer]:
    config = MockServerConfig(ttft="5ms", itl="1ms", tokens=TOKENS, respawn="100ms", processes=2)
    with running(config) as server:
        yield server


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that belongs to no run."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield process
        finally:
            process.kill()


def server_of(url: str, **event: Any) -> LocalServer:
    load = {"request_rate": 10, "duration": "2h"}
    return LocalServer(small_config(url, load=load, events=[{"at": "20s", **event}]))


def run_of(**event: Any) -> EventRun:
    """Return an event that is due now."""
    return EventRun(0, Event.model_validate({"at": 0, **event}), changed=asyncio.Event())


async def carry_out(url: str, **event: Any) -> EventReport:
    """Carry out an event and return its report."""
    run = run_of(**event)
    await run.carry_out(server_of(url, **event).perform)
    return run.report


def complete(mock: RunningMockServer) -> dict[str, Any]:
    """Send one request and return its response."""
    body = json.dumps({"model": "mock", "messages": [{"role": "user", "content": "hello"}]})
    with closing(http.client.HTTPConnection("127.0.0.1", mock.port, timeout=WAIT_S)) as connection:
        connection.request("POST", "/v1/chat/completions", body)
        found: dict[str, Any] = json.loads(connection.getresponse().read())
        return found


def state(pid: int) -> str:
    """Return the state letter of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def reaches(pid: int, wanted: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while state(pid) != wanted:  # noqa: ASYNC110 - the kernel sends no notification
            await asyncio.sleep(0.01)


async def test_killed_process_is_replaced(mock: RunningMockServer) -> None:
    found = await carry_out(mock.url, do="kill", pick="all")
    assert found.problem == ""
    assert found.what.count("process ") == 2
    assert found.evidence == "gone from /proc"
    assert found.is_over
    async with asyncio.timeout(WAIT_S):
        while True:
            with suppress(OSError):
                assert await asyncio.to_thread(complete, mock)
                return
            await asyncio.sleep(0.05)


async def test_stalled_process_continues_after_its_duration(mock: RunningMockServer) -> None:
    found = await carry_out(mock.url, do="stall", duration="300ms", pick="all")
    assert found.problem == ""
    assert found.evidence == "state T in /proc/PID/stat; continued afterwards"
    assert found.end_wall_ns - found.begin_wall_ns >= 300 * 10**6
    assert await asyncio.to_thread(complete, mock)


async def test_stall_is_undone_when_the_load_ends(sleeper: subprocess.Popen[bytes]) -> None:
    event = {"do": "stall", "duration": "1h", "process": str(sleeper.pid), "foreign": True}
    run = run_of(**event)
    task = asyncio.create_task(run.carry_out(server_of("http://h", **event).perform))
    await reaches(sleeper.pid, "T")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await reaches(sleeper.pid, "S")
    assert run.report.is_over
    assert run.report.end_wall_ns


async def test_stall_is_undone_when_the_runner_is_killed(sleeper: subprocess.Popen[bytes]) -> None:
    event = {"do": "stall", "duration": "1h", "process": str(sleeper.pid), "foreign": True}
    runner = os.fork()
    if not runner:
        try:
            asyncio.run(carry_out("http://h", **event))
        finally:
            os._exit(0)
    await reaches(sleeper.pid, "T")
    os.kill(runner, signal.SIGKILL)
    await asyncio.to_thread(os.waitpid, runner, 0)
    await reaches(sleeper.pid, "S")


async def test_delay_counts_the_requests_that_it_delayed(
    mock: RunningMockServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hold(_: EventRun) -> None:
        async with asyncio.timeout(WAIT_S):
            while not mock.truth()["delayed"]:  # noqa: ASYNC110 - the server sends no notification
                await asyncio.sleep(0.01)

    monkeypatch.setattr(EventRun, "hold", hold)
    async with requests_in_a_row(mock):
        found = await carry_out(mock.url, do="delay", duration="1h", latency="30ms")
    assert found.problem == ""
    assert found.evidence.endswith(" requests delayed by 30 ms")
    delayed = mock.truth()["delayed"]
    assert delayed > 0
    await asyncio.to_thread(complete, mock)
    assert mock.truth()["delayed"] == delayed


async def test_delay_of_nothing_is_not_verified(mock: RunningMockServer) -> None:
    found = await carry_out(mock.url, do="delay", duration="50ms", latency="30ms")
    assert found.problem == "not verified: the server has delayed no request"


async def test_seed_chooses_one_of_several_processes() -> None:
    event = Event.model_validate({"at": 0, "do": "kill"})
    drawn = {
        tuple(EventRun(0, event, seed=seed, changed=asyncio.Event()).pick(["a", "b", "c"]))
        for seed in (1, 1, 1)
    }
    assert len(drawn) == 1
    seeds = {EventRun(0, event, seed=n, changed=asyncio.Event()).pick("abc")[0] for n in range(50)}
    assert seeds == {"a", "b", "c"}


@asynccontextmanager
async def requests_in_a_row(mock: RunningMockServer) -> AsyncIterator[None]:
    """Send requests one after another inside the block."""

    async def send() -> None:
        while True:
            await asyncio.to_thread(complete, mock)

    task = asyncio.create_task(send())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def refusal(url: str, **event: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        server_of(url, **event).check()
    return str(caught.value)


def test_foreign_server_is_refused(httpd: str) -> None:
    text = refusal(httpd, do="kill")
    assert "events: number 1 (kill): the server at port" in text
    assert "is not the mock server (aiperf-svc mock-server)" in text
    assert "set foreign: true" in text


@pytest.fixture
def httpd() -> Iterator[str]:
    """Run a third-party server and yield its URL."""
    program = (
        "import http.server as h; s = h.HTTPServer(('127.0.0.1', 0), h.BaseHTTPRequestHandler)"
    )
    program += "; print(s.server_port, flush=True); s.serve_forever()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


@pytest.mark.parametrize(
    ("url", "event", "text"),
    [
        ("http://127.0.0.1:9", {"do": "kill"}, "the server at port 9 does not respond"),
        ("http://h:8000", {"do": "kill"}, "http://h:8000 is not on this machine"),
        (
            "http://h",
            {"do": "kill", "process": "no-such-name", "foreign": True},
            "no process is named 'no-such-name'",
        ),
        (
            "http://h",
            {"do": "kill", "process": "4194999", "foreign": True},
            "no process has the number 4194999",
        ),
    ],
)
def test_missing_process_is_refused_before_the_start(
    url: str, event: dict[str, Any], text: str
) -> None:
    assert text in refusal(url, **event)


def test_ambiguous_name_is_refused(sleeper: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            text = refusal("http://h", do="kill", process="sleep", foreign=True)
        finally:
            other.kill()
    assert "processes are named 'sleep'" in text
    assert str(sleeper.pid) in text


def test_server_without_delays_cannot_be_delayed() -> None:
    with running(MockServerConfig()) as server:
        delay = {"do": "delay", "duration": "1s", "latency": "1ms"}
        found = asyncio.run(carry_out(server.url, **delay))
    assert "responds at once and delays nothing" in found.problem
