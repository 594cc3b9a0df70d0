"""The compiled launcher of servers in Jobs, with real processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiperf_svc.adapters.jobs.index_pod import BUILT, end_of_server, write_server
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.plan.index_pods import LAUNCHER, Server

LIMIT_S = 60.0
PRINTS = """import os, sys, json
print(json.dumps([sys.argv[1:], os.environ.get("ONE"), os.environ.get("KEPT"), os.getcwd()]))
"""
pytestmark = pytest.mark.skipif(not BUILT.is_file(), reason="the launcher is not compiled")


@contextlib.contextmanager
def launch(
    folder: Path, cwd: Path, *command: str, env: dict[str, str] | None = None, grace_s: int = 60
) -> Iterator["subprocess.Popen[str]"]:
    """Run the launcher with a command and terminate it at the end."""
    write_server(folder, Server(command, env or {}))
    with relaunch(folder, cwd, grace_s=grace_s) as process:
        yield process


@contextlib.contextmanager
def relaunch(folder: Path, cwd: Path, *, grace_s: int = 60) -> Iterator["subprocess.Popen[str]"]:
    """Run the launcher on a prepared folder."""
    process = subprocess.Popen(
        [folder / LAUNCHER, folder, str(grace_s)],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "KEPT": "of the container"},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def wait_ended(folder: Path) -> str:
    deadline = time.monotonic() + LIMIT_S
    while not (found := end_of_server(folder)):
        assert time.monotonic() < deadline
    return found


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """Return the launcher's folder and the image's working directory."""
    found = (tmp_path / "launch", tmp_path / "work")
    for each in found:
        each.mkdir()
    return found


def test_server_gets_arguments_and_variables_in_its_directory(places: tuple[Path, Path]) -> None:
    folder, work = places
    arguments = ("a b", "", "$(X) 'é'")
    with launch(
        folder, work, sys.executable, "-c", PRINTS, *arguments, env={"ONE": "1=2 3"}
    ) as run:
        assert run.stdout is not None
        line = run.stdout.readline()
    assert json.loads(line) == [list(arguments), "1=2 3", "of the container", str(work)]


def test_exit_code_is_reported_and_launcher_waits(places: tuple[Path, Path]) -> None:
    with launch(*places, "sh", "-c", "exit 3") as run:
        assert wait_ended(places[0]) == "ended with exit code 3"
        assert run.poll() is None
        run.send_signal(signal.SIGTERM)
        assert run.wait(LIMIT_S) == 0


def test_fatal_signal_is_named(places: tuple[Path, Path]) -> None:
    with launch(*places, "sh", "-c", "kill -9 $$"):
        assert wait_ended(places[0]) == "was ended by signal 9 (Killed)"


def test_missing_program_is_named(places: tuple[Path, Path]) -> None:
    with launch(*places, "no-such-server"):
        found = wait_ended(places[0])
    assert found == "cannot be started: no-such-server: No such file or directory"


def test_restarted_container_is_reported_as_killed(places: tuple[Path, Path]) -> None:
    with launch(*places, "sleep", "60") as run:
        deadline = time.monotonic() + LIMIT_S
        while not (places[0] / "started").exists():
            assert time.monotonic() < deadline
        run.kill()
    with relaunch(*places) as run:
        assert "killed with its container" in wait_ended(places[0])
        assert run.poll() is None


def test_the_end_of_the_pod_ends_the_server(places: tuple[Path, Path]) -> None:
    talks = "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    with launch(*places, "sh", "-c", talks) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "up\n"
        run.send_signal(signal.SIGTERM)
        assert run.wait(LIMIT_S) == 0
        assert run.stdout.readline() == "told\n"
    assert end_of_server(places[0]) == ""


def test_server_that_ignores_sigterm_is_killed(places: tuple[Path, Path]) -> None:
    deaf = (
        "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    )
    with launch(*places, sys.executable, "-c", deaf, grace_s=1) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "up\n"
        run.send_signal(signal.SIGTERM)
        assert run.wait(LIMIT_S) == 0
        assert run.stdout.read() == ""


def test_image_without_the_launcher_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="built without a C compiler"):
        write_server(tmp_path, Server(("x",), {}), launcher=tmp_path / "absent")
