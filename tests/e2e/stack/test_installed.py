"""A whole run by the program that a user installs, far from any checkout."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.stack.commands import PROJECT, run
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import Runner

pytestmark = pytest.mark.cluster
FINE = (ExitCode.OK, ExitCode.VERDICT_INVALID)
INSTALL_S = 60.0


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A virtual environment with the wheel of this checkout; what it depends on is seen through a
    path file, which leads to packages and, unlike an editable install, to no checkout."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    wheels, venv = tmp_path / "wheels", tmp_path / "venv"
    build = ("wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(PROJECT))
    run((*pip, *build), environ=os.environ, timeout_s=INSTALL_S, folder=tmp_path)
    (wheel,) = wheels.glob("*.whl")
    make = (sys.executable, "-m", "venv", "--without-pip", str(venv))
    run(make, environ=os.environ, timeout_s=INSTALL_S, folder=tmp_path)
    install = ("--python", str(venv / "bin" / "python"), "install", "--no-deps", str(wheel))
    run((*pip, *install), environ=os.environ, timeout_s=INSTALL_S, folder=tmp_path)
    (packages,) = venv.glob("lib/python*/site-packages")
    (known,) = Path(sys.prefix).glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{known}\n")
    return venv


def test_installed_program_runs_a_whole_stack(
    cluster: Cluster, make_runner: Callable[[], Runner], venv: Path
) -> None:
    runner = make_runner()
    del runner.environ["PYTHONPATH"]
    where = (
        "from aiperf_svc.adapters.pulumi.project import find_program; print(find_program().infra)"
    )
    python = (str(venv / "bin" / "python"), "-c", where)
    infra = run(python, environ=runner.environ, timeout_s=INSTALL_S, folder=runner.folder)
    assert Path(infra.strip()).is_relative_to(venv)

    runner.program = (str(venv / "bin" / "aiperf-svc"),)
    ended = runner.run("--json")
    said = json.loads(ended.out)
    assert (ended.code in FINE, said["state"], said["left"]) == (True, "done", []), ended.errors
    assert runner.summary()["request_count"]["avg"] > 0
    assert cluster.left_of(runner.name) == []
