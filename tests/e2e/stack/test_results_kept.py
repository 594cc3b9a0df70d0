"""If results cannot be fetched, the only pods that hold them are kept."""

import json
import sys
from collections.abc import Callable

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import Runner

pytestmark = pytest.mark.cluster
MOUNT = 'mount -t tmpfs -o size=64k none artifacts && exec "$@"'
"""Mounts a small disk in the command's own mount namespace, which ends with the command."""


def test_results_stay_in_the_cluster_without_disk_space(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.artifacts.mkdir()
    program, small_disk = runner.program, ("unshare", "--mount", "sh", "-c", MOUNT, "sh")
    runner.program = (*small_disk, sys.executable, "-m", "aiperf_svc")
    ended = runner.run("--json")
    printed = json.loads(ended.out)
    assert ended.code == ExitCode.ERROR, ended.errors
    assert (printed["state"], printed["kept"]) == ("done", True)
    assert "MiB of results remain" in printed["artifact_error"]
    assert f"aiperf-svc results {runner.name}" in ended.errors
    assert cluster.of_stack(runner.name) != []

    runner.program = program
    fetched = runner.call("results", runner.name, "--json")
    assert json.loads(fetched.out)["results"] == printed["results"] == runner.summary()
    assert runner.call("gc", "--yes").code == ExitCode.OK
    assert cluster.left_of(runner.name) == []
