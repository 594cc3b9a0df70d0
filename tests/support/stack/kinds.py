"""The two kinds of stacks whose lives are the same: of an inference server and of a tool on a
claim."""

import time
from abc import ABC, abstractmethod
from pathlib import Path

from tests.support.stack.rank_runs import results_of
from tests.support.stack.rank_stack import Volumes, run_command, use_command
from tests.support.stack.real_runner import RUN, SAID_S, Command, Runner


class Kind(ABC):
    """What a runner's stack measures."""

    @abstractmethod
    def prepare(self, runner: Runner) -> None:
        """Have the next run measure this; what earlier runs took along is there again."""

    @abstractmethod
    def last(self, runner: Runner, seconds: int) -> None:
        """Have the measurement take so long."""

    def wait_for(self, runner: Runner, command: Command, words: str) -> None:
        """Read what the run says until these words come; with `RUN` there is something to keep."""
        command.wait_for(words)

    @abstractmethod
    def has_results(self, runner: Runner) -> bool:
        """Whether the one run so far has kept what it measured."""

    @abstractmethod
    def left(self) -> list[str]:
        """What is left of this kind beside the stack's own objects."""


class ServerKind(Kind):
    """The mock server, as stack files of runners have it from the beginning."""

    def prepare(self, runner: Runner) -> None:
        pass

    def last(self, runner: Runner, seconds: int) -> None:
        runner.change(lambda benchmark: benchmark["load"].update(duration=f"{seconds}s"))

    def has_results(self, runner: Runner) -> bool:
        return bool(runner.summary()["request_count"]["avg"] > 0)

    def left(self) -> list[str]:
        return []


class CommandKind(Kind):
    """A command that writes to a claim, whose volume is to go with it."""

    def __init__(self, image: str, volumes: Volumes) -> None:
        self._image, self._volumes = image, volumes
        self._given: dict[str, Path] = {}
        """Folder of each stack's volume."""

    def prepare(self, runner: Runner) -> None:
        if runner.name not in self._given:
            run_command(runner, self._image)
        self._given[runner.name] = self._volumes.give(runner, policy="Delete")

    def last(self, runner: Runner, seconds: int) -> None:
        script = f'echo kept; echo kept >"$AIPERF_VOLUME/data"; sleep {seconds}'
        runner.change(use_command("sh", "-c", f"{script}; echo copied, 1 s", timeout="5m"))
        runner.change(lambda benchmark: benchmark.update(repetitions=1))

    def wait_for(self, runner: Runner, command: Command, words: str) -> None:
        command.wait_for(words)
        # A step that is being prepared has printed nothing yet.
        deadline = time.monotonic() + SAID_S
        while words == RUN and not (self._given[runner.name] / "data").exists():
            assert time.monotonic() < deadline, "the command never wrote to its volume"

    def has_results(self, runner: Runner) -> bool:
        kept = runner.artifacts.glob("*/raw/001-command/rank-0/command-0/stdout")
        return bool(results_of(runner)["steps"]) and any(path.stat().st_size for path in kept)

    def left(self) -> list[str]:
        return self._volumes.bound()
