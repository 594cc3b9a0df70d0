"""From the pieces that couriers send to the reading of a step. Pure."""

from collections.abc import Set
from typing import Any, NamedTuple

import msgspec

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.protocol.step_messages import CommandEnd, RankReport, RankWitness, StepOutput
from aiperf_svc.workloads.base import Command, Output, PlannedStep, Reading, UnreadableOutput
from aiperf_svc.workloads.registry import workload_of

STDOUT, STDERR = "stdout", "stderr"
SHOWN_BYTES = 400
"""Of a failed command's output, in the message about it."""


class FinishedStep(NamedTuple):
    """What became of one attempt at a step."""

    plan: PlannedStep
    problem: str
    reading: Reading | None
    witnesses: tuple[RankWitness, ...]
    ends: tuple[CommandEnd, ...]
    pieces: int


class GatheredStep:
    """The pieces of one attempt."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._files: dict[tuple[int, str], bytearray] = {}
        """By index of the command and name of the file."""
        self._counts: dict[int, int] = {}
        """Rank to its pieces so far."""
        self._wanted: dict[int, int] = {}
        """Rank to how many there are, once its last one is here."""
        self._reports: dict[int, RankReport] = {}

    def add(self, piece: StepOutput) -> None:
        """Take one piece; those of a rank come in order."""
        self._counts[piece.rank] = self._counts.get(piece.rank, 0) + 1
        self._files.setdefault((piece.command, piece.file), bytearray()).extend(piece.data)
        if piece.is_last and piece.report is not None:
            self._wanted[piece.rank] = piece.piece + 1
            self._reports[piece.rank] = piece.report

    def is_complete(self, lost: Set[int]) -> bool:
        """Whether everything is here that will come, `lost` ranks sending nothing more."""
        if not self._reports:
            return False
        return all(
            rank in self._wanted and self._wanted[rank] == self._counts[rank]
            for rank in self._plan.step.ranks
            if rank not in lost
        )

    @property
    def _plan(self) -> PlannedStep:
        report = next(iter(self._reports.values()))
        return msgspec.json.decode(report.plan, type=PlannedStep)

    def finish(self, config: WorkloadConfig[Any]) -> FinishedStep:
        """What became of the attempt."""
        plan = self._plan
        ends = {end.index: end for report in self._reports.values() for end in report.ends}
        problem, reading = self._problem(plan, ends), None
        if plan.step.is_measured and not problem:
            outputs = tuple(
                self._output(index, command, ends[index], is_server=is_server)
                for index, command, is_server in commands_of(plan)
            )
            try:
                reading = workload_of(config).read(config, plan.step, outputs)
            except UnreadableOutput as error:
                problem = str(error)
            else:
                problem = "; ".join(reading.errors)
        return FinishedStep(
            plan=plan,
            problem=problem,
            reading=reading,
            witnesses=tuple(self._reports[rank].witness for rank in sorted(self._reports)),
            ends=tuple(ends[index] for index in sorted(ends)),
            pieces=sum(self._counts.values()),
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
                return f"rank {command.rank}: {self._how_it_ended(index, command, end.exit_code)}"
        return ""

    def _how_it_ended(self, index: int, command: Command, code: int) -> str:
        how = f"ended by signal {-code}" if code < 0 else f"ended with code {code}"
        said = self._file(index, STDERR) or self._file(index, STDOUT)
        text = said.decode("utf-8", "replace").strip()[-SHOWN_BYTES:]
        return f"{command.argv[0]} {how}" + (f": {text}" if text else "")

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
    """Index, command and whether it is a server, of everything that runs in a step: the commands
    first, then the servers."""
    step = plan.step
    both = [(command, False) for command in step.commands] + [(c, True) for c in step.servers]
    return [(index, command, is_server) for index, (command, is_server) in enumerate(both)]
