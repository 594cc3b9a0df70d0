"""Runs the clients that benchmarks start as forks."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.truth import client_runs
from tests.support.forked_commands import PROGRAM, ForkedCommand


def forked_client(command: Sequence[str], *, env: Mapping[str, str], **_: Any) -> ForkedCommand:
    """Start a fork that has the methods of `subprocess.Popen` that `run_client` uses."""
    return ForkedCommand(command[len(PROGRAM) :], cwd=Path.cwd(), env=env)


@contextmanager
def forked_clients(start: Any = forked_client) -> Iterator[None]:
    """Start clients as forks inside the block."""
    names = vars(subprocess) | {"Popen": start}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_runs, "subprocess", SimpleNamespace(**names))
        yield
