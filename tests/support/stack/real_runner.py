"""Runs `aiperf-svc` on a stack as a process that tests can observe, signal and kill. It has its own
stack file, artifacts and state."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.stack.commands import PROJECT, Ended, attempt
from tests.support.stack.expiry import no_expiry
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_stack import PASSPHRASE, Config, StackFile

PREFLIGHT, UP, RUN = "✓ cluster: ", "\nup: ", "profiling: "
RESPONSES = "TTFT p50/p99 "
"""Output of an inference load that has responses; the first lines of `RUN` may have none."""
COLLECT, DESTROY = " s  done", "destroying the stack"
"""Output that marks the start of a stage. A short load may be over before it is observed."""
OUTPUT_S, ENDED_S, SILENT_S = 240.0, 300.0, 30.0


def share_a_pod(benchmark: Config) -> None:
    """Put the five single services into one pod. The stack starts with a fifth of the work, and the
    runner sees no difference."""
    deployment = benchmark["deployment"]
    pods = {name: deployment["pods"][name] for name in ("worker", "record-processor")}
    deployment.update(
        layout="compact", pods={"control": {"cpu": "200m", "memory": "768Mi"}, **pods}
    )


class Runner(StackFile):
    """A user's folder and the commands that run in it."""

    def __init__(self, cluster: Cluster, name: str, folder: Path, *, image: str) -> None:
        self.cluster, self.name, self.folder = cluster, name, folder
        self.program: tuple[str, ...] = (sys.executable, "-m", "aiperf_svc")
        self.place: tuple[str, ...] = ("--context", cluster.context)
        self.artifacts = folder / "artifacts"
        (folder / "stacks").mkdir(parents=True)
        self.file = folder / "stacks" / f"Pulumi.{name}.yaml"
        self.use("bench-smoke")
        self.change(share_a_pod)
        self.state_home = folder / "state" / "aiperf-svc"
        self.environ = {
            **cluster.environ,
            "AIPERF_IMAGE": image,
            "XDG_STATE_HOME": str(folder / "state"),
            "PULUMI_HOME": str(folder / "home"),
            "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
            "PYTHONPATH": str(PROJECT),
        }
        # Like a user without a configured backend.
        self.environ.pop("PULUMI_BACKEND_URL", None)

    def call(self, *arguments: str) -> Ended:
        """Run a command and return how it ended."""
        command = self._command(*arguments)
        return attempt(command, environ=self.environ, folder=self.folder, timeout_s=ENDED_S)

    def gc(self) -> Ended:
        """Run `gc` without names. No stack of another test is expired meanwhile."""
        with no_expiry():
            return self.call("gc", "--yes")

    def run(self, *flags: str) -> Ended:
        """Run the stack to its end."""
        return self.call("run", self.name, "--yes", "--ui", "plain", *flags)

    @contextmanager
    def start(self, *arguments: str) -> Iterator["Command"]:
        """Start a command and yield it. It is ended with the block."""
        process = subprocess.Popen(
            self._command(*arguments),
            env=self.environ,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        with process:
            try:
                yield Command(process, self.folder)
            finally:
                if process.poll() is None:
                    # The test failed or was stopped. The stack must be removed nevertheless.
                    process.send_signal(signal.SIGINT)
                    process.communicate(timeout=ENDED_S)

    def summary(self) -> dict[str, Any]:
        """Return the results of the only run so far."""
        (found,) = self.artifacts.glob("*/profile_export_aiperf.json")
        content: dict[str, Any] = json.loads(found.read_bytes())
        return content

    def _command(self, *arguments: str) -> tuple[str, ...]:
        return (*self.program, *arguments, *self.place)


def in_checkout(runner: Runner) -> None:
    """Turn the runner's folder into a checkout in which plain `pulumi` works."""
    (runner.folder / "Pulumi.yaml").write_bytes((PROJECT / "Pulumi.yaml").read_bytes())
    (runner.folder / "infra").symlink_to(PROJECT / "infra")
    (runner.folder / ".venv").symlink_to(sys.prefix)


def plain_environ(runner: Runner) -> dict[str, str]:
    """Return the environment for plain `pulumi` on the runner's state. The Kubernetes provider
    leaves copies of the kubeconfig in TMPDIR."""
    temporary = runner.folder / "tmp"
    temporary.mkdir(exist_ok=True)
    return {
        "PULUMI_BACKEND_URL": (runner.state_home / "backend").as_uri(),
        **runner.environ,
        "TMPDIR": str(temporary),
        "PATH": f"{Path(sys.executable).parent}:{runner.environ['PATH']}",
    }


class Command:
    """A running command."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self._process, self._folder = process, folder
        self._output = b""
        self._started_mono_s = time.monotonic()

    def wait_for(self, words: str) -> None:
        """Read the output until it contains these words."""
        deadline = time.monotonic() + OUTPUT_S
        assert self._process.stderr is not None
        while words.encode() not in self._output:
            left_s = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._process.stderr], [], [], left_s)
            more = os.read(self._process.stderr.fileno(), 65_536) if ready else b""
            assert more, f"the output never contained {words!r}:\n{self._output.decode()}"
            self._output += more

    def leave(self) -> None:
        """Stop reading the output, like a closed terminal."""
        assert self._process.stderr is not None
        self._process.stderr.close()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the command but not to its children."""
        self._process.send_signal(number)

    def end(self) -> Ended:
        """Wait for the command to end by itself and return how it ended."""
        out, errors = self._process.communicate(timeout=ENDED_S)
        return Ended(
            code=self._process.returncode,
            out=out.decode(),
            errors=(self._output + errors).decode(),
            took_s=time.monotonic() - self._started_mono_s,
        )

    def kill(self) -> None:
        """Kill the command with SIGKILL and wait for its children, which must end by themselves."""
        self.send(signal.SIGKILL)
        self._process.communicate()
        deadline = time.monotonic() + SILENT_S
        for pid in processes_with(self._folder):
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                left_s = max(0.0, deadline - time.monotonic())
                ready, _, _ = select.select([descriptor], [], [], left_s)
            finally:
                os.close(descriptor)
            assert ready, f"process {pid} outlives the command that started it"


def kill_pulumi(folder: Path) -> int:
    """Kill the Pulumi processes of a folder's commands like the OOM killer. Return their number."""
    number = 0
    for pid in processes_with(folder):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text() == "pulumi\n":
                os.kill(pid, signal.SIGKILL)
                number += 1
    return number


def processes_with(folder: Path) -> list[int]:
    """Return the processes whose environment contains the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue  # It has ended, or belongs to another user.
        if str(folder).encode() in environ:
            found.append(int(entry.name))
    return found
