"""Faults of a rank. The run ends, names the cause, keeps its output, leaves nothing behind, and its
results are not valid."""

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.services.ranks.step_results import MISSING_S
from tests.support.stack.commands import Ended
from tests.support.stack.node_pods import without_power
from tests.support.stack.rank_runs import make_small, results_of
from tests.support.stack.rank_stack import run_command, use_command, use_rank_pod, use_ranks
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import RUN, Command, Runner
from tests.support.stack.real_stack import Config

pytestmark = pytest.mark.cluster

BUSY = "i=0; while [ $i -lt 400000 ]; do i=$((i + 1)); done; echo copied, 1 s"
FOUND_S = 30.0
COURIER, LOOP = b"aiperf-svc\0service", b"rank_loop.sh"
SLEEPS = b"sleep\x001000"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run with a fault, after checking that nothing is left."""

    runner: Runner
    ended: Ended

    @property
    def printed(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ended.out)
        return found

    @property
    def invalid(self) -> set[str]:
        """Return the checks that the run failed."""
        checks = results_of(self.runner)["checks"]
        return {check["check"] for check in checks if check["severity"] == "invalid"}

    @property
    def problem(self) -> str:
        """Return the reason why the first step failed."""
        problem: str = results_of(self.runner)["steps"][0]["problem"]
        return problem

    @property
    def shown(self) -> str:
        """Return the whole output for the user."""
        return " ".join(self.ended.errors.split())

    @property
    def drained_s(self) -> float:
        """Return how long the run drained its steps, according to the times in its output."""
        # A state that ends immediately is not shown.
        states = r"^ *(\d+\.\d) s  (?:draining|processing|done)$"
        times = [float(time) for time in re.findall(states, self.ended.errors, re.MULTILINE)]
        return times[-1] - times[0]

    def evidence(self, name: str) -> str:
        """Return a file that was saved before the removal."""
        (found,) = self.runner.artifacts.glob(f"*/evidence/{name}")
        return found.read_text()


@pytest.fixture
def runner(make_runner: Callable[[], Runner], base_image: str) -> Runner:
    """Make a stack with one rank."""
    return run_command(make_runner(), base_image)


def happen(runner: Runner, fault: Callable[[Command], object] | None = None) -> Outcome:
    """Run to the end with a fault during the step, and check that nothing is left."""
    outcome = run_with(runner, fault)
    assert "leak check: nothing is left" in outcome.ended.errors
    assert runner.cluster.left_of(runner.name) == []
    return outcome


def run_with(runner: Runner, fault: Callable[[Command], object] | None = None) -> Outcome:
    """Run to the end with a fault during the step."""
    with runner.start("run", runner.name, "--yes", "--ui", "plain", "--json") as command:
        if fault is not None:
            command.wait_for(RUN)
            fault(command)
        outcome = Outcome(runner, command.end())
    print(outcome.ended.errors, outcome.ended.out)
    return outcome


def process_in(cluster: Cluster, pod: str, words: bytes) -> int:
    """Return the pid on the node of the pod's first process whose command line contains `words`."""
    if not cluster.is_ours:
        pytest.skip("only processes of tests/cluster are killed")
    deadline = time.monotonic() + FOUND_S
    while time.monotonic() < deadline:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environ = (entry / "environ").read_bytes().split(b"\0")
                if f"HOSTNAME={pod}".encode() not in environ:
                    continue
                if words in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        if found:
            return min(found)
    raise AssertionError(f"{pod} has no process {words!r}")


def kill_beside_its_command(cluster: Cluster, pod: str, words: bytes) -> None:
    """Kill a pod's process while its command runs, like the node's OOM killer."""
    process_in(cluster, pod, SLEEPS)
    os.kill(process_in(cluster, pod, words), signal.SIGKILL)


def test_cpu_throttled_rank_is_not_valid(runner: Runner) -> None:
    runner.change(use_command("sh", "-c", BUSY))
    runner.change(use_rank_pod(cpu="50m", cpu_limit="50m"))
    outcome = happen(runner)
    assert outcome.ended.code == ExitCode.VERDICT_INVALID
    assert "throttled" in outcome.invalid
    assert results_of(runner)["cause"] == "rank-starved"


@pytest.mark.gate
def test_out_of_memory_rank_is_named(runner: Runner) -> None:
    runner.change(use_command("tail", "/dev/zero"))
    runner.change(use_rank_pod(memory="64Mi"))
    outcome = happen(runner)
    assert outcome.ended.code == ExitCode.BENCHMARK_FAILED
    assert "oom" in outcome.invalid
    assert "tail ended by signal 9" in outcome.problem
    assert "processes of ranks that the kernel killed for lack of memory: 1" in outcome.shown


