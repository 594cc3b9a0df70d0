"""A full or read-only disk causes one clear error and costs no results.

The command runs in its own mount namespace, where one of its folders is a small file system. It
disappears with the command.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from aiperf_svc.adapters.exports.manifest import TEMPORARY_SUFFIX, is_whole, read_manifest
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import RunningMockServer, running
from tests.support.preparations import Preparation
from tests.support.running_command import FINISHED, Command, artifacts

RunOn = Callable[[Path, str, str], Command]
"""Test folder, folder of the command to mount, and mount options."""
REQUESTS = 2_000
LOAD = ("--concurrency", "10", "--request-count", str(REQUESTS))
DATASET = ("--isl", "20", "--num-dataset-entries", "20")
MOUNT = """
mount -t tmpfs -o "$0" none "$1" && echo && read -r _ && cp -r artifacts ../kept
"""
"""Mounts a small file system on a folder and copies the artifacts at the end."""


@contextmanager
def mounted(program: Sequence[str], folder: Path, name: str, options: str) -> Iterator[Preparation]:
    """Mount a small file system on a subfolder of `folder` for commands with the yielded
    preparation. Their files are copied at the end."""
    for each in ("artifacts", "tmp"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    shell = subprocess.Popen(
        [*program, "sh", "-c", MOUNT, options, name],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "\n"
        kinds = ("mnt",) if os.geteuid() == 0 else ("user", "mnt")
        yield "enter_namespaces", *(f"/proc/{shell.pid}/ns/{kind}" for kind in kinds)
        shell.communicate("\n")
    assert shell.returncode == 0


@pytest.fixture(scope="module")
def own_mounts() -> tuple[str, ...]:
    """Return the program that gives a command its own mounts. Root may do this directly, other
    users in a user namespace."""
    program = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)))
    probe = [*program, "mount", "-t", "tmpfs", "none", "/mnt"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    if done.returncode:
        assert not os.environ.get("CI"), f"CI must be able to mount: {done.stderr}"
        pytest.skip(f"cannot mount in a namespace: {done.stderr.strip()}")
    return program


@pytest.fixture
def mock() -> Iterator[RunningMockServer]:
    with running(MockServerConfig(ttft="1ms", tokens=5, truth=True)) as server:
        yield server


@pytest.fixture
def run_on(mock: RunningMockServer, own_mounts: tuple[str, ...]) -> RunOn:
    """Return a function that runs a command with a small file system on one of its folders and
    copies its artifacts to the test folder."""

    def ended(folder: Path, name: str, options: str) -> Command:
        run = folder / "run"
        with mounted(own_mounts, run, name, options) as preparation:
            command = Command(run, mock.url, *LOAD, *DATASET, preparation=preparation)
            printed = command.finish()
        results = printed["results"]
        assert bool(printed["reason"]) is bool(command.code)
        (folder / "kept").rename(folder / "artifacts")
        assert "Traceback" not in command.errors
        assert results["request_count"]["avg"] == REQUESTS == mock.truth()["requests"]
        accounts = results["aiperf_svc"]["accounts"]
        assert accounts["completed"] == accounts["records"] == accounts["issued"] == REQUESTS
        assert accounts["violations"] == []
        command.assert_nothing_is_left()
        return command

    return ended


def assert_no_half_results(folder: Path) -> None:
    """Check that every file with the name of a result is complete."""
    for path in folder.rglob("*"):
        assert not path.name.endswith(TEMPORARY_SUFFIX)
    inputs, lines = folder / "inputs.json", folder / "profile_export.jsonl"
    if inputs.exists():
        assert len(json.loads(inputs.read_text())["data"]) == 20
    if lines.exists():
        assert lines.read_text().count("\n") == REQUESTS


def test_full_disk_at_start_is_an_error(tmp_path: Path, run_on: RunOn) -> None:
    command = run_on(tmp_path, "artifacts", "size=8k")
    assert command.code == ExitCode.ERROR
    assert "No space left on device; free some space or choose another folder" in command.errors
    assert_no_half_results(artifacts(tmp_path))


def test_disk_that_fills_up_costs_only_jsonl_lines(tmp_path: Path, run_on: RunOn) -> None:
    command = run_on(tmp_path, "artifacts", "size=2m")
    assert command.code == ExitCode.ERROR
    assert "profile_export.jsonl: No space left on device" in command.errors
    found = artifacts(tmp_path)
    assert_no_half_results(found)
    assert not (found / "profile_export.jsonl").exists()
    manifest = read_manifest(found)
    assert {"records.parquet", "report.html", "profile_export_aiperf.json"} <= {
        entry.name for entry in manifest.files
    }
    assert all(is_whole(found / entry.name, entry) for entry in manifest.files)


def test_unwritable_folder_is_refused_before_the_load(
    mock: RunningMockServer, own_mounts: tuple[str, ...], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with mounted(own_mounts, run, "artifacts", "ro") as preparation:
        command = Command(run, mock.url, *LOAD, *DATASET, preparation=preparation)
        command.finish()
    assert command.code is ExitCode.BAD_CONFIG
    assert "Read-only file system; choose another folder (artifacts.dir" in command.errors
    assert "Traceback" not in command.errors
    assert list((tmp_path / "kept").iterdir()) == []
    assert mock.truth()["requests"] == 0


def test_full_disk_for_temporary_files_costs_no_result(short_folder: Path, run_on: RunOn) -> None:
    command = run_on(short_folder, "tmp", "size=200k")
    assert command.code in FINISHED, command.errors
    found = artifacts(short_folder)
    assert_no_half_results(found)
    assert (found / "profile_export.jsonl").exists()
    log = (found / "logs" / "records-manager.log").read_text()
    assert "cannot keep metric records in " in log
    assert "TMPDIR" in log


def test_full_disk_ends_no_trial(
    mock: RunningMockServer, own_mounts: tuple[str, ...], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    flags = ("--concurrency", "4", "--request-count", "200", "--repetitions", "4")
    with mounted(own_mounts, run, "artifacts", "size=700k") as preparation:
        command = Command(run, mock.url, *flags, *DATASET, preparation=preparation)
        trials = command.finish()["results"]["trials"]
    (tmp_path / "kept").rename(tmp_path / "artifacts")
    assert command.code is ExitCode.ERROR
    assert "No space left on device" in command.errors
    assert "Traceback" not in command.errors
    assert [trial["state"] for trial in trials] == ["done"] * 4
    assert {trial["values"]["request_count_avg"] for trial in trials} == {200}
    folders = sorted((artifacts(tmp_path) / "trials").iterdir())
    assert (folders[0] / "profile_export_aiperf.json").exists()
    assert not (folders[-1] / "profile_export_aiperf.json").exists()
    command.assert_nothing_is_left()
