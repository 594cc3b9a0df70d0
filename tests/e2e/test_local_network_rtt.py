"""What of a latency is the network's, on a way that takes its time for real."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.running_command import FINISHED, QUIET, WAIT_S
from tests.support.slow_way import TTFT_MS

ONE_WAY_MS = 15
PROGRAM = Path(__file__).parents[1] / "support" / "slow_way.py"


@pytest.fixture(scope="module")
def own_network() -> tuple[str, ...]:
    """The program that gives a command a network of its own."""
    program = ("unshare", "--net", *(() if os.geteuid() == 0 else ("--map-root-user",)))
    probe = [*program, "ip", "tuntap", "add", "dev", "probe0", "mode", "tun"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    if done.returncode:
        assert not os.environ.get("CI"), f"CI must be able to make a TUN device: {done.stderr}"
        pytest.skip(f"no network of one's own here: {done.stderr.strip()}")
    return program


@pytest.fixture
def measured(own_network: tuple[str, ...], tmp_path: Path) -> dict[str, Any]:
    """The results of one user."""
    load = ("--concurrency", "1", "--request-count", "12", "--isl", "20")
    command = [*own_network, sys.executable, str(PROGRAM), str(ONE_WAY_MS), *load, *QUIET]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode in FINISHED, done.stderr
    results: dict[str, Any] = json.loads(done.stdout)["results"]
    return results


def test_network_part_of_ttft_is_known(measured: dict[str, Any]) -> None:
    shortest, connect = measured["network_rtt"], measured["network_connect"]
    assert shortest["count"] == connect["count"] >= 1
    # All of the way is in it, and nothing of the server: its kernel alone takes part in a connect,
    # whose round trip is one of those of which the shortest counts.
    assert shortest["min"] >= 2 * ONE_WAY_MS
    assert shortest["min"] <= connect["min"]
    assert shortest["max"] <= connect["max"]
    # A request may be on its way for less than each round trip that the kernel has measured, but
    # not for less than the packets are held.
    assert measured["time_to_first_token"]["min"] >= 2 * ONE_WAY_MS + TTFT_MS
    assert measured["network_smoothed_rtt"]["avg"] >= shortest["avg"]
