"""Programs of users on a cluster: a project of `aiperf-svc init`, and the component."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.stack.commands import PROJECT, run
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_stack import SHORT_S, Stack

pytestmark = pytest.mark.cluster
EXAMPLES = PROJECT / "examples"


def _use(stack: Stack, example: str) -> None:
    """Replace the project's own program by an example."""
    (stack.folder / "infra").unlink()
    for path in (EXAMPLES / example).iterdir():
        shutil.copy(path, stack.folder)


def _measured(stack: Stack, folder: Path) -> dict[str, Any]:
    """Bring a program up, fetch the results of its benchmark, and take it down."""
    stack.up()
    outputs = stack.outputs()
    if "results" not in outputs:
        outputs["results"] = {"portForward": outputs["portForward"]}
    status, summary = stack.measure(outputs, folder)
    stack.destroy()
    assert (status.state, status.artifact_error) == ("done", "")
    return summary


def test_project_of_init_measures(
    cluster: Cluster, make_stack: Callable[[], Stack], tmp_path: Path
) -> None:
    stack = make_stack()
    command = (sys.executable, "-m", "aiperf_svc", "init", str(tmp_path / "made"))
    run(command, environ=stack.environ, timeout_s=SHORT_S)
    (stack.folder / "infra").unlink()
    for name in ("Pulumi.yaml", "__main__.py"):
        shutil.copy(tmp_path / "made" / name, stack.folder)
    shutil.copy(tmp_path / "made/stacks/Pulumi.bench-smoke.yaml", stack.file)
    assert _measured(stack, tmp_path / "results")["request_count"]["avg"] > 0


def test_component_measures_a_server_of_the_program(
    cluster: Cluster, make_stack: Callable[[], Stack], tmp_path: Path
) -> None:
    stack = make_stack()
    _use(stack, "component")
    stack.init()
    stack.pulumi("config", "set", "-s", stack.name, "server:image", stack.environ["AIPERF_IMAGE"])
    assert _measured(stack, tmp_path / "results")["request_count"]["avg"] > 0
