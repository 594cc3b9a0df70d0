"""What a stack hangs on is deleted by somebody while its run is measured: that is seen at once and
said as the cause."""

import json
import time
from collections.abc import Callable

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import RUN, Runner
from tests.support.stack.real_stack import Config

pytestmark = pytest.mark.cluster

NOTICED_S = 15.0
"""From the deletion to the word about it, on a machine that does much else."""


def for_a_while(benchmark: Config) -> None:
    """Long enough for somebody to come."""
    benchmark["load"] |= {"duration": "2m"}


@pytest.mark.gate
def test_deleted_namespace_ends_its_run_at_once(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(for_a_while)
    with runner.start("run", runner.name, "--yes", "--ui", "plain", "--json") as command:
        command.wait_for(RUN)
        (space,) = cluster.objects("namespaces", "-l", f"aiperf.dev/stack={runner.name}")
        name = space["metadata"]["name"]
        reason = f"Namespace {name} was deleted during the run"
        deleted_mono_s = time.monotonic()
        cluster.kubectl("delete", "namespace", name, "--wait=false")
        command.wait_for(reason)
        assert time.monotonic() - deleted_mono_s < NOTICED_S
        ended = command.end()
    said = json.loads(ended.out)
    assert (ended.code, said["state"], said["reason"]) == (
        ExitCode.BENCHMARK_FAILED,
        "failed",
        reason,
    )
    assert said["left"] == said["not_checked"] == []
    assert cluster.left_of(runner.name) == []


def test_deleted_anchor_ends_its_run_at_once(
    cluster: Cluster, make_runner: Callable[[], Runner], owners_namespace: str
) -> None:
    before = cluster.of_namespace(owners_namespace)
    runner = make_runner()

    def as_guest(benchmark: Config) -> None:
        benchmark["deployment"]["namespace"] = {"mode": "existing", "name": owners_namespace}

    runner.change(for_a_while)
    runner.change(as_guest)
    anchor = f"anchor-{runner.name}"
    reason = f"ConfigMap {anchor} was deleted during the run"
    with runner.start("run", runner.name, "--yes", "--ui", "plain", "--json") as command:
        command.wait_for(RUN)
        deleted_mono_s = time.monotonic()
        cluster.kubectl("delete", "configmap", anchor, "-n", owners_namespace)
        command.wait_for(reason)
        assert time.monotonic() - deleted_mono_s < NOTICED_S
        ended = command.end()
    assert (ended.code, json.loads(ended.out)["reason"]) == (ExitCode.BENCHMARK_FAILED, reason)
    assert cluster.left_of(runner.name) == []
    assert cluster.of_namespace(owners_namespace) == before
