"""Messages to the user when the terminal is closed."""

import os
import sys
from collections.abc import Iterator
from typing import TextIO

import pytest
from rich.console import Console

from aiperf_svc.adapters.terminal import output


@pytest.fixture
def closed_pipe() -> Iterator[TextIO]:
    """Yield a pipe without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as stream:
        yield stream


def test_closed_stderr_is_ignored(closed_pipe: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", closed_pipe)
    with output.ignore_closed_stderr():
        for _ in range(2):
            output.say("destroying the stack")
            Console(stderr=True).print("again")
    assert sys.stderr is closed_pipe


def test_closed_stderr_raises_without_the_context(
    closed_pipe: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", closed_pipe)
    with pytest.raises(BrokenPipeError):
        output.say("destroying the stack")
    with output.ignore_closed_stderr():
        # Buffered output would fail again when the stream is closed.
        sys.stderr.flush()


def test_open_stderr_gets_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    with output.ignore_closed_stderr():
        output.say("leak check: nothing is left")
    assert capsys.readouterr().err == "leak check: nothing is left\n"
