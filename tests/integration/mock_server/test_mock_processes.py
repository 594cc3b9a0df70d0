"""Processes of a mock server: start, end, and limits."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.mock_server import processes
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.processes import MockServerError
from aiperf_svc.mock_server.running import RunningMockServer, running
from tests.support.bare_client import HANG_GUARD_S

ROOT = Path(__file__).parents[3]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _wait_gone(pidfds: list[int]) -> None:
    """Wait until the processes of all descriptors have ended."""
    for pidfd in pidfds:
        assert select.select([pidfd], [], [], HANG_GUARD_S)[0], "a process is still running"
        os.close(pidfd)


def test_stop_leaves_no_process() -> None:
    with running(MockServerConfig(processes=3)) as server:
        children = _children(server.pid)
        assert len(children) == 3
        pidfds = [os.pidfd_open(pid) for pid in (*children, server.pid)]
        port = server.port
    _wait_gone(pidfds)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def _started(*args: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "aiperf_svc.mock_server", *args],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_stop_signal_during_the_start_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = signal.signal

    def interrupted(number: signal.Signals, handler: Any) -> Any:
        previous = handle(number, handler)
        if number is signal.SIGTERM:
            signal.raise_signal(number)
        return previous

    previous = handle(signal.SIGTERM, signal.SIG_IGN)
    try:
        monkeypatch.setattr(signal, "signal", interrupted)
        with processes._caught_signals() as wake_fd:
            monkeypatch.undo()
            assert processes._is_stopped(wake_fd, -1, time.monotonic_ns())
    finally:
        handle(signal.SIGTERM, previous)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_ends_it_with_status_0(number: signal.Signals) -> None:
    with _started("--processes", "2") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"listening on http://127.0.0.1:")
        pidfds = [os.pidfd_open(pid) for pid in _children(process.pid)]
        process.send_signal(number)
        _, errors = process.communicate(timeout=HANG_GUARD_S)
    assert (process.returncode, errors) == (0, b"")
    _wait_gone(pidfds)


def test_killed_parent_ends_its_children() -> None:
    with _started("--processes", "2", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["pid"] == process.pid
        pidfds = [os.pidfd_open(pid) for pid in _children(process.pid)]
        process.kill()
        process.wait(HANG_GUARD_S)
    _wait_gone(pidfds)


def test_dead_child_ends_the_server_with_an_error() -> None:
    with _started("--processes", "2") as process:
        assert process.stdout is not None
        process.stdout.readline()
        victim, other = _children(process.pid)
        pidfd = os.pidfd_open(other)
        os.kill(victim, signal.SIGKILL)
        _, errors = process.communicate(timeout=HANG_GUARD_S)
    assert process.returncode == 1
    assert f"serving process {victim} died".encode() in errors
    _wait_gone([pidfd])


def test_used_port_is_a_clear_error(
    plain: RunningMockServer, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(MockServerError, match="status 1 before it listened"),
        running(MockServerConfig(port=plain.port)),
    ):
        pass
    assert (
        f"cannot listen on 127.0.0.1:{plain.port}: Address already in use" in capfd.readouterr().err
    )


def test_a_bad_flag_is_refused_with_status_2() -> None:
    with _started("--ttft", "soon") as process:
        out, errors = process.communicate(timeout=HANG_GUARD_S)
    assert (process.returncode, out) == (2, b"")
    assert errors.startswith(b"error: --ttft: 'soon' is not a duration; expected")


def test_connections_beyond_file_limit_are_closed_and_counted() -> None:
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40));"
        "sys.argv = ['mock', '--port', '0'];"
        "from aiperf_svc.mock_server.__main__ import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rsplit(b":", 1)[1])
        asker = socket.create_connection(("127.0.0.1", port), timeout=HANG_GUARD_S)
        others = [
            socket.create_connection(("127.0.0.1", port), timeout=HANG_GUARD_S) for _ in range(60)
        ]
        closed = 0
        while select.select([others[-1]], [], [], HANG_GUARD_S)[0] and not closed:
            closed = sum(bool(select.select([other], [], [], 0)[0]) for other in others)
        asker.sendall(b"GET /truth HTTP/1.1\r\nConnection: close\r\n\r\n")
        with asker.makefile("rb") as stream:
            truth = json.loads(stream.read().partition(b"\r\n\r\n")[2])
        for other in others:
            other.close()
        asker.close()
        process.terminate()
        assert process.wait(HANG_GUARD_S) == 0
    assert truth["refused"] == closed > 0
    assert truth["open_connections"] == 61 - closed
