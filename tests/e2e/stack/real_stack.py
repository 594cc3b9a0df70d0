"""A stack made by the Pulumi CLI from the committed files, with a state of its own."""

import asyncio
import contextlib
import json
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from real_cluster import PROJECT, Cluster, run

from aiperf_svc.adapters.results_client import ApiUnavailable, ResultsClient
from aiperf_svc.adapters.run_status import Status

UP_S, DESTROY_S, RUN_S, FORWARD_S, SHORT_S = 240.0, 240.0, 180.0, 20.0, 60.0
POLL_S = 5.0
_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ")


class Stack:
    """A Pulumi project of its own folder: the committed program and stack file, a new name, a new
    state. The checkout itself stays as it is: `stack init` writes into the stack's file."""

    def __init__(self, cluster: Cluster, name: str, folder: Path, *, image: str) -> None:
        self.cluster, self.name, self.folder = cluster, name, folder
        self.took_s: dict[str, float] = {}
        """Time of each Pulumi command, for the report."""
        self.may_exist = False
        """Between the start of `up` and the end of `destroy`."""
        (folder / "stacks").mkdir(parents=True)
        (folder / "state").mkdir()
        shutil.copy(PROJECT / "Pulumi.yaml", folder)
        (folder / "infra").symlink_to(PROJECT / "infra")
        (folder / ".venv").symlink_to(Path(sys.prefix))
        self.file = folder / "stacks" / f"Pulumi.{name}.yaml"
        shutil.copy(PROJECT / "stacks" / "Pulumi.bench-smoke.yaml", self.file)
        self._environ = {
            **cluster.environ,
            "AIPERF_IMAGE": image,
            "AIPERF_CONTEXT": cluster.context,
            "PULUMI_HOME": str(folder / "home"),
            "PULUMI_BACKEND_URL": (folder / "state").as_uri(),
            "PULUMI_CONFIG_PASSPHRASE": "of the test",
            "PYTHONDONTWRITEBYTECODE": "1",
            # The language host starts whatever `python3` it finds first.
            "PATH": f"{Path(sys.executable).parent}:{cluster.environ['PATH']}",
        }

    def pulumi(self, *arguments: str, timeout_s: float = SHORT_S) -> str:
        """Standard output of a Pulumi command."""
        started = time.monotonic()
        command = ("pulumi", *arguments, "--non-interactive", "--color", "never")
        out = run(command, environ=self._environ, folder=self.folder, timeout_s=timeout_s)
        self.took_s[" ".join(arguments[:2])] = round(time.monotonic() - started, 1)
        return out

    def up(self) -> None:
        """Make it."""
        self.pulumi("stack", "init", self.name)
        self.may_exist = True
        self.pulumi("up", "-y", "-s", self.name, timeout_s=UP_S)

    def destroy(self) -> None:
        """Unmake it."""
        self.pulumi("destroy", "-y", "-s", self.name, timeout_s=DESTROY_S)
        self.may_exist = False

    def clean_up(self) -> None:
        """Unmake what a failed test left, also when its last command was killed."""
        if self.may_exist:
            self.pulumi("cancel", "-y", "-s", self.name)
            self.destroy()

    def outputs(self) -> dict[str, Any]:
        """As the CLI shows them to who may see secrets."""
        out = self.pulumi("stack", "output", "-s", self.name, "--json", "--show-secrets")
        found: dict[str, Any] = json.loads(out)
        return found

    def pods(self, namespace: str) -> list[dict[str, Any]]:
        """The stack's pods as the server knows them."""
        return self.cluster.objects("pods", "-n", namespace, "-l", f"aiperf.dev/stack={self.name}")

    def measure(self, outputs: Mapping[str, Any], folder: Path) -> tuple[Status, dict[str, Any]]:
        """Follow the run to its end and fetch all results into `folder`; state and summary."""
        with self._port_forward(outputs["results"]["portForward"]) as url:
            return asyncio.run(_follow_and_fetch(url, outputs["resultsToken"], folder))

    @contextlib.contextmanager
    def _port_forward(self, said: str) -> Iterator[str]:
        """The command that the stack says, on a free port of this machine."""
        *command, port = said.split()
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
                assert found, f"`{said}` said {line!r}"
                yield f"http://127.0.0.1:{found[1]}"
            finally:
                process.terminate()


async def _follow_and_fetch(url: str, token: str, folder: Path) -> tuple[Status, dict[str, Any]]:
    async with asyncio.timeout(RUN_S), ResultsClient(url, token=token) as client:
        status = await client.status()
        while not status.is_settled:
            with contextlib.suppress(ApiUnavailable):
                status = await client.status(after=status.number, timeout_s=POLL_S)
        await client.download_all(folder)
        summary = await client.summary()
        await client.collected()
    return status, summary


def restarts(pods: list[dict[str, Any]]) -> dict[str, int]:
    """Containers that were started again, by pod."""
    counts = {
        pod["metadata"]["name"]: sum(c["restartCount"] for c in pod["status"]["containerStatuses"])
        for pod in pods
    }
    return {name: count for name, count in counts.items() if count}
