"""A whole run against streams that never end: no process of it grows."""

import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from endless_server import MIB, endless_server
from running_command import WAIT_S, Command

from aiperf_svc.domain.exit_codes import ExitCode

# Record processors have a low priority: beside other tests they need minutes for what was held
# back.
pytestmark = pytest.mark.alone
LOAD = ("--concurrency", "2", "--benchmark-duration", "2s", "--benchmark-grace-period", "0")
DATASET = ("--isl", "20", "--num-dataset-entries", "5", "--workers-max", "1")


def most_resident_bytes(pid: int) -> int:
    """The most that a process has had in memory so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


@pytest.mark.parametrize("kind", ["events", "line"])
def test_endless_streams_leave_every_process_small_and_the_verdict_says_what_was_held_back(
    tmp_path: Path, kind: str
) -> None:
    most: dict[int, int] = {}
    deadline = time.monotonic() + WAIT_S
    with endless_server(kind) as endless:
        command = Command(tmp_path, endless.url, *LOAD, *DATASET, is_executed=True)
        while command.process.poll() is None:
            assert time.monotonic() < deadline
            for pid in command.processes():
                # A process may end between the listing and the reading.
                with suppress(OSError, IndexError):
                    most[pid] = most_resident_bytes(pid)
            with suppress(subprocess.TimeoutExpired):
                command.process.wait(0.1)
        found = command.finish()
    assert max(most.values()) < 350 * MIB
    # No request succeeded.
    assert command.code == ExitCode.BENCHMARK_FAILED, command.errors
    assert found["results"]["aiperf_svc"]["verdict"] == "invalid"
    accounts = found["results"]["aiperf_svc"]["accounts"]
    assert accounts["violations"] == []
    reasons = {reason["check"] for reason in found["results"]["aiperf_svc"]["reasons"]}
    assert "held_back" in reasons
