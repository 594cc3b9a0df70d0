"""Runs the Pulumi CLI as a child process that can be interrupted and that ends with the runner.

Each command runs in its own session, so a Ctrl-C in the terminal reaches only the runner: a second
interrupt makes the CLI forget resources. A process with one thread (`supervisor.py`) runs between
the two and stops the CLI when the runner is gone. So the CLI of a killed runner ends by itself,
with complete state. Its output goes to files: with a pipe, the death of the reader would kill the
CLI before it has saved its state. The Kubernetes provider writes the cluster's key into temporary
files. They are in a folder that is removed after the command.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from aiperf_svc.adapters.host.process_stats import all_stats
from aiperf_svc.adapters.pulumi import supervisor as cli_supervisor
from aiperf_svc.adapters.pulumi.error_text import causes_in, in_few_lines
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.json_objects import Json

POLL_S = 0.1
"""Seconds between two reads of the child's events."""
SHORT_S = 120.0
"""Timeout of commands that only touch the state; a bucket may be slow."""
LOGGED_COMMANDS = ("up", "destroy", "refresh")
"""Commands whose output is kept if they fail. Pulumi hides secrets in it."""
NO_STACK = "no stack named"
INTERRUPT = b"i"
"""Requests an interrupt from the supervisor; any byte would do."""
_LOCK = re.compile(r"created by (?P<user>\S+)@(?P<host>\S+) \(pid (?P<pid>\d+)\) at (?P<at>\S+)")
_CONFLICT = "[409] Conflict: Another update is currently in progress"
"""Message of Pulumi Cloud."""

OnEvent = Callable[[Json], None]
TakeOver = Callable[[Sequence["Lock"]], Awaitable[bool]]


@dataclass(frozen=True, kw_only=True)
class Lock:
    """Lock on a stack's state, with the process that took it."""

    user: str
    host: str
    pid: int
    at: str
    """Time of the lock in RFC 3339."""

    def __str__(self) -> str:
        return f"{self.user}@{self.host}, pid {self.pid}, since {self.at}"


@dataclass(frozen=True, kw_only=True)
class Ended:
    code: int
    out: str
    errors: str

    @property
    def killed_by(self) -> int:
        """Number of the signal that ended it; 0 if it ended by itself."""
        return self.code - 128 if 128 < self.code < 160 else max(0, -self.code)

    @property
    def reason(self) -> str:
        """Reason of the failure, in a few lines."""
        if self.killed_by:
            return f"it was killed by signal {self.killed_by} (9: perhaps for lack of memory)"
        return in_few_lines(causes_in(self.errors) or causes_in(self.out))


class PulumiFailed(EnvironmentProblem):
    """Raised when a command of the CLI ended with an error."""

    def __init__(self, command: str, ended: Ended) -> None:
        super().__init__(f"`pulumi {command}` failed: {ended.reason}")
        self.ended = ended


