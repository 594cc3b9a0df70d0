"""A runner is killed while its stack uses another owner's namespace. Its objects are removed and
the owner's objects stay unchanged."""

from collections.abc import Callable

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.stack import owners
from tests.support.stack.commands import Ended
from tests.support.stack.expiry import end_by_deadline
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import RUN, Runner
from tests.support.stack.real_stack import Config, run_all

pytestmark = pytest.mark.cluster


def test_gc_or_deadline_removes_a_killed_guest(
    cluster: Cluster, image: str, make_runner: Callable[[], Runner], owners_namespace: str
) -> None:
    owners.settle(cluster, owners_namespace, image=image)
    before = cluster.of_namespace(owners_namespace)
    owned = owners.state(cluster, owners_namespace)
    helped, alone = make_runner(), make_runner()
    collected: dict[str, Ended] = {}

    def as_guest(benchmark: Config) -> None:
        benchmark["deployment"]["namespace"] = {"mode": "existing", "name": owners_namespace}
        benchmark["load"]["duration"] = "4m"

    def kill(runner: Runner) -> None:
        runner.change(as_guest)
        with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
            command.wait_for(RUN)
            assert len(cluster.objects("pods", *place, "-l", of(runner))) > 1
            command.kill()

    def with_help() -> None:
        kill(helped)
        collected[helped.name] = helped.call("gc", helped.name, "--yes")

    def without_help() -> None:
        kill(alone)
        # The deadline pod deletes the anchor, and garbage collection removes the rest.
        end_by_deadline(cluster, alone.name, "configmap")
        # Only the state still lists objects.
        collected[alone.name] = alone.gc()

    def of(runner: Runner) -> str:
        return f"aiperf.dev/stack={runner.name}"

    place = ("-n", owners_namespace)
    run_all(with_help, without_help)
    for runner in (helped, alone):
        ended = collected[runner.name]
        assert ended.code == ExitCode.OK, ended.errors
        assert f"removed: {runner.name}" in ended.errors
        assert cluster.left_of(runner.name) == []
        assert runner.name not in runner.gc().errors
    assert cluster.of_namespace(owners_namespace) == before
    assert owners.state(cluster, owners_namespace) == owned
