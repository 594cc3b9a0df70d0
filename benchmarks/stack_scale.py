"""Measures how long the stack of 100,000 users takes to start and to be removed, and a larger one.
The pods run on fake nodes.

    tests/cluster/up && eval "$(tests/cluster/env)"
    python -m benchmarks.stack_scale [--pods 300,2000] [--json]

Renders stacks/Pulumi.bench-100k.yaml with enough workers and record processors for this number of
pods on fake nodes (tests/cluster/kwok-up), with the real Pulumi CLI, its Kubernetes provider and
the API server of the kubeconfig. Fake nodes report pods as running without starting them, so
everything except containers is measured. A preview of bench-smoke gives the minimum time of Pulumi
and its Python program.

Prints the seconds of `preview`, `up`, an unchanged `up`, `destroy` and the leak check, and the
number of leftovers. The stack and the fake nodes are removed even on failure. Exits with 6 if
anything was left.
"""

import argparse
import asyncio
import json
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from aiperf_svc.adapters.cluster.api.connection import connect
from aiperf_svc.adapters.cluster.teardown.inventory import StackObjects
from aiperf_svc.adapters.cluster.teardown.leaks import LeakReport, find_left, wait_until_gone
from aiperf_svc.adapters.cluster.teardown.removal import remove_by_label
from aiperf_svc.domain.exit_codes import ExitCode

ROOT = Path(__file__).parents[1]
CLUSTER = ROOT / "tests" / "cluster"
FAKE_NODE = "aiperf.dev/fake-node"
SINGLE_PODS = 6
"""The five single services and the deadline pod. The target is not part of the stack."""
NODES = 40
"""Number of fake nodes, each with 64 CPUs and room for 110 pods."""
COMMAND_S, GONE_S = 900.0, 300.0
"""Time limits for a Pulumi command, and for the cluster to complete a deletion."""
MIN_PODS = SINGLE_PODS + 2


class Measured(NamedTuple):
    """Seconds of each step for one size."""

    pods: int
    objects: int
    """Objects of the running stack in the cluster."""
    preview_s: float
    up_s: float
    unchanged_up_s: float
    leak_check_up_s: float
    """With all objects present, the slowest case."""
    destroy_s: float
    leak_check_s: float
    """With no object left."""
    left: int


ROWS = {
    "preview": "preview_s",
    "up": "up_s",
    "up again, nothing changed": "unchanged_up_s",
    "leak check while it is up": "leak_check_up_s",
    "destroy": "destroy_s",
    "leak check afterwards": "leak_check_s",
}


class CommandFailed(RuntimeError):
    """A Pulumi command failed or timed out."""


