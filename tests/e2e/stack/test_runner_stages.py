"""A runner is stopped or killed in the stages that other files do not cover, several at a time."""

import functools
import signal
from collections.abc import Callable

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.stack.commands import Ended
from tests.support.stack.expiry import end_by_deadline
from tests.support.stack.kinds import Kind
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import COLLECT, DESTROY, RUN, Runner
from tests.support.stack.real_stack import run_all

pytestmark = pytest.mark.cluster

STOPS = (
    (RUN, signal.SIGTERM),
    (COLLECT, signal.SIGINT),
    (COLLECT, signal.SIGTERM),
    (DESTROY, signal.SIGTERM),
)


def test_stopped_runner_keeps_results_and_cleans_the_cluster(
    cluster: Cluster, make_runner: Callable[[], Runner], kind: Kind
) -> None:
    ended: dict[int, Ended] = {}
    runners = [make_runner() for _ in STOPS]

    def stop(index: int) -> None:
        runner, (word, number) = runners[index], STOPS[index]
        kind.prepare(runner)
        kind.set_duration(runner, 120 if word == RUN else 5)
        with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
            kind.wait_for(runner, command, word)
            command.send(number)
            ended[index] = command.end()

    run_all(*(functools.partial(stop, index) for index in range(len(STOPS))))
    for index, runner in enumerate(runners):
        assert ended[index].code == ExitCode.INTERRUPTED, (STOPS[index], ended[index].errors)
        assert "leak check: nothing is left" in ended[index].errors
        assert cluster.of_stack(runner.name) == []
        assert kind.has_results(runner), (STOPS[index], ended[index].errors)
    assert kind.left() == []


@pytest.mark.gate
def test_gc_or_deadline_removes_a_killed_runners_stack(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    helped, alone = make_runner(), make_runner()
    collected: dict[str, Ended] = {}

    def kill(runner: Runner, word: str) -> None:
        with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
            command.wait_for(word)
            command.kill()

    def with_help() -> None:
        kill(helped, COLLECT)
        collected[helped.name] = helped.call("gc", helped.name, "--yes")

    def without_help() -> None:
        alone.change(lambda benchmark: benchmark["load"].update(duration="4m"))
        kill(alone, RUN)
        end_by_deadline(cluster, alone.name, "namespace")
        # Only the state still lists objects.
        collected[alone.name] = alone.gc()

    run_all(with_help, without_help)
    for runner in (helped, alone):
        ended = collected[runner.name]
        assert ended.code == ExitCode.OK, ended.errors
        assert cluster.of_stack(runner.name) == []
        again = runner.gc()
        assert again.code == ExitCode.OK
        assert runner.name not in again.errors
