"""Interrupts and kills of the runner at several stages leave nothing and keep measurements."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.stack.commands import Ended
from tests.support.stack.kinds import Kind
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import (
    DESTROY,
    PREFLIGHT,
    RUN,
    UP,
    Runner,
    kill_pulumi,
    processes_with,
)

pytestmark = pytest.mark.cluster


def interrupt_at(runner: Runner, kind: Kind, word: str, number: signal.Signals) -> Ended:
    """Send a signal when the output contains the word and return how the run ended."""
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
        kind.wait_for(runner, command, word)
        command.send(number)
        return command.end()


@pytest.mark.parametrize(
    ("word", "number"),
    [(PREFLIGHT, signal.SIGTERM), (UP, signal.SIGTERM), (DESTROY, signal.SIGINT)],
    ids=["preflight", "up", "destroy"],
)
def test_an_interrupt_ends_in_a_full_teardown(
    cluster: Cluster,
    make_runner: Callable[[], Runner],
    kind: Kind,
    word: str,
    number: signal.Signals,
) -> None:
    runner = make_runner()
    kind.prepare(runner)
    ended = interrupt_at(runner, kind, word, number)
    assert ended.code == ExitCode.INTERRUPTED
    assert [*cluster.left_of(runner.name), *kind.left()] == []


def test_interrupted_run_keeps_its_results(
    cluster: Cluster, make_runner: Callable[[], Runner], kind: Kind
) -> None:
    runner = make_runner()
    kind.prepare(runner)
    kind.set_duration(runner, 120)
    ended = interrupt_at(runner, kind, RUN, signal.SIGINT)
    assert ended.code == ExitCode.INTERRUPTED
    assert kind.has_results(runner)
    assert [*cluster.left_of(runner.name), *kind.left()] == []


def test_second_interrupt_skips_only_the_results(
    cluster: Cluster, make_runner: Callable[[], Runner], kind: Kind
) -> None:
    runner = make_runner()
    kind.prepare(runner)
    kind.set_duration(runner, 120)
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
        command.wait_for(RUN)
        command.send(signal.SIGINT)
        command.wait_for("Stopping. ")
        command.send(signal.SIGINT)
        ended = command.end()
    assert ended.code == ExitCode.INTERRUPTED
    assert [*cluster.left_of(runner.name), *kind.left()] == []


@pytest.mark.parametrize("word", [UP, DESTROY], ids=["up", "destroy"])
def test_run_with_killed_pulumi_removes_the_stack(
    cluster: Cluster, make_runner: Callable[[], Runner], temporary: Path, word: str
) -> None:
    runner = make_runner()
    runner.environ["TMPDIR"] = str(temporary)
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
        command.wait_for(word)
        while not kill_pulumi(runner.folder):
            pass  # Listing all processes takes long enough to need no sleep.
        ended = command.end()
    assert "killed by signal 9" in ended.errors + ended.out
    assert "leak check: nothing is left" in ended.errors
    # A new `destroy` has no lock yet, and the run is over.
    if word == UP:
        assert "removing the lock of a process that has ended" in ended.errors
        assert ended.code == ExitCode.ERROR
    assert cluster.left_of(runner.name) == []
    assert runner.name not in runner.gc().errors
    assert (processes_with(runner.folder), list(temporary.iterdir())) == ([], [])


@pytest.mark.gate
@pytest.mark.parametrize("word", [UP, DESTROY], ids=["up", "destroy"])
def test_gc_removes_leftovers_of_a_killed_runner(
    cluster: Cluster, make_runner: Callable[[], Runner], word: str
) -> None:
    runner = make_runner()
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
        command.wait_for(word)
        command.kill()
    ended = runner.gc()
    assert (ended.code, cluster.left_of(runner.name)) == (ExitCode.OK, [])
    assert f"removed: {runner.name}" in ended.errors
    # A run that is interrupted during `up` proves that the state is usable.
    assert runner.name not in runner.gc().errors
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
        command.wait_for(UP)
        command.send(signal.SIGINT)
        ended = command.end()
    assert ended.code == ExitCode.INTERRUPTED
    assert "leak check: nothing is left" in ended.errors
    assert cluster.left_of(runner.name) == []
