"""Shapes of an experiment run concurrently, each in its own stack on a real cluster."""

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.running_command import FINISHED
from tests.support.stack.four_servers import FAST, SLOW, assert_two_were_measured, four_servers
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import Runner

pytestmark = pytest.mark.cluster


def side_by_side(benchmark: dict[str, Any]) -> None:
    """Run the same four servers, two at a time, the fast one first."""
    four_servers(benchmark)
    benchmark["experiment"] |= {"parallel": 2, "priority": [{"deployment.target.args": FAST}]}
    benchmark["deployment"]["ttl"] = "30m"


def test_parallel_shapes_have_separate_stacks(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(side_by_side)
    ended = runner.run("--json")
    assert ended.code == ExitCode.BENCHMARK_FAILED, ended.errors
    found = json.loads(ended.out)
    assert found["left"] == []
    assert [each["stack"] for each in found["stacks"]] == [
        f"{runner.name}-{n}" for n in (1, 2, 3, 4)
    ]
    for number in (1, 2, 3, 4):
        assert cluster.left_of(f"{runner.name}-{number}") == []
    assert_two_were_measured(runner, found["results"])


PODS, POD_QUOTA = 5, 8
"""Pods of a stack, and the quota, which does not allow two stacks at a time."""


def guard(cluster: Cluster, namespace: str, *, used: int) -> None:
    """Set the namespace's pod quota and wait until the cluster has counted the existing pods."""
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "few-pods", "namespace": namespace},
            "spec": {"hard": {"pods": str(POD_QUOTA)}},
        }
    )
    counted = f"--for=jsonpath={{.status.used.pods}}={used}"
    named = ("-n", namespace, "resourcequota/few-pods")
    cluster.kubectl("wait", *named, counted, "--timeout=30s", timeout_s=60.0)


def in_namespace(name: str, **deployment: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change that gives a stack a short load and puts it into this namespace."""

    def change(benchmark: dict[str, Any]) -> None:
        benchmark["load"]["duration"] = "3s"
        place = {"mode": "existing", "name": name}
        benchmark["deployment"].update(namespace=place, **deployment)

    return change


def test_second_shape_waits_for_the_quota(
    cluster: Cluster, make_runner: Callable[[], Runner], owners_namespace: str
) -> None:
    guard(cluster, owners_namespace, used=0)
    runner = make_runner()
    runner.change(in_namespace(owners_namespace, ttl="30m"))
    product = {"deployment.target.args": [SLOW, FAST]}
    experiment = {"product": product, "parallel": 2}
    runner.change(lambda benchmark: benchmark.update(experiment=experiment))
    ended = runner.run("--json")
    assert ended.code in FINISHED, ended.errors
    found = json.loads(ended.out)
    assert [each["state"] for each in found["results"]["trials"]] == ["done"] * 2
    assert found["left"] == []


def test_stack_waits_until_others_leave_room(
    cluster: Cluster, make_runner: Callable[[], Runner], image: str, owners_namespace: str
) -> None:
    container = {"name": "main", "image": image, "command": ["sleep", "3600"]}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    metadata = {"namespace": owners_namespace, "labels": {"app": "others"}}
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": spec}
    names = [f"other-{number}" for number in range(PODS)]
    cluster.apply(*({**pod, "metadata": {**metadata, "name": name}} for name in names))
    guard(cluster, owners_namespace, used=PODS)
    runner = make_runner()
    runner.change(in_namespace(owners_namespace, wait_for_room="4m"))
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
        command.wait_for("waiting at most 4m for others to free it")
        assert cluster.of_stack(runner.name) == []
        cluster.kubectl("delete", "pods", "-n", owners_namespace, "-l", "app=others")
        ended = command.end()
    assert ended.code in FINISHED, ended.errors
    assert "✓ quota: " in ended.errors
    assert cluster.left_of(runner.name) == []


def test_ctrl_c_stops_all_stacks_and_keeps_results(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(side_by_side)
    runner.change(lambda benchmark: benchmark["load"].update(duration="180s"))
    with runner.start("run", runner.name, "--yes", "--ui", "plain", "--json") as command:
        for number in (4, 1):
            command.wait_for(f"trial {number} of 8  profiling: ")
        command.send(signal.SIGINT)
        ended = command.end()
    assert ended.code == ExitCode.INTERRUPTED, ended.errors
    found = json.loads(ended.out)
    trials = found["results"]["trials"]
    assert [each["number"] for each in trials] == [1, 4]
    assert all(each["values"]["request_count_avg"] > 0 for each in trials)
    for number in (1, 2, 3, 4):
        assert cluster.left_of(f"{runner.name}-{number}") == []
    (folder,) = runner.artifacts.glob("*/")
    assert runner.folder / found["artifacts"] == folder
    assert len(list((folder / "trials").iterdir())) == 2
    assert json.loads((folder / "experiment.json").read_bytes()) == found["results"]
