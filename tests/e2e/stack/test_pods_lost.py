"""Something dies while the load runs: the run ends all the same, says what happened, and its
numbers never pass for sound ones."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from real_stack import Config, Stack, is_under_load, modest, together

from aiperf_svc.adapters.run_status import Status

pytestmark = pytest.mark.cluster


@dataclass
class Loss:
    """What became of a stack that lost one of its pods."""

    stack: Stack
    component: str
    folder: Path
    lost: str = ""
    status: Status | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    pods: list[dict[str, Any]] = field(default_factory=list)

    def happen(self) -> None:
        """Up, load, loss, end, destroy."""
        stack = self.stack
        stack.change(modest)
        stack.change(two_workers_for_a_while)
        stack.up()
        outputs = stack.outputs()
        stack.follow(outputs, is_under_load)
        self.lost = stack.lose_pod(outputs["namespace"], self.component)
        if self.component == "records-manager":
            stack.wait_ready(outputs["namespace"], self.component)
            self.status = stack.follow(outputs, lambda status: status.is_settled)
        else:
            self.status, self.summary = stack.measure(outputs, self.folder)
        self.pods = stack.pods(outputs["namespace"], self.component)
        stack.destroy()

    def ended(self) -> tuple[str, str, int]:
        """State, reason and lost workers."""
        assert self.status is not None
        return self.status.state, self.status.reason, self.status.workers_lost


def two_workers_for_a_while(benchmark: Config) -> None:
    """Long enough for something to die, short enough to wait for."""
    benchmark["load"] |= {"duration": "15s", "grace_period": "2s"}
    del benchmark["load"]["warmup"]
    benchmark["workers"] = {"min": 2, "max": 2}


@pytest.fixture(scope="module")
def losses(
    make_shared_stack: Callable[[], Stack], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Loss]:
    """Three stacks that lose a pod each, at the same time; none of them is left."""
    folder = tmp_path_factory.mktemp("results")
    lost = ("worker", "records-manager", "target")
    found = {each: Loss(make_shared_stack(), each, folder / each) for each in lost}
    together(*(loss.happen for loss in found.values()))
    return found


def test_a_lost_worker_is_seen_accounted_and_makes_the_run_not_valid(
    losses: dict[str, Loss],
) -> None:
    loss = losses["worker"]
    assert loss.ended() == ("done", "", 1)
    ours = loss.summary["aiperf_svc"]
    assert ours["lost_services"] == [loss.lost]
    assert ours["verdict"] in ("degraded", "invalid")
    assert "lost" in str(ours["reasons"])
    accounts = ours["accounts"]
    assert accounts["violations"] == []
    assert accounts["completed"] > 0
    assert accounts["issued"] == sum(
        accounts[key] for key in ("completed", "errored", "cancelled", "unsent", "lost")
    )
    # Its Deployment has made another one, which stayed idle: the roster was closed.
    assert len(loss.pods) == 2


def test_a_run_that_loses_its_records_manager_fails_and_says_so(losses: dict[str, Loss]) -> None:
    loss = losses["records-manager"]
    state, reason, _ = loss.ended()
    assert state == "failed"
    assert reason == "records-manager was lost; the run cannot go on without it"
    assert loss.status is not None
    # What the new one was sent again is not the whole.
    assert loss.status.verdict in (None, "invalid")


def test_a_run_whose_target_dies_goes_on_and_counts_the_errors(losses: dict[str, Loss]) -> None:
    loss = losses["target"]
    assert loss.ended() == ("done", "", 0)
    ours = loss.summary["aiperf_svc"]
    accounts = ours["accounts"]
    assert accounts["violations"] == []
    assert accounts["completed"] > 0
    assert accounts["errored"] == loss.summary["error_request_count"]["avg"] > 0
    assert ours["verdict"] != "valid"
