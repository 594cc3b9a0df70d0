"""The same config measures the same on this machine and on the cluster against the same server. A
stack adds scale and changes no results."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.stack.intruder import put_pod
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_stack import Config, Stack

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

TTFT_MS, ITL_MS, TOKENS, USERS = 100, 25, 16, 8
"""Slow enough that a millisecond of difference is far below the tolerance."""
LATENCY_MS = TTFT_MS + (TOKENS - 1) * ITL_MS
TOLERANCE = 0.05
LOCAL_S = 120.0
COMPARED = {
    "request_throughput": ("avg",),
    "output_token_throughput": ("avg",),
    "request_latency": ("avg", "p50", "p90", "p99"),
    "time_to_first_token": ("avg", "p50", "p90", "p99"),
    "inter_token_latency": ("avg", "p50", "p90", "p99"),
}


@pytest.fixture
def server(cluster: Cluster, image: str, owners_namespace: str) -> str:
    """Return the URL of a mock server in the cluster, the same for pods and for this machine."""
    if not cluster.is_ours:
        pytest.skip("pods of the cluster of E2E_CONTEXT cannot be reached from here directly")
    command = (
        "python", "-m", "aiperf_svc.mock_server", "--host", "0.0.0.0", "--port", "8000",
        "--ttft", f"{TTFT_MS}ms", "--itl", f"{ITL_MS}ms", "--tokens", str(TOKENS),
    )  # fmt: skip
    pod = put_pod(cluster, owners_namespace, "server", image=image, command=command, labels={})
    return f"http://{pod['status']['podIP']}:8000"


def test_a_laptop_and_a_cluster_measure_the_same(
    cluster: Cluster, make_stack: Callable[[], Stack], server: str, tmp_path: Path
) -> None:
    def against_the_server(benchmark: Config) -> None:
        benchmark["endpoint"]["url"] = server
        benchmark["load"] = {
            "concurrency": USERS,
            "duration": "40s",
            "grace_period": "2s",
            # Waits until the stack's own startup load is over. A local run does not need this.
            "warmup": {"duration": "15s", "grace_period": "2s"},
        }
        benchmark["dataset"]["output_tokens"] = {"mean": TOKENS}
        benchmark["deployment"].pop("target")

    stack = make_stack()
    stack.change(against_the_server)
    stack.up()
    status, there = stack.measure(stack.outputs(), tmp_path / "there")
    assert (status.state, status.reason) == ("done", "")
    stack.destroy()

    benchmark = yaml.safe_load(stack.file.read_text())["config"]["aiperf:benchmark"]
    here = run_here(benchmark, tmp_path)
    assert here["aiperf_svc"]["config"]["load"] == there["aiperf_svc"]["config"]["load"]
    for metric, statistics in COMPARED.items():
        for statistic in statistics:
            ours, theirs = here[metric][statistic], there[metric][statistic]
            assert theirs == pytest.approx(ours, rel=TOLERANCE), f"{metric} {statistic}"
    # Both must be close to the server's own times, so that they cannot share an error.
    for summary in (here, there):
        assert summary["request_latency"]["p50"] == pytest.approx(LATENCY_MS, rel=TOLERANCE)
        assert summary["time_to_first_token"]["p50"] == pytest.approx(TTFT_MS, rel=TOLERANCE)


def run_here(benchmark: Config, folder: Path) -> dict[str, Any]:
    """Run the same services as local processes and return the summary."""
    file = folder / "benchmark.yaml"
    file.write_text(yaml.safe_dump({**benchmark, "artifacts": {"dir": str(folder / "here")}}))
    command = (sys.executable, "-m", "aiperf_svc", "run", str(file), "--local", "--ui", "none")
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=LOCAL_S
    )
    # Exit code 5 marks an uncertain client, which is possible on two busy cores.
    assert done.returncode in (0, 5), done.stdout + done.stderr
    (found,) = (folder / "here").glob("*/profile_export_aiperf.json")
    summary: dict[str, Any] = json.loads(found.read_bytes())
    return summary
