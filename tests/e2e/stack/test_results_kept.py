"""Results that cannot be fetched are not destroyed with the only pods that have them."""

import json
import sys
from collections.abc import Callable

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import Runner

pytestmark = pytest.mark.cluster
MOUNT = 'mount -t tmpfs -o size=64k none artifacts && exec "$@"'
"""A small disk in a mount namespace of the command's own, which ends with it."""


def test_results_stay_in_the_cluster_without_disk_space(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.artifacts.mkdir()
    program, small_disk = runner.program, ("unshare", "--mount", "sh", "-c", MOUNT, "sh")
    runner.program = (*small_disk, sys.executable, "-m", "aiperf_svc")
    ended = runner.run("--json")
    said = json.loads(ended.out)
    assert (ended.code, said["state"], said["kept"]) == (ExitCode.ERROR, "done", True), ended.errors
    assert "MiB of results are still to come" in said["artifact_error"]
    assert f"aiperf-svc results {runner.name}" in ended.errors
    assert cluster.of_stack(runner.name) != []

    runner.program = program
    fetched = runner.call("results", runner.name, "--json")
    assert json.loads(fetched.out)["results"] == said["results"] == runner.summary()
    assert runner.call("gc", "--yes").code == ExitCode.OK
    assert cluster.left_of(runner.name) == []