class PulumiCli:
    """Runs commands for one stack, in the project's folder."""

    def __init__(
        self,
        *,
        folder: Path,
        stack: str,
        environ: Mapping[str, str],
        logs: Path,
        notice: str = "",
        private: Path | None = None,
        held: Sequence[int] = (),
        take_over: TakeOver | None = None,
    ) -> None:
        """`private` is a folder that is removed if the runner is killed. `held` are descriptors of
        locks, which the CLI keeps until it ends. `take_over` decides whether locks that refuse a
        command may be removed."""
        self.folder, self._stack, self._environ = folder, stack, environ
        self._private, self._held, self._take_over = private, tuple(held), take_over
        self.logs = logs
        """Folder for the output of the commands."""
        self.notice = notice
        """Message for the user about the location of the state."""
        self._count = 0

    @property
    def backend(self) -> str:
        """URL of the state; empty for the backend that `pulumi login` chose."""
        return self._environ.get("PULUMI_BACKEND_URL", "")

    # --- state and settings ----------------------------------------------------------------------

    async def add(self) -> None:
        """Add the stack to the state if it is not there."""
        ended = await self._run("stack", "select", "--create", self._stack)
        if ended.code:
            raise PulumiFailed("stack select", ended)

    async def export(self) -> Json:
        """Return the state, with secrets encrypted; empty if there is no such stack."""
        return await self._json("stack", "export", "-s", self._stack)

    async def outputs(self) -> Json:
        """Return the stack's outputs, with secrets in plain text. Empty before the first `up`, or
        if there is no such stack."""
        return await self._json("stack", "output", "-s", self._stack, "--json", "--show-secrets")

    async def set_secret(self, key: str, value: str) -> None:
        """Encrypt a value into the stack's file; the value is never an argument."""
        name = f"aiperf:{key}"
        ended = await self._run("config", "set", "--secret", name, "-s", self._stack, stdin=value)
        if ended.code:
            raise PulumiFailed(f"config set --secret {name}", ended)

    async def values(self, keys: Sequence[str]) -> dict[str, str]:
        """Return values of the stack's file, with secrets in plain text. Pulumi reads them only if
        the state contains the stack, so the stack is added for the time of the call. Raises
        PulumiFailed if a value is missing or cannot be decrypted."""
        is_new = not await self.export()
        await self.add()
        try:
            return {key: await self._value(key) for key in keys}
        finally:
            if is_new:
                await self._forget()

    async def _value(self, key: str) -> str:
        name = f"aiperf:{key}"
        ended = await self._run("config", "get", name, "-s", self._stack)
        if ended.code:
            raise PulumiFailed(f"config get {name}", ended)
        return ended.out.rstrip("\n")

    async def _forget(self) -> None:
        """Remove the stack, which must be empty, from the state. Its stack file stays."""
        ended = await self._run("stack", "rm", "-y", "--preserve-config", "-s", self._stack)
        if ended.code and NO_STACK not in ended.errors:
            raise PulumiFailed("stack rm", ended)

    async def unlock(self) -> None:
        """Remove the lock of a process that no longer runs."""
        ended = await self._run("cancel", "-y", "-s", self._stack)
        if ended.code:
            raise PulumiFailed("cancel", ended)

    # --- the cluster -----------------------------------------------------------------------------

    async def up(self, on_event: OnEvent, *, stop: asyncio.Event, at_once: int = 0) -> Ended:
        """Create the stack, with at most `at_once` operations at the same time; 0 for Pulumi's
        default. If `stop` is set, interrupt the CLI once and wait for it."""
        limit = ("--parallel", str(at_once)) if at_once else ()
        return await self._work("up", ("--skip-preview", *limit), on_event, stop)

    async def destroy(self, on_event: OnEvent, *, stop: asyncio.Event) -> Ended:
        """Delete the stack. A zero exit code does not prove that it is gone. No refresh runs
        before: it would take half of the time, and the deletion notices missing objects."""
        arguments = ("--skip-preview", "--refresh=false")
        return await self._work("destroy", arguments, on_event, stop)

    async def refresh(self, *, clear_pending: bool = False) -> Ended:
        """Update the state from the cluster. With `clear_pending`, remove unfinished creations from
        the state; the caller must have found their objects by label before."""
        more = ("--clear-pending-creates",) if clear_pending else ()
        arguments = ("--skip-preview", *more)
        return await self._work("refresh", arguments, lambda event: None, asyncio.Event())

    # --- processes -------------------------------------------------------------------------------

    async def _json(self, *arguments: str) -> Json:
        ended, command = await self._run(*arguments), " ".join(arguments[:2])
        if ended.code and NO_STACK in ended.errors:
            return {}
        if ended.code:
            raise PulumiFailed(command, ended)
        try:
            content: Json = json.loads(ended.out)
        except ValueError as error:
            why = f"error: its output is not JSON: {error}"
            raise PulumiFailed(command, replace(ended, errors=why)) from error
        return content

    async def _run(self, *arguments: str, stdin: str | None = None) -> Ended:
        try:
            async with asyncio.timeout(SHORT_S):
                return await self._spawn(arguments, stop=asyncio.Event(), stdin=stdin)
        except TimeoutError as error:
            command = " ".join(arguments[:2])
            raise EnvironmentProblem(
                f"`pulumi {command}` has not ended after {SHORT_S:g} s"
            ) from error

    async def _work(
        self, command: str, arguments: tuple[str, ...], on_event: OnEvent, stop: asyncio.Event
    ) -> Ended:
        ended = await self._once(command, arguments, on_event, stop)
        if not ended.code or self._take_over is None:
            return ended
        if await self._take_over(locks_in(f"{ended.errors}\n{ended.out}")):
            await self.unlock()
            ended = await self._once(command, arguments, on_event, stop)
        return ended

    async def _once(
        self, command: str, arguments: tuple[str, ...], on_event: OnEvent, stop: asyncio.Event
    ) -> Ended:
        events = self.folder / f"events-{self._count}.jsonl"
        events.touch(mode=0o600)
        whole = (command, "-y", "-s", self._stack, "--event-log", str(events), *arguments)
        with events.open("rb") as file:
            tail = _Tail(file, on_event)
            try:
                return await self._spawn(whole, stop=stop, on_poll=tail.read_events)
            finally:
                tail.read_events()
                events.unlink()

    async def _spawn(
        self,
        arguments: tuple[str, ...],
        *,
        stop: asyncio.Event,
        stdin: str | None = None,
        on_poll: Callable[[], None] = lambda: None,
    ) -> Ended:
        self._count += 1
        name = f"pulumi-{self._count}-{arguments[0]}"
        out, errors = self.logs / f"{name}.out", self.logs / f"{name}.log"
        command = (executable(self._environ), *arguments, "--non-interactive", "--color", "never")
        temporary = tempfile.mkdtemp(prefix="tmp-", dir=self._private or self.logs)
        listening, control = os.pipe()
        with out.open("wb") as to_out, errors.open("wb") as to_errors:
            out.chmod(0o600)
            try:
                # asyncio would reap its own child.
                child = subprocess.Popen(  # noqa: ASYNC220
                    (*_supervised(listening, temporary, self._private), *command),
                    cwd=self.folder,
                    env=dict(self._environ),
                    stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                    stdout=to_out,
                    stderr=to_errors,
                    start_new_session=True,
                    pass_fds=(listening, *self._held),
                )
            except BaseException:
                os.close(control)
                raise
            finally:
                os.close(listening)
        with _Stop(control) as stopping:
            if child.stdin is not None:
                with contextlib.suppress(BrokenPipeError), child.stdin:
                    child.stdin.write((stdin or "").encode())
            try:
                await _end(child, stop, stopping, on_poll)
            finally:
                if child.poll() is None:
                    # The caller has stopped waiting: timeout, cancellation or error.
                    stopping.request()
                    child.wait(cli_supervisor.STOP_S + SHORT_S)
        if child.returncode < 0:
            # The supervisor was killed, and the kernel has signalled the CLI.
            await _end_session(child.pid)
            shutil.rmtree(temporary, ignore_errors=True)
        ended = Ended(
            code=child.returncode,
            out=out.read_text(errors="replace"),
            errors=errors.read_text(errors="replace"),
        )
        if ended.code and arguments[0] in LOGGED_COMMANDS:
            out.rename(out.with_suffix(".out.log"))
        else:
            # It may hold a token.
            out.unlink()
        if not ended.errors:
            errors.unlink()
        return ended


