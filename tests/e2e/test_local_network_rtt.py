"""The network part of a latency, measured over a connection with real delay."""

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
    """Return the program that gives a command its own network namespace."""
    program = ("unshare", "--net", *(() if os.geteuid() == 0 else ("--map-root-user",)))
    probe = [*program, "ip", "tuntap", "add", "dev", "probe0", "mode", "tun"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    if done.returncode:
        assert not os.environ.get("CI"), f"CI must be able to make a TUN device: {done.stderr}"
        pytest.skip(f"cannot create a network namespace: {done.stderr.strip()}")
    return program


@pytest.fixture
def measured(own_network: tuple[str, ...], tmp_path: Path) -> dict[str, Any]:
    """Return the results of a run with one user."""
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
    # The value includes the whole network delay and no server time: only the server's kernel takes
    # part in a TCP connect, whose round trip is among those of which the minimum counts.
    assert shortest["min"] >= 2 * ONE_WAY_MS
    assert shortest["min"] <= connect["min"]
    assert shortest["max"] <= connect["max"]
    # A request may be faster than any round trip that the kernel measured, but not than the delay.
    assert measured["time_to_first_token"]["min"] >= 2 * ONE_WAY_MS + TTFT_MS
    assert measured["network_smoothed_rtt"]["avg"] >= shortest["avg"]
