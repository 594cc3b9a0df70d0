"""Tests in several processes (`tests/processes.py`): none is lost, whatever its process does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SAMPLES = """
import os, pytest
@pytest.fixture(scope="module")
def found(): return []
@pytest.mark.parametrize("n", range(4))
def test_together(found, n): found.append(n); assert len(found) == n + 1
@pytest.mark.parametrize("n", range(40))
def test_short(n): pass
def test_fails(): print("what it said"); assert not 1
def test_never_ends(): os._exit(0)
def test_breaks_off(pytestconfig):
    plugins = pytestconfig.pluginmanager.get_plugins()
    process = next(p for p in plugins if type(p).__name__ == "_Process")
    os.write(process._results.fileno(), bytes([0, 0, 0, 9]) + b"half")
    os._exit(0)
@pytest.mark.alone
def test_alone(): assert os.getppid() == int(os.environ["STARTED_BY"])
"""


def test_each_is_reported_with_what_it_said_and_those_alone_are_run_by_the_first_process(
    tmp_path: Path,
) -> None:
    out = pytest_of(tmp_path, "--processes", "3", "-k", "not never and not off")
    assert "1 failed, 45 passed" in out
    assert "FAILED test_samples.py::test_fails - assert not 1" in out
    assert "what it said" in out


@pytest.mark.parametrize(("name", "other"), [("never_ends", "off"), ("breaks_off", "never")])
def test_one_that_ends_its_process_has_failed_and_so_has_what_that_process_had_taken(
    tmp_path: Path, name: str, other: str
) -> None:
    out = pytest_of(tmp_path, "--processes", "3", "-k", f"not fails and not {other}")
    assert f"FAILED test_samples.py::test_{name} - its process has ended" in out
    assert "1 failed, 45 passed" in out or "2 failed, 44 passed" in out


def test_the_first_that_fails_ends_all_processes(tmp_path: Path) -> None:
    out = pytest_of(tmp_path, "--processes", "3", "-x", "-k", "fails or short")
    assert "1 failed" in out
    assert "stopping after 1 failures" in out


def pytest_of(folder: Path, *words: str) -> str:
    (folder / "test_samples.py").write_text(SAMPLES)
    (folder / "pytest.ini").write_text("[pytest]\n")
    paths = os.pathsep.join(map(str, (TESTS, TESTS.parent)))
    environ = os.environ | {"PYTHONPATH": paths, "STARTED_BY": str(os.getpid())}
    command = [sys.executable, "-m", "pytest", "-p", "tests.processes", "-p", "no:asyncio", *words]
    ended = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    assert ended.returncode == 1, ended
    return ended.stdout
