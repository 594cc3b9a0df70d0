"""Builds the reading of a step from the pieces that couriers send. Pure."""

from collections.abc import Set
from typing import Any, NamedTuple

import msgspec

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.protocol.messages.steps import CommandEnd, RankReport, RankWitness, StepOutput
from aiperf_svc.workloads.registry import tool_of
from aiperf_svc.workloads.steps import Command, Output, PlannedStep, Reading, UnreadableOutput

STDOUT, STDERR = "stdout", "stderr"
TAIL_BYTES = 4_096
"""Bytes at the end of a failed command's output, from which its last lines are shown."""
SHOWN_CHARACTERS = 500


class FinishedStep(NamedTuple):
    """The outcome of one attempt at a step."""

    plan: PlannedStep
    problem: str
    reading: Reading | None
    witnesses: tuple[RankWitness, ...]
    ends: tuple[CommandEnd, ...]


class GatheredStep:
    """The pieces of one attempt."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._files: dict[tuple[int, str], bytearray] = {}
        """Content by index of the command and name of the file."""
        self._counts: dict[int, int] = {}
        """Pieces of each rank so far."""
        self._wanted: dict[int, int] = {}
        """Number of pieces of each rank, known from its last piece."""
        self._reports: dict[int, RankReport] = {}
        self._plan: PlannedStep | None = None
        """Known from the first report."""

    def add(self, piece: StepOutput) -> None:
        """Add one piece. The pieces of a rank arrive in order."""
        self._counts[piece.rank] = self._counts.get(piece.rank, 0) + 1
        self._files.setdefault((piece.command, piece.file), bytearray()).extend(piece.data)
        if piece.is_last and piece.report is not None:
            self._wanted[piece.rank] = piece.piece + 1
            self._reports[piece.rank] = piece.report
            if self._plan is None:
                self._plan = msgspec.json.decode(piece.report.plan, type=PlannedStep)

    def is_complete(self, lost: Set[int]) -> bool:
        """Return whether all pieces have arrived; `lost` ranks send no more."""
        if self._plan is None:
            return False
        return all(
            rank in self._wanted and self._wanted[rank] == self._counts[rank]
            for rank in self._plan.step.ranks
            if rank not in lost
        )

    def finish(self, config: WorkloadConfig[Any]) -> FinishedStep:
        """Return the outcome of a complete attempt."""
        plan = self._plan
        assert plan is not None
        ends = {end.index: end for report in self._reports.values() for end in report.ends}
        problem, reading = self._problem(plan, ends), None
        if plan.step.is_measured and not problem:
            outputs = tuple(
                self._output(index, command, ends[index], is_server=is_server)
                for index, command, is_server in commands_of(plan)
            )
            try:
                reading = tool_of(config).read(config, plan.step, outputs)
            except UnreadableOutput as error:
                problem = str(error)
            except Exception as error:
                # A reader may come from another package. Other steps do not depend on it.
                problem = f"the reader of {config.kind} failed: {type(error).__name__}: {error}"
            else:
                problem = "; ".join(reading.errors)
        return FinishedStep(
            plan=plan,
            problem=problem,
            reading=reading,
            witnesses=tuple(self._reports[rank].witness for rank in sorted(self._reports)),
            ends=tuple(ends[index] for index in sorted(ends)),
        )

    def _problem(self, plan: PlannedStep, ends: dict[int, CommandEnd]) -> str:
        for rank in plan.step.ranks:
            if rank not in self._reports:
                return f"rank {rank} was lost"
            if self._reports[rank].problem:
                return self._reports[rank].problem
        for index, command, _ in commands_of(plan):
            end = ends.get(index)
            if end is None:
                return f"rank {command.rank}: {command.argv[0]} was not started"
            if end.exit_code and not end.was_told_to_end:
                output = self._file(index, STDERR) or self._file(index, STDOUT)
                text = output[-TAIL_BYTES:].decode("utf-8", "replace")
                return f"rank {command.rank}: {failure_text(command, end.exit_code, text)}"
        return ""

    def _output(self, index: int, command: Command, end: CommandEnd, *, is_server: bool) -> Output:
        files = {
            name: bytes(data)
            for (number, name), data in self._files.items()
            if number == index and name not in (STDOUT, STDERR)
        }
        return Output(
            rank=command.rank,
            is_server=is_server,
            exit_code=end.exit_code,
            stdout=self._file(index, STDOUT),
            stderr=self._file(index, STDERR),
            files=files,
            duration_s=(end.ended_wall_ns - end.started_wall_ns) / 1e9,
        )

    def _file(self, index: int, name: str) -> bytes:
        return bytes(self._files.get((index, name), b""))


def commands_of(plan: PlannedStep) -> list[tuple[int, Command, bool]]:
    """Return index, command and whether it is a server, for all commands of a step, servers
    last."""
    step = plan.step
    both = [(command, False) for command in step.commands] + [(c, True) for c in step.servers]
    return [(index, command, is_server) for index, (command, is_server) in enumerate(both)]


def newest_lines(text: str) -> list[str]:
    """Return the complete lines at the end of an output, newest first. Tools that overwrite a line
    of the terminal end it with a carriage return."""
    whole, _, _ = text.replace("\r", "\n").rpartition("\n")
    return whole.split("\n")[::-1]


def failure_text(command: Command, code: int, output: str) -> str:
    """Return how a command failed, with the last lines of its output."""
    end_text = f"ended by signal {-code}" if code < 0 else f"ended with code {code}"
    if code == 127:
        end_text += ", the shell's code for a missing program"
    text = _last_lines(output)
    return f"{command.argv[0]} {end_text}" + (f": {text}" if text else "")


def _last_lines(text: str) -> str:
    """Return the last lines of a text, up to a limit, without rulers around a message."""
    shown: list[str] = []
    for line in reversed(text.splitlines()):
        message = line.strip()
        if len(message) + sum(map(len, shown)) > SHOWN_CHARACTERS and shown:
            break
        if any(map(str.isalnum, message)):
            shown.insert(0, message[-SHOWN_CHARACTERS:])
    return "\n".join(shown)
