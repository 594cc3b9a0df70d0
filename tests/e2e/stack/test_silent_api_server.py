"""An API server that does not respond for a while delays a run. The run reports it and succeeds."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import DESTROY, UP, Runner
from tests.support.stack.silent_proxy import proxy_of

pytestmark = pytest.mark.cluster

SILENT, AGAIN = "has not responded for", "the API server responds again after"


@pytest.mark.parametrize("stage", [UP, DESTROY], ids=["up", "destroy"])
def test_silent_api_server_is_reported_and_awaited(
    cluster: Cluster, make_runner: Callable[[], Runner], tmp_path: Path, stage: str
) -> None:
    runner = make_runner()
    with proxy_of(cluster, tmp_path) as (proxy, kubeconfig):
        runner.environ["KUBECONFIG"] = str(kubeconfig)
        with runner.start("run", runner.name, "--yes", "--ui", "plain", "--json") as command:
            command.wait_for(stage)
            proxy.fall_silent()
            command.wait_for(SILENT)
            proxy.resume()
            command.wait_for(AGAIN)
            ended = command.end()
    assert ended.code == ExitCode.OK, ended.errors
    assert ended.errors.count(SILENT) == ended.errors.count(AGAIN) == 1
    printed = json.loads(ended.out)
    assert (printed["state"], printed["left"], printed["not_checked"]) == ("done", [], [])
