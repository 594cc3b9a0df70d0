"""Values extracted from the output of a command."""

import pytest

from aiperf_svc.workloads.command import WORKLOAD
from aiperf_svc.workloads.gathering import GatheredStep, newest_lines
from tests.support import fake_steps


def test_lines_are_whole_and_newest_first() -> None:
    assert newest_lines("one\ntwo\rthree\nfou") == ["three", "two", "one"]
    assert newest_lines("on") == [""]


def test_failing_reader_fails_only_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("speed")

    monkeypatch.setattr(type(WORKLOAD), "read", fail)
    gathered = GatheredStep(1)
    gathered.add(fake_steps.last_piece())
    finished = gathered.finish(fake_steps.config())
    assert finished.problem == "the reader of command failed: KeyError: 'speed'"
    assert finished.reading is None
