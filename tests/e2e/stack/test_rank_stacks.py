"""Stacks of ranks: their results, the removal of their claims, refusals, and lost ranks."""

import json
from collections.abc import Callable

import pytest
import yaml

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.running_command import FINISHED
from tests.support.stack.expiry import end_by_deadline
from tests.support.stack.rank_runs import make_small, results_of, values
from tests.support.stack.rank_stack import Volumes, run_command, use_command, use_ranks
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import RUN, Runner
from tests.support.stack.real_stack import Config, run_all

pytestmark = pytest.mark.cluster


@pytest.fixture
def runner(make_runner: Callable[[], Runner], base_image: str) -> Runner:
    """Make a stack with one rank that writes to its volume twice."""
    return run_command(make_runner(), base_image)


@pytest.mark.gate
def test_command_on_a_claim_leaves_nothing(
    cluster: Cluster, runner: Runner, volumes: Volumes
) -> None:
    volume = volumes.add(runner)
    ended = runner.call("run", runner.name, "--yes", "--ui", "plain", "--json")
    assert ended.code in FINISHED, ended.errors
    printed = json.loads(ended.out)
    assert (printed["state"], printed["left"], printed["not_checked"]) == ("done", [], [])
    assert results_of(runner)["metrics"]
    assert (volume / "data").stat().st_size == 16 * 2**20
    assert cluster.left_of(runner.name) == []


def test_profile_measures_a_command_as_a_stack(
    cluster: Cluster, make_runner: Callable[[], Runner], base_image: str
) -> None:
    runner = make_runner()
    pods: Config = {"deployment": {}}
    make_small()(pods)
    (runner.folder / "pods.yaml").write_text(yaml.safe_dump(pods))
    keys = ("command=[sh, -c, 'echo speed: 3']", f"image={base_image}")
    metric = "metrics={speed: {unit: ops/s, pattern: 'speed: (\\d+)'}}"
    where = ("--kubernetes", "--config", "pods.yaml", "--yes", "--ui", "plain", "--json")
    ended = runner.call("profile", "--workload", "command", *keys, metric, *where)
    assert ended.code in FINISHED, ended.errors
    printed = json.loads(ended.out)
    assert (printed["state"], printed["left"]) == ("done", [])
    assert values(results_of(runner)) == {"speed": 3.0}
    assert cluster.left_of(printed["stack"]) == []


def test_more_ranks_than_nodes_are_refused_before_creation(
    cluster: Cluster, runner: Runner
) -> None:
    ranks = len(cluster.nodes()) + 1
    runner.change(use_ranks(nodes="apart"))
    runner.change(lambda benchmark: benchmark["workload"].update(ranks=ranks))
    ended = runner.run()
    assert ended.code == ExitCode.BAD_CONFIG
    assert f"{ranks} ranks apart need {ranks} nodes" in ended.errors
    assert "deployment.ranks.nodes" in ended.errors
    assert cluster.of_stack(runner.name) == []


def test_missing_node_is_refused_with_existing_names(cluster: Cluster, runner: Runner) -> None:
    runner.change(use_ranks(nodes=["no-such-node"]))
    ended = runner.run()
    assert ended.code == ExitCode.BAD_CONFIG
    assert f"no node no-such-node; it has {', '.join(sorted(cluster.nodes()))}" in ended.errors
    assert cluster.of_stack(runner.name) == []


def test_missing_rank_image_is_named_and_stack_removed(cluster: Cluster, runner: Runner) -> None:
    runner.environ["AIPERF_WORKLOAD_IMAGE"] = "localhost/no-such-tool:1"
    ended = runner.run()
    assert ended.code == ExitCode.ERROR, ended.errors
    assert f"pod rank-{runner.name}-0" in ended.errors
    assert "check workload.image" in ended.errors
    assert "nothing is left" in ended.errors
    assert cluster.left_of(runner.name) == []


def test_gc_or_deadline_removes_killed_guest_and_claim(
    cluster: Cluster,
    make_runner: Callable[[], Runner],
    base_image: str,
    owners_namespace: str,
    volumes: Volumes,
) -> None:
    before = cluster.of_namespace(owners_namespace)
    helped, alone = make_runner(), make_runner()
    ended: dict[str, int] = {}

    def kill(runner: Runner) -> None:
        volumes.add(run_command(runner, base_image))
        runner.change(use_command("sleep", "600", timeout="2m"))
        place = {"mode": "existing", "name": owners_namespace}
        runner.change(lambda benchmark: benchmark["deployment"].update(namespace=place))
        with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
            command.wait_for(RUN)
            claims = cluster.objects("persistentvolumeclaims", "-n", owners_namespace)
            assert f"volume-rank-{runner.name}-0" in {c["metadata"]["name"] for c in claims}
            command.kill()

    def with_help() -> None:
        kill(helped)
        ended[helped.name] = helped.call("gc", helped.name, "--yes").code

    def without_help() -> None:
        kill(alone)
        end_by_deadline(cluster, alone.name, "configmap")
        ended[alone.name] = alone.gc().code

    run_all(with_help, without_help)
    for runner in (helped, alone):
        assert ended[runner.name] == ExitCode.OK
        assert cluster.left_of(runner.name) == []
    assert cluster.of_namespace(owners_namespace) == before


def test_status_results_and_cancel_work_for_ranks(cluster: Cluster, runner: Runner) -> None:
    runner.change(use_command("sh", "-c", "echo copied, 1 s; sleep 600", timeout="11m"))
    runner.change(lambda benchmark: benchmark["deployment"].update(ttl="1h"))
    with runner.start("run", runner.name, "--yes", "--ui", "plain", "--keep") as command:
        command.wait_for(f"{RUN}step 1 of 2")
        status = runner.call("status", runner.name)
        assert (status.code, "step 1 of 2" in status.out) == (ExitCode.OK, True), status.out
        found = json.loads(runner.call("status", runner.name, "--json").out)
        assert (found["state"], found["steps"]["workload"]) == ("profiling", "command")
        assert "results so far are kept" in runner.call("cancel", runner.name).errors
        ended = command.end()
    assert ended.code == ExitCode.INTERRUPTED, ended.errors
    fetched = runner.call("results", runner.name, "--artifact-dir", "fetched", "--json")
    assert json.loads(fetched.out)["results"] == results_of(runner)
    assert results_of(runner)["was_cancelled"]
    (kept,) = (runner.folder / "fetched").glob("**/raw/001-command/rank-0/command-0/stdout")
    assert kept.read_text() == "copied, 1 s\n"
    status = runner.call("status", runner.name)
    assert status.out.startswith("cancelled")
    assert runner.call("gc", runner.name, "--yes").code == ExitCode.OK
    assert cluster.left_of(runner.name) == []
