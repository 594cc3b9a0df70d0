"""The workflow for a forge's CI, with a shell in place of the forge."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from aiperf_svc.domain.exit_codes import ExitCode

PAGES = Path(__file__).parents[2] / "docs" / "ci"
SCRIPT = PAGES / "benchmark.sh"


@pytest.fixture
def forge(tmp_path: Path) -> Path:
    """The place of a job: a stack file, and a command that posts comments to a file."""
    (tmp_path / "stacks").mkdir()
    set_delay(tmp_path, "150ms")
    (tmp_path / "post").write_text('#!/bin/sh\ncat "$1" >> comments.md\n')
    (tmp_path / "post").chmod(0o755)
    return tmp_path


def set_delay(forge: Path, ttft: str) -> None:
    benchmark = {
        "name": "nightly",
        "endpoint": {"url": "http://target", "model": "mock-model", "streaming": True},
        "load": {"duration": "1s", "concurrency": 1},
        "dataset": {"entries": 10, "input_tokens": {"mean": 32}},
        "experiment": {"repetitions": 3},
        "deployment": {
            "target": {"kind": "mock", "args": ["--ttft", ttft, "--itl", "20ms", "--tokens", "3"]}
        },
    }
    content = {"config": {"aiperf:benchmark": benchmark}}
    (forge / "stacks" / "Pulumi.nightly.yaml").write_text(yaml.safe_dump(content))


def step(forge: Path, name: str) -> int:
    """Run one step as a job does; its exit code."""
    environ = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "STACK": "nightly",
        "RUNS": "runs",
        "RUN_FLAGS": "--local --ui none",
        "COMMENT": "./post",
    }
    done = subprocess.run([SCRIPT, name], cwd=forge, env=environ, timeout=120, check=False)
    return done.returncode


def comments(forge: Path) -> str:
    return (forge / "comments.md").read_text()


def test_a_pull_request_gets_a_comment_with_pods_and_trials(forge: Path) -> None:
    assert step(forge, "preview") == 0
    assert "### Benchmark stack `nightly`" in comments(forge)
    assert "3 trials (1 different, 3 times)" in comments(forge)


@pytest.mark.alone
def test_a_night_that_is_worse_fails_and_the_last_good_run_stays(forge: Path) -> None:
    assert (step(forge, "run"), step(forge, "compare")) == (0, 0)
    good = (forge / "runs" / "good").resolve()
    set_delay(forge, "250ms")
    assert step(forge, "run") == 0
    assert step(forge, "compare") == ExitCode.WORSE
    assert "worse" in comments(forge)
    assert (forge / "runs" / "good").resolve() == good
    set_delay(forge, "80ms")
    assert (step(forge, "run"), step(forge, "compare")) == (0, 0)
    assert "better" in comments(forge)
    assert (forge / "runs" / "good").resolve() != good


def test_the_workflow_calls_steps_that_the_script_has() -> None:
    workflow = yaml.safe_load((PAGES / "workflow.yaml").read_text())
    steps = [each for job in workflow["jobs"].values() for each in job["steps"]]
    called = [each["run"].split()[1] for each in steps if "benchmark.sh" in each.get("run", "")]
    assert called == ["preview", "run", "compare"]
    defined = SCRIPT.read_text()
    assert all(f"{name}() {{" in defined for name in called)
