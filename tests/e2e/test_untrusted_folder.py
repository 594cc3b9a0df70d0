"""Commands in a folder whose files are named like modules import none of them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from aiperf_svc.cli.commands import calibrate
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import RunningMockServer, running

REPOSITORY = Path(__file__).parents[2]
INSTALLED = str(Path(sys.executable).with_name("aiperf-svc"))
NAMES = (
    "aiperf_svc",
    "encodings",
    "json",
    "queue",
    "select",
    "sitecustomize",
    "token",
    "usercustomize",
    "yaml",
)
MARK = "imported"
SMALL = ("--concurrency", "2", "--request-count", "6", "--streaming", "--ui", "none")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        mark = tmp_path / MARK
        (tmp_path / f"{name}.py").write_text(
            f"with open({str(mark)!r}, 'a') as file: file.write('{name} ')\n"
            f"raise SystemExit('{name} was imported')\n"
        )
    return tmp_path


@pytest.fixture(scope="module")
def mock() -> Iterator[RunningMockServer]:
    with running(MockServerConfig(ttft="5ms", tokens=2)) as server:
        yield server


def finished(
    folder: Path, *words: str, program: Sequence[str] = (INSTALLED,), **environ: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*program, *words],
        cwd=folder,
        env=os.environ | {"HOME": str(folder), **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def assert_nothing_was_imported(folder: Path) -> None:
    mark = folder / MARK
    assert not mark.exists(), mark.read_text()


def test_services_import_no_file_of_the_working_folder(
    folder: Path, mock: RunningMockServer
) -> None:
    done = finished(folder, "profile", "-u", mock.url, "-m", "m", *SMALL, AIPERF_FORK="0")
    assert "6 issued = 6 completed" in done.stdout, done.stderr
    assert_nothing_was_imported(folder)


def test_empty_pythonpath_entry_is_not_the_working_folder(
    folder: Path, mock: RunningMockServer
) -> None:
    # Python imports these at startup, before any of our code runs.
    for name in ("aiperf_svc", "encodings", "sitecustomize", "usercustomize"):
        (folder / f"{name}.py").unlink()
    path = f"{os.pathsep}{folder / 'elsewhere'}"
    flags = ("profile", "-u", mock.url, "-m", "m", *SMALL)
    done = finished(folder, *flags, AIPERF_FORK="0", PYTHONPATH=path)
    assert "6 issued = 6 completed" in done.stdout, done.stderr
    assert_nothing_was_imported(folder)


def test_bench_imports_no_file_of_the_working_folder(folder: Path) -> None:
    """The services of `bench` are forks like those of `profile`."""
    done = finished(folder, "bench", "--request-count", "6", "--ui", "none")
    assert "6 issued = 6 completed" in done.stdout, done.stderr
    assert_nothing_was_imported(folder)


def test_mock_server_imports_no_file_of_the_folder(folder: Path) -> None:
    with subprocess.Popen(
        [INSTALLED, "mock-server", "--port", "0", "--json"], cwd=folder, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        assert json.loads(server.stdout.readline())["urls"]
        server.terminate()
    assert_nothing_was_imported(folder)


def test_calibrate_imports_no_file_of_the_folder(
    folder: Path, mock: RunningMockServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    found = calibrate._measure(mock.url, ("--concurrency", "2", "--request-count", "6"))
    assert found["request_count"]["avg"] == 6
    assert_nothing_was_imported(folder)


@pytest.mark.parametrize("command", ["validate", "preview"])
def test_stack_file_imports_no_file_of_its_folder(folder: Path, command: str) -> None:
    (folder / "stacks").mkdir()
    stack = folder / "stacks" / "Pulumi.bench-smoke.yaml"
    stack.write_bytes((REPOSITORY / "stacks" / stack.name).read_bytes())
    done = finished(folder, command, str(stack))
    assert done.returncode == 0, done.stderr
    assert_nothing_was_imported(folder)


def test_module_command_forgets_the_working_folder(folder: Path, mock: RunningMockServer) -> None:
    """Python searches the folder for `aiperf_svc` and for the modules that this search needs."""
    (folder / "aiperf_svc.py").unlink()
    module = (sys.executable, "-m", "aiperf_svc")
    for name in ("encodings", "sitecustomize", "usercustomize", "token"):
        (folder / f"{name}.py").unlink()
    done = finished(folder, "profile", "-u", mock.url, "-m", "m", *SMALL, program=module)
    assert "6 issued = 6 completed" in done.stdout, done.stderr
    assert_nothing_was_imported(folder)
