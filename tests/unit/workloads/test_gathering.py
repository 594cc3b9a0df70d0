"""What is taken from the output of a command."""

import msgspec
import pytest

from aiperf_svc.protocol.messages.steps import CommandEnd, RankReport, RankWitness, StepOutput
from aiperf_svc.workloads.command import WORKLOAD
from aiperf_svc.workloads.gathering import GatheredStep, newest_lines
from aiperf_svc.workloads.steps import Command, PlannedStep, Step
from tests.support import fake_steps


def test_lines_are_whole_and_newest_first() -> None:
    assert newest_lines("one\ntwo\rthree\nfou") == ["three", "two", "one"]
    assert newest_lines("on") == [""]


def test_failing_reader_fails_only_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("speed")

    monkeypatch.setattr(type(WORKLOAD), "read", fail)
    step = Step(name="only", commands=(Command(rank=0, argv=("x",)),), timeout_ns=60 * 10**9)
    plan = PlannedStep(number=1, attempt=1, repetition=1, step=step)
    report = RankReport(
        plan=msgspec.json.encode(plan),
        problem="",
        witness=RankWitness(rank=0),
        ends=(CommandEnd(index=0, exit_code=0, started_wall_ns=1, ended_wall_ns=2),),
    )
    gathered = GatheredStep(1)
    gathered.add(
        StepOutput(
            *("run", "rank-0", 1),
            step=1,
            rank=0,
            piece=0,
            command=-1,
            file="",
            data=b"",
            is_last=True,
            report=report,
        )
    )
    finished = gathered.finish(fake_steps.config())
    assert finished.problem == "the reader of command failed: KeyError: 'speed'"
    assert finished.reading is None
