"""A pod dies during the load or never becomes ready. The run still ends, names the cause, keeps its
evidence, and its results are not valid."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.running_command import FINISHED
from tests.support.stack.commands import Ended
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import RESPONSES, Runner
from tests.support.stack.real_stack import Config, run_all, shrink

pytestmark = pytest.mark.cluster

READY_S = 15
"""Long enough for a healthy pod to start."""


@dataclass
class Loss:
    """The outcome of a stack that lost a pod, or whose pod never became ready."""

    runner: Runner
    component: str
    is_there: bool = True
    """Whether the pod starts and is lost during the load. Otherwise it never becomes ready."""
    lost: str = ""
    ended: Ended | None = None
    printed: dict[str, Any] = field(default_factory=dict)

    def happen(self) -> None:
        """Run `up`, the load, the loss, the evidence and `destroy`."""
        runner = self.runner
        runner.use("bench-smoke")
        runner.change(shrink)
        runner.change(two_workers_for_a_while if self.is_there else with_a_target_that_hangs)
        with runner.start("run", runner.name, "--yes", "--ui", "plain", "--json") as command:
            if self.is_there:
                command.wait_for(RESPONSES)
                self.lost = runner.cluster.lose_pod(runner.name, self.component)
            self.ended = command.end()
        self.printed = json.loads(self.ended.out)

    @property
    def story(self) -> tuple[int, str, str]:
        """Return exit code, state and reason after checking that nothing is left."""
        assert self.ended is not None
        assert self.printed["left"] == self.printed["not_checked"] == [], self.ended.errors
        assert self.printed["exit_code"] == self.ended.code
        return self.ended.code, self.printed["state"], self.printed["reason"]

    @property
    def ours(self) -> dict[str, Any]:
        """Return our part of the results."""
        found: dict[str, Any] = self.runner.summary()["aiperf_svc"]
        return found

    def evidence(self) -> "Evidence":
        """Return the evidence that was saved before the removal."""
        (folder,) = self.runner.artifacts.glob("*/evidence")
        return Evidence(folder)


@dataclass(frozen=True)
class Evidence:
    """The folder with the evidence."""

    folder: Path

    @property
    def events(self) -> str:
        return (self.folder / "events.txt").read_text()

    def pods(self, component: str) -> list[str]:
        """Return the container statuses of a component's pods."""
        lines = (self.folder / "containers.txt").read_text().splitlines()
        return [line for line in lines if line.startswith(f"{component}-bench-")]

    def log(self, component: str) -> str:
        """Return the last log lines of all pods of a component."""
        return "".join(path.read_text() for path in self.folder.glob(f"logs/{component}-*.log"))


def two_workers_for_a_while(benchmark: Config) -> None:
    """Run long enough for a pod to die, and no longer."""
    benchmark["load"] |= {"duration": "15s", "grace_period": "2s"}
    del benchmark["load"]["warmup"]
    benchmark["workers"] = {"min": 2, "max": 2}


def with_a_target_that_hangs(benchmark: Config) -> None:
    """Use a server that runs but never answers its probe."""
    target = benchmark["deployment"]["target"]
    target |= {"ready_path": "/there-is-none", "ready_timeout": f"{READY_S}s"}


@pytest.fixture(scope="module")
def losses(make_shared_runner: Callable[[], Runner]) -> dict[str, Loss]:
    """Run stacks that each lose a pod, concurrently, and check that all leave nothing."""
    components = ("worker", "records-manager", "target")
    found = {each: Loss(make_shared_runner(), each) for each in components}
    found["readiness"] = Loss(make_shared_runner(), "target", is_there=False)
    run_all(*(loss.happen for loss in found.values()))
    return found


def test_lost_worker_is_accounted_and_not_valid(losses: dict[str, Loss]) -> None:
    loss = losses["worker"]
    code, state, reason = loss.story
    assert (code in FINISHED, state) == (True, "done")
    assert not reason or reason.startswith("the verdict is invalid: ")
    ours = loss.ours
    assert ours["lost_services"] == [loss.lost]
    assert ours["verdict"] in ("degraded", "invalid")
    assert "lost" in str(ours["reasons"])
    accounts = ours["accounts"]
    assert accounts["violations"] == []
    assert accounts["completed"] > 0
    assert accounts["issued"] == sum(
        accounts[key] for key in ("completed", "errored", "cancelled", "unsent", "lost")
    )
    evidence = loss.evidence()
    assert loss.lost in evidence.events
    # Its Deployment created another pod, which stayed idle because the roster was closed.
    assert len(evidence.pods("worker")) == 2
    assert evidence.log("worker")


def test_lost_records_manager_fails_the_run(losses: dict[str, Loss]) -> None:
    loss = losses["records-manager"]
    reason = f"pod {loss.lost} was deleted; the results in it are lost"
    assert loss.story == (ExitCode.BENCHMARK_FAILED, "failed", reason)
    evidence = loss.evidence()
    assert loss.lost in evidence.events
    assert len(evidence.pods("records-manager")) == 1
    # A new records manager receives only part of the records.
    assert loss.printed["results"] is None


@pytest.mark.parametrize("component", ["system-controller", "worker-manager"])
def test_replaced_single_service_fails_the_run(
    make_runner: Callable[[], Runner], component: str
) -> None:
    loss = Loss(make_runner(), component)
    loss.happen()
    code, state, reason = loss.story
    assert (code, state) == (ExitCode.BENCHMARK_FAILED, "failed")
    assert component in reason
    assert loss.lost in loss.evidence().events


def test_dead_target_is_counted_as_errors(losses: dict[str, Loss]) -> None:
    loss = losses["target"]
    code, state, reason = loss.story
    assert (code in FINISHED, state) == (True, "done")
    assert not reason or reason.startswith("the verdict is invalid: ")
    ours = loss.ours
    accounts = ours["accounts"]
    assert accounts["violations"] == []
    assert accounts["completed"] > 0
    assert accounts["errored"] == loss.runner.summary()["error_request_count"]["avg"] > 0
    assert ours["verdict"] != "valid"
    evidence = loss.evidence()
    assert loss.lost in evidence.events
    assert len(evidence.pods("target")) == 1


def test_unready_pod_is_named_with_evidence(losses: dict[str, Loss]) -> None:
    loss = losses["readiness"]
    code, state, reason = loss.story
    assert (code, state) == (ExitCode.ERROR, "failed")
    assert f"target-{loss.runner.name}" in reason
    assert "ready" in reason
    evidence = loss.evidence()
    assert "Readiness probe failed" in evidence.events
    (pod,) = evidence.pods("target")
    assert loss.runner.name in pod
    assert "ready=False" in (evidence.folder / "containers.txt").read_text()


def test_stacks_with_lost_pods_leave_nothing(cluster: Cluster, losses: dict[str, Loss]) -> None:
    assert [left for loss in losses.values() for left in cluster.left_of(loss.runner.name)] == []
