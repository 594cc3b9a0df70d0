"""`check-cluster` on a real cluster: what it finds is so, and nothing of it stays."""

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest
from real_cluster import Cluster
from real_runner import Runner

from aiperf_svc.domain.exit_codes import ExitCode

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

CHECK_LABEL = "aiperf.dev/stack"


def found_by(runner: Runner, *flags: str) -> tuple[int, dict[str, dict[str, Any]], dict[str, Any]]:
    """Exit code, checks by name, and the whole object that is printed."""
    ended = runner.call("check-cluster", "--json", *flags)
    assert ended.out, ended.errors
    said = json.loads(ended.out)
    assert said["exit_code"] == ended.code
    return ended.code, {each["name"]: each for each in said["checks"]}, said


def namespaces_of_checks(cluster: Cluster) -> list[str]:
    found = cluster.objects("namespaces", "-l", CHECK_LABEL)
    names = (each["metadata"]["name"] for each in found)
    return [name for name in names if name.startswith("aiperf-check-")]


def test_a_sound_cluster_passes_and_keeps_nothing(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    before = cluster.namespace_uids()
    code, checks, said = found_by(make_runner(), "--strict")
    assert code == ExitCode.OK, checks
    assert {each["state"] for each in checks.values()} == {"ok"}
    nodes = len(cluster.nodes())
    assert checks["nodes"]["detail"] == f"{nodes} of {nodes} are ready"
    # All nodes share one clock, and that of the API server.
    assert checks["clocks"]["detail"].startswith(f"{nodes} of {nodes} nodes agree")
    assert checks["network policies"]["detail"].startswith("enforced: ")
    assert checks["GPUs"]["detail"] == "no ready node has any"
    assert (said["gpus"], said["left"], said["not_checked"]) == ([], [], [])
    assert cluster.namespace_uids() == before


def test_ctrl_c_removes_what_was_made_and_gc_what_a_kill_left(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    with runner.start("check-cluster") as command:
        command.wait_for("try the network")
        command.send(signal.SIGINT)
        assert command.end().code == ExitCode.INTERRUPTED
    assert namespaces_of_checks(cluster) == []
    with runner.start("check-cluster") as command:
        command.wait_for("try the network")
        command.kill()
    (left,) = namespaces_of_checks(cluster)
    name = left.removeprefix("aiperf-")
    removed = runner.call("gc", name, "--yes")
    assert removed.code == ExitCode.OK, removed.errors
    assert cluster.left_of(name) == []
