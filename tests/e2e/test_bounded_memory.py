"""No process grows during a whole run against endless streams."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.endless_server import MIB, endless_server
from tests.support.running_command import Command, wait_until

LOAD = ("--concurrency", "2", "--benchmark-duration", "10m", "--benchmark-grace-period", "0")
DATASET = ("--isl", "20", "--num-dataset-entries", "5", "--workers-max", "1")
LIMIT = 350 * MIB
"""Memory limit of each process, including preloaded modules."""


def most_resident_bytes(pid: int) -> int:
    """Return the peak resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def assert_processes_are_small(command: Command) -> None:
    for pid in command.processes():
        # A process may end between listing and reading.
        with suppress(OSError, IndexError):
            assert most_resident_bytes(pid) < LIMIT


def wait_for_word(command: Command, word: str) -> None:
    """Wait for a word in the worker's log, and check that its processes stay small meanwhile."""

    def is_logged() -> bool:
        assert_processes_are_small(command)
        logs = command.folder.glob("artifacts/*/logs/worker-0.log")
        return any(word in log.read_text() for log in logs)

    wait_until(command, is_logged)


@pytest.mark.parametrize("kind", ["events", "line"])
def test_endless_streams_keep_every_process_small(tmp_path: Path, kind: str) -> None:
    with endless_server(kind) as endless:
        # Without low priorities, which on a busy machine could delay the test forever.
        command = Command(tmp_path, endless.url, *LOAD, *DATASET, preparation=("keep_priority",))
        wait_for_word(command, "run is profiling")
        processor = command.service("record-processor-0")
        os.kill(processor, signal.SIGSTOP)
        wait_for_word(command, "holding back the load")
        os.kill(processor, signal.SIGCONT)
        command.process.send_signal(signal.SIGINT)
        while command.process.poll() is None:
            assert_processes_are_small(command)
            with suppress(subprocess.TimeoutExpired):
                command.process.wait(0.1)
        found = command.finish()
    assert command.code == ExitCode.INTERRUPTED, command.errors
    assert found["results"]["aiperf_svc"]["verdict"] == "invalid"
    accounts = found["results"]["aiperf_svc"]["accounts"]
    assert accounts["violations"] == []
    reasons = {reason["check"] for reason in found["results"]["aiperf_svc"]["reasons"]}
    assert "held_back" in reasons
