"""Commands as a user runs them, which end with everything that they started."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[3]
INTERRUPTED_S = 20.0
"""Longest time for a command that was interrupted."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended, and what it said."""

    code: int
    out: str
    errors: str
    took_s: float


def run(
    command: tuple[str, ...],
    *,
    environ: Mapping[str, str],
    timeout_s: float,
    stdin: str | None = None,
    folder: Path = PROJECT,
) -> str:
    """Standard output of a command. Fails with all that it said when it fails or takes too long."""
    ended = attempt(command, environ=environ, timeout_s=timeout_s, stdin=stdin, folder=folder)
    words = f"`{' '.join(command)}`"
    assert ended.code == 0, f"{words}: {ended.code}\n{ended.out}\n{ended.errors}"
    return ended.out


def attempt(
    command: tuple[str, ...],
    *,
    environ: Mapping[str, str],
    timeout_s: float,
    stdin: str | None = None,
    folder: Path = PROJECT,
) -> Ended:
    """How a command ends that may fail; its children end with it if it takes too long."""
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        env=dict(environ),
        cwd=folder,
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(stdin, timeout=timeout_s)
    except BaseException:
        out, errors = _interrupt(process)
        took_s = time.monotonic() - started
        print(f"`{' '.join(command)}` interrupted after {took_s:.0f} s\n{out}\n{errors}")
        raise
    took_s = time.monotonic() - started
    return Ended(code=process.returncode, out=out, errors=errors, took_s=took_s)


def _interrupt(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End a command as a user would, so that it can put its state in order; then whatever of its
    session is left. What it said."""
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(INTERRUPTED_S)
    # Plugins have process groups of their own, and one session with the command.
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            session = int(entry.read_text().rpartition(")")[2].split()[3])
            if session == process.pid:
                os.kill(int(entry.parent.name), signal.SIGKILL)
    return process.communicate()
