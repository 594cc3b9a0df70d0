"""The root object of a stack is deleted during its run, which ends at once with the cause."""

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
"""Time limit from the deletion to the message, on a busy machine."""


def run_long(benchmark: Config) -> None:
    """Run long enough for the deletion."""
    benchmark["load"] |= {"duration": "2m"}


@pytest.mark.gate
def test_deleted_namespace_ends_its_run_at_once(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(run_long)
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
    printed = json.loads(ended.out)
    assert (ended.code, printed["state"], printed["reason"]) == (
        ExitCode.BENCHMARK_FAILED,
        "failed",
        reason,
    )
    assert printed["left"] == printed["not_checked"] == []
    assert cluster.left_of(runner.name) == []


def test_deleted_anchor_ends_its_run_at_once(
    cluster: Cluster, make_runner: Callable[[], Runner], owners_namespace: str
) -> None:
    before = cluster.of_namespace(owners_namespace)
    runner = make_runner()

    def as_guest(benchmark: Config) -> None:
        benchmark["deployment"]["namespace"] = {"mode": "existing", "name": owners_namespace}

    runner.change(run_long)
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
