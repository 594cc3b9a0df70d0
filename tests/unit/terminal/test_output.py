"""Words for people, when there are none any more."""

import os
import sys
from collections.abc import Iterator
from typing import TextIO

import pytest
from rich.console import Console

from aiperf_svc.adapters.terminal import output


@pytest.fixture
def left() -> Iterator[TextIO]:
    """A pipe whose reader has left."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as stream:
        yield stream


def test_closed_stderr_is_ignored(left: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", left)
    with output.ignore_closed_stderr():
        for _ in range(2):
            output.say("destroying the stack")
            Console(stderr=True).print("again")
    assert sys.stderr is left


def test_closed_stderr_raises_without_the_context(
    left: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", left)
    with pytest.raises(BrokenPipeError):
        output.say("destroying the stack")
    with output.ignore_closed_stderr():
        # What the stream still holds would fail once more when it is closed.
        sys.stderr.flush()


def test_open_stderr_gets_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    with output.ignore_closed_stderr():
        output.say("leak check: nothing is left")
    assert capsys.readouterr().err == "leak check: nothing is left\n"
