"""Shell scripts for containers, run by a local shell."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aiperf_svc.adapters.events.pod_commands import BUSY, STALL
from tests.support.running_command import wait_ended, wait_for

PROCESSES = "found=%d; states() { echo $1; }"
"""Replaces the search for the container's processes, which would find this process."""

DISTURBANCE = """
from aiperf_svc.adapters.events import netem

class Network:
    def add(self, *_, **__):
        print("added")

    def remove(self, _):
        print("removed", flush=True)

    def close(self):
        pass

netem.Network, netem.own_interface = Network, lambda: "lo"
netem.main(["1", "0"])
"""


@contextmanager
def _shell(text: str, first: str) -> Iterator[subprocess.Popen[str]]:
    """Start a shell that runs a script and send it the first line of its input."""
    command, pipe = ("sh", "-c", text), subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as shell:
        assert shell.stdin is not None
        shell.stdin.write(f"{first}\n")
        shell.stdin.flush()
        yield shell


def _next(shell: subprocess.Popen[str]) -> str:
    assert shell.stdout is not None
    return shell.stdout.readline().strip()


def _children(pid: int) -> list[int]:
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def test_busy_loops_end_with_the_input() -> None:
    with _shell(BUSY, "600 2") as shell:
        assert _next(shell) == "started"
        *loops, guard = _children(shell.pid)
        wait_for(lambda: bool(_children(guard)))
        made = [*loops, guard, *_children(guard)]
        assert shell.stdin is not None
        shell.stdin.close()
        assert int(_next(shell)) >= 0
        shell.wait()
    assert len(made) == 4
    for pid in made:
        wait_ended(pid)


def test_busy_loops_end_without_their_runner() -> None:
    with _shell(BUSY, "1 2") as shell:
        assert _next(shell) == "started"
        for pid in _children(shell.pid):
            wait_ended(pid)


def test_stalled_processes_continue_without_their_runner() -> None:
    def is_stopped() -> bool:
        return Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    with subprocess.Popen(("cat",), stdin=subprocess.PIPE) as server:
        text = PROCESSES % server.pid + STALL[STALL.index("\ntrap") :]
        with _shell(text, "600") as shell:
            assert _next(shell) == "stopped"
            wait_for(is_stopped)  # A process stops when it is next scheduled.
            (guard,) = _children(shell.pid)
        wait_ended(guard)
        wait_for(lambda: not is_stopped())
        with _shell(text, "1") as shell:
            assert _next(shell) == "stopped"
            wait_for(lambda: not is_stopped())


def test_packets_are_undisturbed_without_the_runner() -> None:
    command, pipe = (sys.executable, "-c", DISTURBANCE), subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    ) as program:
        assert program.stdin is not None
        program.stdin.write("1\n")
        program.stdin.flush()
        assert [_next(program) for _ in range(3)] == ["added", "on", "removed"]
