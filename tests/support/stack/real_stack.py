"""A stack that the Pulumi CLI creates from the committed files, with its own state."""

import asyncio
import contextlib
import functools
import json
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import yaml

from aiperf_svc.adapters.results_api.client import ResultsClient
from aiperf_svc.adapters.results_api.run_api import ApiUnavailable
from aiperf_svc.adapters.results_api.status import Status
from tests.support.fake_results import as_json
from tests.support.stack.commands import PROJECT, Ended, attempt
from tests.support.stack.real_cluster import Cluster

UP_S, DESTROY_S, RUN_S, FORWARD_S, SHORT_S = 240.0, 240.0, 180.0, 20.0, 60.0
POLL_S = 5.0
PASSPHRASE = "of the test"
_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ")

Config = dict[str, Any]
T = TypeVar("T")


class StackFile:
    """The file of a stack under test. It starts as a copy of a committed one."""

    file: Path

    def use(self, committed: str) -> None:
        """Copy a committed stack file."""
        shutil.copy(PROJECT / "stacks" / f"Pulumi.{committed}.yaml", self.file)

    def change(self, change: Callable[[Config], object]) -> None:
        """Change the benchmark in the file."""
        content = yaml.safe_load(self.file.read_text())
        change(content["config"]["aiperf:benchmark"])
        self.file.write_text(yaml.safe_dump(content, sort_keys=False))


