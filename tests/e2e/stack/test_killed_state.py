"""Processes are killed while the Pulumi CLI writes its state. The next runner recovers without
force. A real CLI runs a program that creates nothing in a cluster, so that many moments can be
tried (AIPERF_STATE_KILLS)."""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.stack.commands import PROJECT
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import processes_with

pytestmark = pytest.mark.cluster

KILLS = int(os.environ.get("AIPERF_STATE_KILLS", "9"))
RUN_S, SILENT_S = 120.0, 30.0
PROGRAM = """
import pulumi
for number in range(12):
    pulumi.ComponentResource("test:index:Part", f"part-{number}")
pulumi.export("parts", 12)
"""
RUNNER = """
import asyncio, os, sys
from pathlib import Path
from aiperf_svc.adapters.pulumi import project
from aiperf_svc.adapters.pulumi.state_home import StateHome
from aiperf_svc.adapters.terminal import output
from aiperf_svc.config.yaml_files import yaml_text
from aiperf_svc.runner.stack import request

def make_project(folder, *, stack, settings):
    (folder / "stacks").mkdir(parents=True)
    runtime = {"name": "python", "options": {"virtualenv": sys.prefix}}
    (folder / "Pulumi.yaml").write_text(yaml_text(
        {"name": "aiperf", "runtime": runtime, "main": os.environ["PROGRAM"],
         "stackConfigDir": "stacks"}))
    project.write_stack_file(folder, stack=stack, settings=settings)

project.make_project = make_project

async def main():
    home = StateHome()
    await home.wait_for_killed("s", output.say)
    opened = request.open_project
    with home.hold("s") as held, opened("s", None, os.environ, held=held) as cli:
        print("selecting", flush=True)
        await cli.add()
        print("setting", flush=True)
        await cli.set_secret("key", "value")
        for command in (cli.up, cli.destroy):
            print(command.__name__, flush=True)
            ended = await command(lambda event: None, stop=asyncio.Event())
            if ended.code:
                sys.exit(f"{command.__name__}: {ended.errors} {ended.out}")

asyncio.run(main())
print("done", flush=True)
"""
STAGES = ("selecting", "setting", "up", "destroy")
VICTIMS = ("runner", "pulumi", "all")


def start_runner(folder: Path, environ: Mapping[str, str]) -> subprocess.Popen[str]:
    with (folder / "stderr").open("w") as stderr:
        return subprocess.Popen(
            (sys.executable, "-c", RUNNER),
            env=dict(environ),
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )


def kill(runner: subprocess.Popen[str], victim: str, folder: Path) -> None:
    """Kill with SIGKILL, like `kill -9` or the OOM killer."""
    if victim == "runner":
        runner.kill()
        return
    found = processes_with(folder)
    names = {pid: Path(f"/proc/{pid}/comm") for pid in found}
    for pid, comm in names.items():
        try:
            if victim == "all" or comm.read_text() == "pulumi\n":
                os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            continue


def ended_all(folder: Path) -> bool:
    """Return whether every process of the test ends by itself in time."""
    deadline = time.monotonic() + SILENT_S
    while pids := processes_with(folder):
        for pid in pids:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                if not select.select([descriptor], [], [], deadline - time.monotonic())[0]:
                    return False
            finally:
                os.close(descriptor)
    return True


def test_next_runner_needs_no_force_after_a_kill(
    cluster: Cluster, tmp_path: Path, temporary: Path
) -> None:
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "__main__.py").write_text(PROGRAM)
    environ = {
        **cluster.environ,
        "PROGRAM": str(tmp_path / "program"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PULUMI_HOME": str(tmp_path / "home"),
        "PULUMI_CONFIG_PASSPHRASE": "of the test",
        "TMPDIR": str(temporary),
        "PYTHONPATH": str(PROJECT),
    }
    environ.pop("PULUMI_BACKEND_URL", None)
    chosen, seen = random.Random(0), Counter[str]()
    for number in range(KILLS):
        stage, victim = STAGES[number % 4], VICTIMS[number % 3]
        after_s = chosen.uniform(0.0, 1.5)
        with start_runner(tmp_path, environ) as runner:
            assert runner.stdout is not None
            assert any(line == f"{stage}\n" for line in runner.stdout)
            # The kill time is what the test varies, so there is no condition to wait for.
            select.select([], [], [], after_s)
            kill(runner, victim, tmp_path)
            runner.communicate(timeout=RUN_S)
        moment = f"kill {number} of {victim}, {after_s * 1000:.0f} ms after {stage!r}"
        assert victim != "runner" or ended_all(tmp_path), f"{moment}: processes are still running"
        with start_runner(tmp_path, environ) as runner:
            out, _ = runner.communicate(timeout=RUN_S)
        errors = (tmp_path / "stderr").read_text()
        assert out.endswith("done\n"), f"{moment}: {errors}"
        seen.update(
            word
            for word in ("removing the lock", "incomplete", "waiting for the Pulumi")
            if word in errors
        )
        assert ended_all(tmp_path), f"{moment}: processes are still running"
        assert list(temporary.iterdir()) == [], moment
    print(json.dumps({"kills": KILLS, **seen}))
