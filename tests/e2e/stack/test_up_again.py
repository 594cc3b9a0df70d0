"""`up` of a stack that exists, was changed, or has removed itself."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.results_api.status import Status
from tests.support.stack.expiry import end_by_deadline
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_stack import Config, Stack, run_all, shrink

pytestmark = pytest.mark.cluster

Pods = set[str]
"""Pods by UID. A recreated pod is another one."""


def pods_of(stack: Stack, outputs: dict[str, Any]) -> Pods:
    return {pod["metadata"]["uid"] for pod in stack.pods(outputs["namespace"])}


@dataclass
class Ups:
    """The result of each `up` of one stack."""

    stack: Stack
    outputs: list[dict[str, Any]] = field(default_factory=list)
    pods: list[Pods] = field(default_factory=list)
    budgets: list[list[str]] = field(default_factory=list)
    """Names of the disruption budgets after each `up`."""
    status: Status | None = None
    summary: dict[str, Any] = field(default_factory=dict)

    def up(self, *flags: str) -> None:
        self.stack.up(*flags)
        self.outputs.append(self.stack.outputs())
        self.pods.append(pods_of(self.stack, self.outputs[-1]))
        there = self.stack.cluster.objects("pdb", "-n", self.outputs[-1]["namespace"])
        self.budgets.append([budget["metadata"]["name"] for budget in there])

    def measure_and_destroy(self, folder: Path) -> None:
        self.status, self.summary = self.stack.measure(self.outputs[-1], folder)
        self.stack.destroy()


def other_load(benchmark: Config) -> None:
    benchmark["load"]["concurrency"] = 4


@pytest.fixture(scope="module")
def stacks(
    cluster: Cluster,
    make_shared_stack: Callable[[], Stack],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Ups, Ups]:
    """Bring one stack up twice and change it; let another remove itself in between."""
    folder = tmp_path_factory.mktemp("results")
    changed, expired = Ups(make_shared_stack()), Ups(make_shared_stack())
    for each in (changed, expired):
        each.stack.change(shrink)

    def change() -> None:
        changed.up()
        changed.up("--expect-no-changes")
        changed.stack.change(other_load)
        changed.up()
        changed.measure_and_destroy(folder / "changed")

    def expire() -> None:
        expired.up()
        end_by_deadline(cluster, expired.stack.name, "namespace")
        expired.up()
        expired.measure_and_destroy(folder / "expired")

    run_all(change, expire)
    return changed, expired


def test_a_second_up_changes_nothing(stacks: tuple[Ups, Ups]) -> None:
    changed, _ = stacks
    assert changed.outputs[0] == changed.outputs[1]
    assert changed.pods[0] == changed.pods[1]


def test_changed_config_is_a_new_run(stacks: tuple[Ups, Ups]) -> None:
    changed, _ = stacks
    before, after = changed.outputs[1:]
    assert after["runId"] != before["runId"]
    assert after["namespace"] == before["namespace"]
    assert after["resultsToken"] == before["resultsToken"]
    assert not changed.pods[1] & changed.pods[2]
    assert changed.status is not None
    assert (changed.status.state, changed.status.reason) == ("done", "")
    assert changed.summary["run_info"]["benchmark_id"] == after["runId"]
    assert changed.summary["aiperf_svc"]["config"]["load"]["concurrency"] == 4


def test_each_run_has_one_disruption_budget(stacks: tuple[Ups, Ups]) -> None:
    changed, _ = stacks
    names = [f"benchmark-{each['runId'][:8]}-{changed.stack.name}" for each in changed.outputs]
    assert changed.budgets == [[name] for name in names]
    assert names[1] != names[2]


def test_expired_stack_removes_itself_and_up_recreates_it(stacks: tuple[Ups, Ups]) -> None:
    _, expired = stacks
    before, after = expired.outputs
    assert after["namespace"] != before["namespace"]
    assert not expired.pods[0] & expired.pods[1]
    assert len(expired.pods[1]) == after["pods"]
    assert expired.status is not None
    assert (expired.status.state, expired.status.reason) == ("done", "")