class Stack(StackFile):
    """A Pulumi project in its own folder: the committed program and stack file, a new name and a
    new state. The checkout itself does not change, because `stack init` writes to the stack's
    file."""

    def __init__(self, cluster: Cluster, name: str, folder: Path, *, image: str) -> None:
        self.cluster, self.name, self.folder = cluster, name, folder
        self.took_s: dict[str, float] = {}
        """Duration of the last Pulumi command of each kind, for the report."""
        self.may_exist = False
        """Time between the start of `up` and the end of `destroy`."""
        self.shortcuts: tuple[str, ...] = ("--skip-preview",)
        """Flags of `up` and `destroy`. A preview would double their duration."""
        self._is_known = False
        (folder / "stacks").mkdir(parents=True)
        self.state = folder / "state"
        self.state.mkdir()
        (folder / "tmp").mkdir()
        shutil.copy(PROJECT / "Pulumi.yaml", folder)
        (folder / "infra").symlink_to(PROJECT / "infra")
        (folder / ".venv").symlink_to(Path(sys.prefix))
        self.file = folder / "stacks" / f"Pulumi.{name}.yaml"
        self.use("bench-smoke")
        self.environ = {
            **cluster.environ,
            "AIPERF_IMAGE": image,
            "AIPERF_CONTEXT": cluster.context,
            "PULUMI_HOME": str(folder / "home"),
            "PULUMI_BACKEND_URL": self.state.as_uri(),
            "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
            # The Kubernetes provider writes a kubeconfig here.
            "TMPDIR": str(folder / "tmp"),
            "PYTHONDONTWRITEBYTECODE": "1",
            # The language host starts the first `python3` on PATH.
            "PATH": f"{Path(sys.executable).parent}:{cluster.environ['PATH']}",
        }

    # --- Pulumi ----------------------------------------------------------------------------------

    def attempt(self, *arguments: str, timeout_s: float = SHORT_S) -> Ended:
        """Run a Pulumi command that may fail and return how it ended."""
        command = ("pulumi", *arguments, "--non-interactive", "--color", "never")
        ended = attempt(command, environ=self.environ, folder=self.folder, timeout_s=timeout_s)
        self.took_s[arguments[0]] = round(ended.took_s, 1)
        return ended

    def pulumi(self, *arguments: str, timeout_s: float = SHORT_S) -> str:
        """Run a Pulumi command and return its standard output."""
        ended = self.attempt(*arguments, timeout_s=timeout_s)
        words = f"`pulumi {' '.join(arguments)}`"
        assert ended.code == 0, f"{words}: {ended.code}\n{ended.out}\n{ended.errors}"
        return ended.out

    def init(self) -> None:
        """Create the stack in its state once."""
        if not self._is_known:
            self.pulumi("stack", "init", self.name)
            self._is_known = True

    def up(self, *flags: str) -> str:
        """Create or update the stack and return Pulumi's output."""
        ended = self.try_up(*flags)
        assert ended.code == 0, f"`pulumi up`: {ended.code}\n{ended.out}\n{ended.errors}"
        return ended.out

    def try_up(self, *flags: str) -> Ended:
        """Run an `up` that may fail and return how it ended."""
        self.init()
        self.may_exist = True
        return self.attempt("up", "-y", "-s", self.name, *self.shortcuts, *flags, timeout_s=UP_S)

    def destroy(self) -> None:
        """Destroy the stack."""
        self.pulumi("destroy", "-y", "-s", self.name, *self.shortcuts, timeout_s=DESTROY_S)
        self.may_exist = False

    def clean_up(self) -> None:
        """Destroy what a failed test left, even if its last command was killed."""
        if self.may_exist:
            self.pulumi("cancel", "-y", "-s", self.name)
            self.destroy()

    def outputs(self) -> dict[str, Any]:
        """Return the outputs with secrets in plain text."""
        out = self.pulumi("stack", "output", "-s", self.name, "--json", "--show-secrets")
        found: dict[str, Any] = json.loads(out)
        return found

    # --- its objects -----------------------------------------------------------------------------

    def pods(self, namespace: str, component: str = "") -> list[dict[str, Any]]:
        """Return the stack's pods from the server."""
        label = f"aiperf.dev/stack={self.name}"
        label += f",app.kubernetes.io/component={component}" if component else ""
        return self.cluster.objects("pods", "-n", namespace, "-l", label)

    # --- its run ---------------------------------------------------------------------------------

    def measure(self, outputs: Mapping[str, Any], folder: Path) -> tuple[Status, dict[str, Any]]:
        """Follow the run, fetch all results into `folder`, and return status and summary."""
        self.follow(outputs, lambda status: status.is_settled)
        return self._query(outputs, functools.partial(_fetch, folder=folder))

    def follow(self, outputs: Mapping[str, Any], until: Callable[[Status], bool]) -> Status:
        """Return the first status that satisfies `until`."""
        return self._query(outputs, functools.partial(_follow, until=until))

    def _query(self, outputs: Mapping[str, Any], ask: Callable[[ResultsClient], Awaitable[T]]) -> T:
        """Query the results API. Reconnects when a port-forward breaks, which happens regularly."""

        async def once(url: str) -> T:
            async with (
                asyncio.timeout(left_s),
                ResultsClient(url, token=outputs["resultsToken"]) as client,
            ):
                return await ask(client)

        deadline = time.monotonic() + RUN_S
        while (left_s := deadline - time.monotonic()) > 0:
            with contextlib.suppress(ApiUnavailable), self.port_forward(outputs) as url:
                return asyncio.run(once(url))
        raise AssertionError(f"{self.name}: no response of the results API within {RUN_S:g} s")

    @contextlib.contextmanager
    def port_forward(self, outputs: Mapping[str, Any]) -> Iterator[str]:
        """Run the port-forward command from the stack's outputs on a free local port."""
        command_line = outputs["results"]["portForward"]
        *command, port = command_line.split()
        where = ("--context", self.cluster.context, "--address", "127.0.0.1")
        with subprocess.Popen(
            (*command, f":{port}", *where),
            env=dict(self.cluster.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                ready, _, _ = select.select([process.stdout], [], [], FORWARD_S)
                line = process.stdout.readline() if ready else "nothing"
                found = _FORWARDING.match(line)
                assert found, f"`{command_line}` printed {line!r}"
                yield f"http://127.0.0.1:{found[1]}"
            finally:
                process.terminate()


async def _follow(client: ResultsClient, *, until: Callable[[Status], bool]) -> Status:
    status = await client.status()
    while not until(status):
        status = await client.status(after=status.number, timeout_s=POLL_S)
    return status


async def _fetch(client: ResultsClient, *, folder: Path) -> tuple[Status, dict[str, Any]]:
    status = await client.status()
    await client.download_all(folder)
    summary = as_json(await client.results())
    await client.collected()
    return status, summary


def shrink(benchmark: Config) -> None:
    """Request few resources, so that several stacks fit on two cores."""
    deployment = benchmark["deployment"]
    for pod in (*deployment["pods"].values(), deployment["target"]):
        pod["cpu"] = "20m"


def is_under_load(status: Status) -> bool:
    """Return whether the measurement has begun and responses arrive."""
    return status.phase == "profiling" and status.completed > 0


def run_all(*actions: Callable[[], object]) -> None:
    """Run these actions concurrently; they mostly wait. Raises the first error at the end."""
    with ThreadPoolExecutor(len(actions)) as pool:
        doing = [pool.submit(action) for action in actions]
    for each in doing:
        each.result()


def restarts(pods: list[dict[str, Any]]) -> dict[str, int]:
    """Return the number of container restarts by pod."""
    counts = {
        pod["metadata"]["name"]: sum(c["restartCount"] for c in pod["status"]["containerStatuses"])
        for pod in pods
    }
    return {name: count for name, count in counts.items() if count}
