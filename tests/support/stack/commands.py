"""Runs commands as a user does. Each command ends together with all its child processes."""

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
"""Time limit for an interrupted command to exit."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Exit code and output of a command."""

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
    """Return the standard output. Fails with the whole output on an error or a timeout."""
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
    """Run a command that may fail. On a timeout, its child processes end with it."""
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
    """Interrupt a command as a user would, so that it can clean up. Then kill the rest of its
    session and return the output."""
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(INTERRUPTED_S)
    # Plugins have their own process groups, but share the command's session.
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            session = int(entry.read_text().rpartition(")")[2].split()[3])
            if session == process.pid:
                os.kill(int(entry.parent.name), signal.SIGKILL)
    return process.communicate()
