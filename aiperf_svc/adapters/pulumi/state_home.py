"""The files on this machine that outlive a runner: Pulumi state, and records of runs.

    $XDG_STATE_HOME/aiperf-svc/
        backend/            Pulumi's state, if the user has configured no backend
        runs/<stack>.json   the objects of a run; removed when the leak check has passed
        runs/<stack>.lock   held by the runner that works on the stack
        ephemeral/<stack>/  a whole project with its state and passphrase

A record is written before anything is created, so `gc` can clean up after a killed runner.
"""

import asyncio
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from aiperf_svc.adapters.cluster.ownership import StackInUse
from aiperf_svc.adapters.cluster.teardown.inventory import StackObjects
from aiperf_svc.adapters.host.child_processes import is_alive
from aiperf_svc.adapters.pulumi import supervisor as cli_supervisor
from aiperf_svc.adapters.terminal.output import Say
from aiperf_svc.domain.errors import EnvironmentProblem

POLL_S = 0.2
"""Seconds between two checks of the process that holds a stack."""
KILLED_S = cli_supervisor.STOP_S + 20.0
"""Longest time for which the Pulumi CLI of a killed runner still runs."""


class RunRecord(StackObjects, frozen=True, kw_only=True):
    """Record of one run of a stack, with everything that its removal needs."""

    cluster: str
    """Identity of the cluster."""
    kubeconfig: str | None
    context: str | None
    backend: str
    """URL of the state's backend; empty for the backend that `pulumi login` chose."""
    is_ephemeral: bool
    artifacts: str = ""
    """Folder for the results; empty if the run has none."""
    expires: str = ""
    """Time at which the stack removes itself; empty: unknown."""


class StateHome:
    """The state folders of this machine. Each is created when it is first needed."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        configured = environ.get("XDG_STATE_HOME")
        base = Path(configured) if configured else Path.home() / ".local" / "state"
        self.folder = base / "aiperf-svc"

    @property
    def backend(self) -> Path:
        """Folder of the default backend, made if needed."""
        return self._folder("backend")

    def ephemeral(self, stack: str) -> Path:
        """Folder of an ephemeral stack's project."""
        return self._folder("ephemeral") / stack

    def ephemeral_stacks(self) -> tuple[str, ...]:
        return tuple(sorted(path.name for path in (self.folder / "ephemeral").glob("*")))

    def forget_ephemeral(self, stack: str) -> None:
        """Remove the folder of an ephemeral stack, with its state and passphrase."""
        shutil.rmtree(self.ephemeral(stack), ignore_errors=True)
        # The name is not used again, so no process waits for this lock.
        self._lock(stack).unlink(missing_ok=True)

    # --- runs ------------------------------------------------------------------------------------

    def save(self, record: RunRecord) -> None:
        """Write or replace the record of a stack's run."""
        path = self.record_file(record.stack)
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(record))
        part.replace(path)

    def load(self, stack: str) -> RunRecord | None:
        """Read the record of a stack's run; None if there is none."""
        try:
            return msgspec.json.decode(self.record_file(stack).read_bytes(), type=RunRecord)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def record_file(self, stack: str) -> Path:
        """Return the file with the record of a stack's run."""
        return self._folder("runs") / f"{stack}.json"

    def forget(self, stack: str) -> None:
        """Delete the record of a stack that was removed completely."""
        self.record_file(stack).unlink(missing_ok=True)

    def records(self) -> tuple[RunRecord, ...]:
        """Return the records of all runs that have not been removed."""
        names = sorted(path.stem for path in (self.folder / "runs").glob("*.json"))
        return tuple(record for name in names if (record := self.load(name)))

    @contextmanager
    def hold(self, stack: str) -> Iterator[int]:
        """Lock the stack against other runners of this user. Yields the descriptor of the lock,
        which lasts as long as any process has inherited it.

        Raises StackInUse if another runner holds it.
        """
        with self._lock(stack).open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                raise StackInUse(
                    f"stack {stack}: process {file.read().strip() or '?'} is working on it; wait "
                    "for it, or end it"
                ) from error
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            try:
                yield file.fileno()
            finally:
                file.truncate(0)

    async def wait_for_killed(
        self, stack: str, say: Say, *, is_alive: Callable[[int], bool] = is_alive
    ) -> None:
        """Wait for the Pulumi CLI of a killed runner, which ends by itself and holds the stack
        until then. Returns at once if no process holds the stack, or a live runner does."""
        give_up_mono_s, has_said = time.monotonic() + KILLED_S, False
        while (holder := self.holder(stack)).isdecimal() and not is_alive(int(holder)):
            if not has_said:
                say(f"stack {stack}: waiting for the Pulumi process of a killed run ({holder})")
                has_said = True
            if time.monotonic() > give_up_mono_s:
                return
            await asyncio.sleep(POLL_S)

    def holder(self, stack: str) -> str:
        """Return the number of the process that holds the stack; empty if none does."""
        path = self._lock(stack)
        if not path.exists():
            return ""
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return file.read().strip() or "?"
        return ""

    def _lock(self, stack: str) -> Path:
        return self._folder("runs") / f"{stack}.lock"

    def _folder(self, name: str) -> Path:
        folder = self.folder / name
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentProblem(
                f"cannot create {folder}: {error.strerror}; set XDG_STATE_HOME to another folder"
            ) from error
        return folder