def test_killed_container_of_a_rank_fails_its_step(cluster: Cluster, runner: Runner) -> None:
    runner.change(use_command("sh", "-c", "echo partial; sleep 1000"))
    pod = f"rank-{runner.name}-0"
    outcome = happen(runner, lambda _: kill_beside_its_command(cluster, pod, LOOP))
    assert outcome.ended.code == ExitCode.BENCHMARK_FAILED
    assert "the rank's container was restarted" in outcome.problem
    (kept,) = runner.artifacts.glob("*/raw/001-command/rank-0/command-0/stdout")
    assert kept.read_text() == "partial\n"
    assert pod in outcome.evidence("containers.txt")


def test_killed_courier_fails_the_run_at_once(cluster: Cluster, runner: Runner) -> None:
    runner.change(use_command("sleep", "1000"))
    pod = f"rank-{runner.name}-0"
    outcome = happen(runner, lambda _: kill_beside_its_command(cluster, pod, COURIER))
    assert outcome.ended.code == ExitCode.BENCHMARK_FAILED
    assert "command: rank 0 was lost" in outcome.shown
    assert pod in outcome.evidence("containers.txt")
    results = results_of(runner)
    assert "rank 0 was lost" in results["failure"]
    assert results["accounts"]["completed"] == 0
    # No rank remains that could send the missing output, so the run does not wait for it.
    assert outcome.drained_s < MISSING_S


@pytest.mark.gate
def test_pending_claim_is_named_with_its_reason(runner: Runner) -> None:
    claim = {"kind": "claim", "size": "1Gi", "storage_class": "no-such-class"}
    runner.change(use_ranks(volume=claim))
    runner.change(lambda benchmark: benchmark["deployment"].update(ready_timeout="30s"))
    outcome = happen(runner)
    assert outcome.ended.code == ExitCode.ERROR
    assert "no-such-class" in outcome.printed["reason"]
    assert f"pod rank-{runner.name}-0" in outcome.printed["reason"]


def test_an_image_without_a_shell_is_named(
    cluster: Cluster, runner: Runner, tmp_path: Path
) -> None:
    if not cluster.is_ours:
        pytest.skip("E2E_CONTEXT names a cluster, and this image would need a registry")
    image = "localhost/aiperf-e2e-no-shell:1"
    (tmp_path / "Containerfile").write_text("FROM scratch\nCOPY empty /empty\n")
    (tmp_path / "empty").touch()
    cluster.add_image(image, tmp_path / "Containerfile")
    runner.environ["AIPERF_WORKLOAD_IMAGE"] = image
    outcome = happen(runner)
    assert outcome.ended.code == ExitCode.ERROR
    assert f"pod rank-{runner.name}-0" in outcome.printed["reason"]
    assert '"sh": executable file not found' in outcome.printed["reason"]
    assert "POSIX shell" in outcome.printed["reason"]


def test_missing_tool_in_the_image_is_named(runner: Runner) -> None:
    runner.use("bench-iperf")
    runner.change(make_small())
    runner.change(use_ranks(nodes="together"))
    outcome = happen(runner)
    assert outcome.ended.code == ExitCode.ERROR
    assert "there is no iperf3 in" in outcome.printed["reason"]
    assert "Debian package iperf3" in outcome.printed["reason"]


@pytest.mark.two_nodes
def test_rank_of_a_lost_node_is_named(cluster: Cluster, runner: Runner) -> None:
    if not cluster.is_ours:
        pytest.skip("only nodes of tests/cluster are stopped")
    first, second = cluster.nodes()
    runner.change(use_command("sh", "-c", "echo partial; sleep 1000", ranks=2))
    runner.change(use_ranks(nodes=[first, second]))
    runner.change(keep_services_on(first))
    runner.change(lambda benchmark: benchmark["deployment"].update(delete_timeout="20s"))
    with contextlib.ExitStack() as switched:
        outcome = run_with(runner, lambda _: switched.enter_context(without_power(cluster, second)))
    assert "rank 1 was lost" in outcome.problem
    kept = list(runner.artifacts.glob("*/raw/001-command/rank-0/command-0/stdout"))
    assert [path.read_text() for path in kept] == ["partial\n"]
    # The processes of a silent node are unknown.
    assert outcome.ended.code == ExitCode.LEAKED
    assert any(f"rank-1-{runner.name}-0" in each for each in outcome.printed["left"])
    ended = runner.call("gc", runner.name, "--yes")
    assert ended.code == ExitCode.OK, ended.errors
    assert cluster.left_of(runner.name) == []


def keep_services_on(node: str) -> Callable[[Config], None]:
    """Return a change that keeps everything except ranks on this node."""

    def change(benchmark: Config) -> None:
        for name in ("control", "record-processor", "deadline"):
            own = benchmark["deployment"]["pods"].setdefault(name, {})
            own["placement"] = {"node_selector": {"kubernetes.io/hostname": node}}

    return change
