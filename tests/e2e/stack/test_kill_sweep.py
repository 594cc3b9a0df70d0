"""Kills the runner of a stack or its Pulumi CLI at many moments, in the stack's own namespace and
in a shared one, with a server and with a command on a claim. After each kill, `gc` and the next run
must succeed without force. `make test-stack` tries a few moments. AIPERF_KILLS sets their number
and AIPERF_KILLS_SEED chooses others."""

import json
import os
import random
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.stack import owners
from tests.support.stack.commands import Ended
from tests.support.stack.kinds import Kind
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import (
    COLLECT,
    DESTROY,
    PREFLIGHT,
    RUN,
    UP,
    Runner,
    kill_pulumi,
    processes_with,
)

pytestmark = pytest.mark.cluster

KILLS = int(os.environ.get("AIPERF_KILLS", "4"))
SEED = int(os.environ.get("AIPERF_KILLS_SEED", "0"))
FIRST_S, LATER_S = 4.0, 3.0
"""Kills are spread over these seconds: half from the start, half from a line of output."""
WORDS = ("", PREFLIGHT, UP, RUN, COLLECT, DESTROY)


@dataclass(frozen=True)
class Moment:
    """When a process is killed."""

    number: int
    word: str
    """Text in the run's output after which the delay counts. Empty means the start of the run."""
    after_s: float
    victim: str

    def __str__(self) -> str:
        began = repr(self.word) if self.word else "the start"
        return f"kill {self.number} of {self.victim}, {self.after_s * 1000:.0f} ms after {began}"


def moments() -> list[Moment]:
    """Spread half of the kills over the first seconds. Time the others from a stage's first
    output."""
    chosen, found = random.Random(SEED), []
    for number in range(KILLS):
        victim = ("runner", "pulumi")[chosen.randrange(2)]
        if number % 2:
            word, after_s = chosen.choice(WORDS[1:]), chosen.uniform(0.0, LATER_S)
        else:
            word, after_s = "", FIRST_S * (number + SEED % 2) / KILLS
        found.append(Moment(number, word, after_s, victim))
    return found


def run_and_kill(runner: Runner, moment: Moment) -> Ended | None:
    """Run until the kill. Return how the run ended unless it was itself killed."""
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
        if moment.word:
            command.wait_for(moment.word)
        # The kill time is what the test varies, so there is no condition to wait for.
        select.select([], [], [], moment.after_s)
        if moment.victim == "runner":
            command.send(signal.SIGKILL)
            command.end()
            return None
        kill_pulumi(runner.folder)
        return command.end()


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def try_moment(runner: Runner, kind: Kind, moment: Moment) -> list[str]:
    """Return the problems after a kill, `gc` and the next run."""
    wrong = []
    kind.prepare(runner)
    ended = run_and_kill(runner, moment)
    if ended and "Traceback" in ended.errors:
        wrong.append(f"run: {ended.errors[-2000:]}")
    collected = runner.gc()
    if collected.code != ExitCode.OK:
        wrong.append(f"gc: {collected.code} {collected.errors[-2000:]}")
    if left := [*runner.cluster.left_of(runner.name), *kind.left()]:
        wrong.append(f"left after gc: {left}")
    kind.prepare(runner)
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
        try:
            command.wait_for(UP)
        except AssertionError as error:
            wrong.append(f"next run: {error}"[-2000:])
        else:
            command.send(signal.SIGINT)
        following = command.end()
    if left := kind.left():
        wrong.append(f"left after the next run: {left}")
    if following.code != ExitCode.INTERRUPTED or "nothing is left" not in following.errors:
        wrong.append(f"next run: {following.code} {following.errors[-2000:]}")
    if pids := processes_with(runner.folder):
        wrong.append(f"processes: {[name_of(pid) for pid in pids]}")
    if files := [path.name for path in Path(runner.environ["TMPDIR"]).iterdir()]:
        wrong.append(f"temporary files: {files}")
    return [f"{moment}: {each}" for each in wrong]


@pytest.mark.parametrize("mode", ["auto", "existing"])
def test_gc_after_any_kill_needs_no_force(
    cluster: Cluster,
    image: str,
    make_runner: Callable[[], Runner],
    owners_namespace: str,
    kind: Kind,
    temporary: Path,
    mode: str,
) -> None:
    runner = make_runner()
    own = temporary / "runner"
    own.mkdir()
    runner.environ["TMPDIR"] = str(own)
    kind.prepare(runner)
    # Long enough that its start is observed.
    kind.set_duration(runner, 15)
    if mode == "existing":
        owners.settle(cluster, owners_namespace, image=image)
        where = {"mode": mode, "name": owners_namespace}
        runner.change(lambda benchmark: benchmark["deployment"].update(namespace=where))
    before = cluster.of_namespace(owners_namespace)
    wrong: list[str] = []
    for moment in moments():
        found = try_moment(runner, kind, moment)
        if cluster.of_namespace(owners_namespace) != before:
            found.append(f"{moment}: the owner's namespace is not as it was")
        wrong += found
        print(json.dumps({"mode": mode, "moment": str(moment), "wrong": found}), flush=True)
    assert wrong == []