class _Stop:
    """Pipe to the supervisor. It is closed at the end, because closing it tells the supervisor that
    the runner is gone."""

    def __init__(self, control: int) -> None:
        self._control = control
        self._is_requested = False

    def __enter__(self) -> "_Stop":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._control)

    def request(self) -> None:
        """Ask the supervisor once to interrupt the CLI."""
        if not self._is_requested:
            self._is_requested = True
            with contextlib.suppress(BrokenPipeError):
                os.write(self._control, INTERRUPT)


async def _end(
    child: "subprocess.Popen[bytes]",
    stop: asyncio.Event,
    stopping: _Stop,
    on_poll: Callable[[], None],
) -> None:
    has_ended, pidfd = asyncio.Event(), os.pidfd_open(child.pid)
    loop = asyncio.get_running_loop()
    # The descriptor stays readable, and the event set, until it is closed.
    loop.add_reader(pidfd, has_ended.set)
    try:
        while child.poll() is None:
            on_poll()
            if stop.is_set():
                stopping.request()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(has_ended.wait(), POLL_S)
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


async def _end_session(leader: int) -> None:
    """Wait for a CLI that has lost its supervisor, then kill the rest of its session. Plugins with
    their own process groups belong to that session."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + cli_supervisor.STOP_S
    while members := _session(leader):
        if "pulumi" not in members.values() or loop.time() > give_up_s:
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(POLL_S)


def _session(leader: int) -> dict[int, str]:
    """Return the living processes of a session, with their names."""
    return {e.pid: e.name for e in all_stats() if e.session == leader and e.is_alive}


def _supervised(control: int, temporary: str, private: Path | None) -> tuple[str, ...]:
    script = str(Path(cli_supervisor.__file__))
    # Isolated mode without `site` starts twice as fast.
    return (sys.executable, "-I", "-S", script, str(control), temporary, str(private or ""))


class _Tail:
    """Reads the complete lines of a growing file, each once."""

    def __init__(self, file: BinaryIO, on_event: OnEvent) -> None:
        self._file, self._on_event = file, on_event
        self._part = b""

    def read_events(self) -> None:
        *whole, self._part = (self._part + self._file.read()).split(b"\n")
        for line in whole:
            with contextlib.suppress(ValueError):
                self._on_event(json.loads(line))


def executable(environ: Mapping[str, str]) -> str:
    """Return the path of the CLI. Raises EnvironmentProblem if there is none."""
    found = shutil.which("pulumi", path=environ.get("PATH"))
    if found is None:
        raise EnvironmentProblem(
            "the Pulumi CLI is not on PATH; install it: https://www.pulumi.com/docs/install/"
        )
    return found


def is_locked(ended: Ended) -> bool:
    """Return whether a command was refused because another one uses the state."""
    return bool(locks_in(f"{ended.errors}\n{ended.out}")) or _CONFLICT in ended.errors + ended.out


def locks_in(output: str) -> tuple[Lock, ...]:
    """Return the locks that the output of a refused command names."""
    return tuple(
        Lock(user=each["user"], host=each["host"], pid=int(each["pid"]), at=each["at"])
        for each in _LOCK.finditer(output)
    )