class Project:
    """A stack with its own folder and state."""

    def __init__(self, folder: Path, name: str, content: Mapping[str, Any]) -> None:
        self.name, self._folder = name, folder
        for sub in ("stacks", "state"):
            (folder / sub).mkdir(parents=True)
        shutil.copy(ROOT / "Pulumi.yaml", folder)
        (folder / "infra").symlink_to(ROOT / "infra")
        (folder / ".venv").symlink_to(sys.prefix)
        file = folder / "stacks" / f"Pulumi.{name}.yaml"
        file.write_text(yaml.safe_dump(content, sort_keys=False))
        self._environ = {
            **os.environ,
            "PULUMI_HOME": str(folder / "home"),
            "PULUMI_BACKEND_URL": (folder / "state").as_uri(),
            "PULUMI_CONFIG_PASSPHRASE": "of the benchmark",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PYTHONDONTWRITEBYTECODE": "1",
            # The language host starts the first `python3` on PATH.
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        self.pulumi("stack", "init", name)

    def pulumi(self, *arguments: str) -> tuple[float, str]:
        """Run a command and return its seconds and output. Raises CommandFailed."""
        started = time.monotonic()
        process = subprocess.Popen(
            ("pulumi", *arguments, "--non-interactive", "--color", "never"),
            env=self._environ,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, errors = process.communicate(timeout=COMMAND_S)
        except BaseException as error:
            # Plugins share its session. A single SIGINT lets it finish what it has begun.
            os.killpg(process.pid, signal.SIGINT)
            out, errors = process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise CommandFailed(f"pulumi {arguments[0]}: {COMMAND_S:g} s\n{out}") from error
            raise
        if process.returncode:
            raise CommandFailed(f"pulumi {arguments[0]}: {process.returncode}\n{out}\n{errors}")
        return time.monotonic() - started, out


def stack_of(pods: int) -> dict[str, Any]:
    """Return bench-100k with this number of pods on fake nodes."""
    content: dict[str, Any] = yaml.safe_load((ROOT / "stacks/Pulumi.bench-100k.yaml").read_text())
    benchmark = content["config"]["aiperf:benchmark"]
    replicas = pods - SINGLE_PODS
    processors = math.ceil(replicas / 5)
    workers = replicas - processors
    benchmark["workers"] = {"min": workers, "max": workers, "record_processors": processors}
    benchmark["deployment"]["placement"] = {
        "node_selector": {FAKE_NODE: "true"},
        "tolerations": [{"key": FAKE_NODE}],
    }
    return content


def preview_smoke(folder: Path) -> float:
    """Return the seconds of a preview of the smallest stack."""
    content = yaml.safe_load((ROOT / "stacks/Pulumi.bench-smoke.yaml").read_text())
    project = Project(folder, "scale-smoke", content)
    return project.pulumi("preview", "-s", project.name)[0]


def measure(pods: int, folder: Path) -> Measured:
    """Measure one size from start to removal. Raises CommandFailed."""
    project = Project(folder, f"scale-{pods}-{secrets.token_hex(3)}", stack_of(pods))
    stack = ("-s", project.name)
    preview_s, _ = project.pulumi("preview", *stack)
    try:
        up_s, _ = project.pulumi("up", "--yes", "--skip-preview", *stack)
        outputs = json.loads(project.pulumi("stack", "output", *stack, "--json")[1])
        assert outputs["pods"] == pods, f"the plan has {outputs['pods']} pods instead of {pods}"
        unchanged = ("--yes", "--skip-preview", "--expect-no-changes")
        same_s, _ = project.pulumi("up", *unchanged, *stack)
        full_s, full = asyncio.run(_check_leaks(project.name, outputs["namespace"], is_gone=False))
        destroy_s, _ = project.pulumi("destroy", "--yes", "--skip-preview", *stack)
        check_s, rest = asyncio.run(_check_leaks(project.name, outputs["namespace"], is_gone=True))
    except BaseException:
        asyncio.run(_remove(project.name))
        raise
    return Measured(
        pods, len(full.left), preview_s, up_s, same_s, full_s, destroy_s, check_s, len(rest.left)
    )


async def _check_leaks(stack: str, namespace: str, *, is_gone: bool) -> tuple[float, LeakReport]:
    """Run the leak check of every run. Return its seconds and its report."""
    wanted = StackObjects(stack=stack, namespace=namespace)
    async with connect() as cluster:
        started = time.monotonic()
        if is_gone:
            report = await wait_until_gone(cluster, wanted, timeout_s=GONE_S)
        else:
            report = await find_left(cluster, wanted)
        return time.monotonic() - started, report


async def _remove(stack: str) -> None:
    """Remove by label what a failed command has left."""
    async with connect() as cluster:
        await remove_by_label(cluster, StackObjects(stack=stack))
    _, report = await _check_leaks(stack, "", is_gone=True)
    print(f"{stack}: removed, {len(report.left)} objects left", file=sys.stderr)


@contextmanager
def fake_nodes() -> Iterator[None]:
    """Run fake nodes inside the block."""
    try:
        subprocess.run([CLUSTER / "kwok-up", str(NODES)], check=True, stdout=sys.stderr)
        yield
    finally:
        subprocess.run([CLUSTER / "kwok-down"], check=True, stdout=sys.stderr)


def table(found: list[Measured], smoke_s: float) -> str:
    """Return the results as a table for a terminal."""
    rows = [
        ("pods", [f"{each.pods:,}" for each in found]),
        ("objects of the stack", [f"{each.objects:,}" for each in found]),
        *((name, [f"{getattr(each, key):.1f} s" for each in found]) for name, key in ROWS.items()),
        ("left", [str(each.left) for each in found]),
        ("preview of bench-smoke", [f"{smoke_s:.1f} s"]),
    ]
    return "\n".join(f"{name:<28}" + "".join(f"{value:>12}" for value in row) for name, row in rows)


def main() -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description="how long stacks of many pods take")
    parser.add_argument("--pods", default="300,2000", help="sizes, separated by commas")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    try:
        sizes = [int(size) for size in options.pods.split(",")]
    except ValueError:
        parser.error(f"--pods: {options.pods!r}: expected numbers such as 300,2000")
    if min(sizes) < MIN_PODS:
        parser.error(f"--pods: {min(sizes)}: a stack has at least {MIN_PODS}")
    try:
        with fake_nodes(), tempfile.TemporaryDirectory() as folder:
            smoke_s = preview_smoke(Path(folder) / "smoke")
            found = [measure(size, Path(folder) / str(size)) for size in sizes]
    except (CommandFailed, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return int(ExitCode.ERROR)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    if options.json:
        print(json.dumps({"preview_smoke_s": smoke_s, "sizes": [each._asdict() for each in found]}))
    else:
        print(table(found, smoke_s))
    return int(ExitCode.LEAKED if any(each.left for each in found) else ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
