"""Two kinds of stacks that share life-cycle tests: an inference server, and a tool with a claim."""

import time
from abc import ABC, abstractmethod
from pathlib import Path

from tests.support.stack.rank_runs import results_of
from tests.support.stack.rank_stack import Volumes, run_command, use_command
from tests.support.stack.real_runner import OUTPUT_S, RESPONSES, RUN, Command, Runner


class Kind(ABC):
    """A workload that a runner's stack measures."""

    @abstractmethod
    def prepare(self, runner: Runner) -> None:
        """Configure the next run for this workload and recreate what earlier runs removed."""

    @abstractmethod
    def set_duration(self, runner: Runner, seconds: int) -> None:
        """Set the duration of the measurement."""

    def wait_for(self, runner: Runner, command: Command, words: str) -> None:
        """Read the output until it contains `words`. After `RUN`, there are results to keep."""
        command.wait_for(words)

    @abstractmethod
    def has_results(self, runner: Runner) -> bool:
        """Return whether the only run so far kept its measurements."""

    @abstractmethod
    def left(self) -> list[str]:
        """Return the objects of this kind that remain, besides the stack's own."""


class ServerKind(Kind):
    """The mock server, which is the default in the stack files of runners."""

    def prepare(self, runner: Runner) -> None:
        pass

    def set_duration(self, runner: Runner, seconds: int) -> None:
        runner.change(lambda benchmark: benchmark["load"].update(duration=f"{seconds}s"))

    def wait_for(self, runner: Runner, command: Command, words: str) -> None:
        command.wait_for(RESPONSES if words == RUN else words)

    def has_results(self, runner: Runner) -> bool:
        return bool(runner.summary()["request_count"]["avg"] > 0)

    def left(self) -> list[str]:
        return []


class CommandKind(Kind):
    """A command that writes to a claim whose volume is deleted with it."""

    def __init__(self, image: str, volumes: Volumes) -> None:
        self._image, self._volumes = image, volumes
        self._folders: dict[str, Path] = {}
        """Folder of each stack's volume."""

    def prepare(self, runner: Runner) -> None:
        if runner.name not in self._folders:
            run_command(runner, self._image)
        self._folders[runner.name] = self._volumes.add(runner, policy="Delete")

    def set_duration(self, runner: Runner, seconds: int) -> None:
        script = f'echo kept; echo kept >"$AIPERF_VOLUME/data"; sleep {seconds}'
        runner.change(use_command("sh", "-c", f"{script}; echo copied, 1 s", timeout="5m"))
        runner.change(lambda benchmark: benchmark.update(repetitions=1))

    def wait_for(self, runner: Runner, command: Command, words: str) -> None:
        command.wait_for(words)
        # A step that is still being prepared has printed nothing.
        deadline = time.monotonic() + OUTPUT_S
        while words == RUN and not (self._folders[runner.name] / "data").exists():
            assert time.monotonic() < deadline, "the command never wrote to its volume"

    def has_results(self, runner: Runner) -> bool:
        kept = runner.artifacts.glob("*/raw/001-command/rank-0/command-0/stdout")
        return bool(results_of(runner)["steps"]) and any(path.stat().st_size for path in kept)

    def left(self) -> list[str]:
        return self._volumes.bound()
