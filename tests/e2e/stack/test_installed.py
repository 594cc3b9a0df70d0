"""An installed package outside any checkout: whole runs, a project of `aiperf-svc init`, and
programs that use the component."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.running_command import FINISHED
from tests.support.stack.commands import PROJECT, attempt, run
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import Runner
from tests.support.stack.real_stack import RUN_S, SHORT_S, Stack

pytestmark = pytest.mark.cluster
INSTALL_S = 120.0
PROVIDER_PROGRAM = """\
import pulumi
import yaml

with open("component.yaml") as file:
    properties = yaml.safe_load(file)["resources"]["load"]["properties"]
outputs = ("namespace", "portForward", "resultsToken")
load = pulumi.ComponentResource(
    "aiperf:index:Benchmark", "load", {**properties, **dict.fromkeys(outputs)}, remote=True
)
for name in outputs:
    pulumi.export(name, vars(load)[name])
"""
"""What the language host of YAML asks the engine for: the clusters of tests have that of Python
only. The component comes from the provider on PATH."""


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a virtual environment with the wheel of this checkout. A path file makes the
    dependencies visible. Unlike an editable install, it leads to no checkout."""
    folder = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    wheels, venv = folder / "wheels", folder / "venv"
    build = ("wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(PROJECT))
    run((*pip, *build), environ=os.environ, timeout_s=INSTALL_S, folder=folder)
    (wheel,) = wheels.glob("*.whl")
    make = (sys.executable, "-m", "venv", "--without-pip", str(venv))
    run(make, environ=os.environ, timeout_s=INSTALL_S, folder=folder)
    install = ("--python", str(venv / "bin" / "python"), "install", "--no-deps", str(wheel))
    run((*pip, *install), environ=os.environ, timeout_s=INSTALL_S, folder=folder)
    (packages,) = venv.glob("lib/python*/site-packages")
    (known,) = Path(sys.prefix).glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{known}\n")
    return venv


@pytest.fixture
def stack(make_stack: Callable[[], Stack], venv: Path) -> Stack:
    """Make a stack without this checkout's program. Its Pulumi uses the wheel."""
    made = make_stack()
    (made.folder / "infra").unlink()
    (made.folder / ".venv").unlink()
    (made.folder / ".venv").symlink_to(venv)
    made.environ["PATH"] = f"{venv / 'bin'}:{made.cluster.environ['PATH']}"
    return made


def _use_provider(stack: Stack) -> None:
    """Make the stack the program of the example in YAML."""
    examples = PROJECT / "examples"
    shutil.copy(examples / "component" / "Pulumi.yaml", stack.folder)
    shutil.copy(examples / "component-yaml" / "Pulumi.yaml", stack.folder / "component.yaml")
    (stack.folder / "__main__.py").write_text(PROVIDER_PROGRAM)


def _measured(stack: Stack, folder: Path) -> dict[str, Any]:
    """Bring a program up, fetch the results of its benchmark, and destroy it."""
    stack.up()
    outputs = stack.outputs()
    if "results" not in outputs:
        outputs["results"] = {"portForward": outputs["portForward"]}
    status, summary = stack.measure(outputs, folder)
    stack.destroy()
    assert (status.state, status.artifact_error) == ("done", "")
    return summary


@pytest.mark.gate
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
    printed = json.loads(ended.out)
    assert ended.code in FINISHED, ended.errors
    assert (printed["state"], printed["left"]) == ("done", [])
    assert runner.summary()["request_count"]["avg"] > 0
    assert cluster.left_of(runner.name) == []


def test_installed_program_runs_its_own_stack_file(
    cluster: Cluster, make_runner: Callable[[], Runner], venv: Path
) -> None:
    runner = make_runner()
    del runner.environ["PYTHONPATH"]
    shutil.rmtree(runner.folder / "stacks")
    runner.program, runner.name = (str(venv / "bin" / "aiperf-svc"),), "bench-smoke"
    ended = runner.run("--json")
    printed = json.loads(ended.out)
    assert ended.code in FINISHED, ended.errors
    assert (printed["state"], printed["left"]) == ("done", [])
    assert runner.summary()["request_count"]["avg"] > 0
    assert cluster.left_of(runner.name) == []


def test_project_of_init_measures(stack: Stack, tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    python = str(stack.folder / ".venv" / "bin" / "aiperf-svc")
    run((python, "init"), environ=stack.environ, timeout_s=SHORT_S, folder=made)
    for name in ("Pulumi.yaml", "__main__.py"):
        shutil.copy(made / name, stack.folder)
    shutil.copy(made / "stacks/Pulumi.bench-smoke.yaml", stack.file)
    assert _measured(stack, tmp_path / "results")["request_count"]["avg"] > 0


def test_component_measures_a_server_of_the_program(stack: Stack, tmp_path: Path) -> None:
    for path in (PROJECT / "examples" / "component").iterdir():
        shutil.copy(path, stack.folder)
    stack.init()
    stack.pulumi("config", "set", "-s", stack.name, "server:image", stack.environ["AIPERF_IMAGE"])
    stack.up()
    name, program = f"{stack.name}-load", str(stack.folder / ".venv" / "bin" / "aiperf-svc")
    for words in (("status", name, "--wait"), ("results", name, "--artifact-dir", "results")):
        ended = attempt((program, *words), environ=stack.environ, timeout_s=RUN_S, folder=tmp_path)
        assert ended.code in FINISHED, ended.errors
    stack.destroy()
    (found,) = tmp_path.glob("results/*/profile_export_aiperf.json")
    assert json.loads(found.read_bytes())["request_count"]["avg"] > 0


def test_provider_measures_what_yaml_asks_for(stack: Stack, tmp_path: Path) -> None:
    _use_provider(stack)
    assert _measured(stack, tmp_path / "results")["request_count"]["avg"] > 0


def test_provider_reports_mistakes_without_a_traceback(stack: Stack) -> None:
    _use_provider(stack)
    example = stack.folder / "component.yaml"
    example.write_text(example.read_text().replace("workers:", "worker:"))
    stack.init()
    ended = stack.attempt("preview", "-s", stack.name)
    assert ended.code != 0
    words = ended.out + ended.errors
    # Once while it goes on and once in the end.
    (problem,) = set(re.findall("resource 'load' has a problem: (.*)\n", words))
    assert problem.startswith("load: config: worker: unknown key")
    assert problem.endswith("did you mean workers?")
    # The SDK of the program has a traceback of its own.
    assert "aiperf_svc/stack" not in words
