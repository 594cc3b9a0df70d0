"""The workflow for a forge's CI, with a shell in place of the forge."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support import forking
from tests.support.forked_program import write_program
from tests.support.runs_to_compare import inference_run

PAGES = Path(__file__).parents[2] / "docs" / "ci"
SCRIPT = PAGES / "benchmark.sh"
STACK = {
    "config": {
        "aiperf:benchmark": {
            "name": "nightly",
            "endpoint": {"url": "http://target", "model": "mock-model", "streaming": True},
            "load": {"requests": 5, "concurrency": 1},
            "dataset": {"entries": 10, "input_tokens": {"mean": 32}},
            "slo": {"objectives": [{"metric": "request_latency", "max": "1ns"}]},
            "experiment": {"repetitions": 3},
            "deployment": {"target": {"kind": "mock", "args": ["--ttft", "50ms"]}},
        }
    }
}
"""Its SLO does not hold, which is no failure of a night."""


@pytest.fixture
def forge(tmp_path: Path) -> Path:
    """The place of a job: a stack file, and a command that posts comments to a file."""
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "Pulumi.nightly.yaml").write_text(yaml.safe_dump(STACK))
    (tmp_path / "post").write_text('#!/bin/sh\ncat "$1" >> comments.md\n')
    (tmp_path / "post").chmod(0o755)
    return tmp_path


def step(forge: Path, name: str, *, is_executed: bool = False) -> int:
    """Run one step as a job does; its exit code. Its commands are forks, or the installed one."""
    orders, programs = forking.start(), forge / "bin"
    if is_executed:
        programs = Path(sys.executable).parent
    else:
        programs.mkdir(exist_ok=True)
        write_program(programs / "aiperf-svc", orders)
    environ = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "STACK": "nightly",
        "RUNS": "runs",
        "RUN_FLAGS": "--local --ui none",
        "COMMENT": "./post",
    }
    done = subprocess.run(
        [SCRIPT, name],
        cwd=forge,
        env=environ,
        pass_fds=(orders.fileno(),),
        timeout=120,
        check=False,
    )
    return done.returncode


def comments(forge: Path) -> str:
    return (forge / "comments.md").read_text()


def test_pull_request_gets_a_comment_with_pods_and_trials(forge: Path) -> None:
    assert step(forge, "preview", is_executed=True) == 0
    assert "### Benchmark stack `nightly`" in comments(forge)
    assert "3 trials (1 different, 3 times)" in comments(forge)


def test_the_first_night_is_the_one_to_compare_with(forge: Path) -> None:
    assert (step(forge, "run"), step(forge, "compare")) == (0, 0)
    (run,) = forge.glob("runs/nightly-*Z")
    assert (forge / "runs" / "good").resolve() == run
    assert (run / "experiment.json").exists()


def test_worse_night_fails_and_keeps_the_last_good_run(forge: Path) -> None:
    good = forge / "runs" / "good"
    assert night(forge, 1, ttft_ms=20.0) == 0
    assert night(forge, 2, ttft_ms=30.0) == ExitCode.WORSE
    assert "worse" in comments(forge)
    assert good.resolve().name == name_of(1)
    assert night(forge, 3, ttft_ms=20.2) == 0
    assert good.resolve().name == name_of(3)


def night(forge: Path, number: int, *, ttft_ms: float) -> int:
    """A night whose run was made up: three repetitions with about this time to first token."""
    for repetition in range(3):
        run = forge / "runs" / name_of(number) / str(repetition)
        ttft = ttft_ms * (1 + 0.001 * repetition)
        inference_run(run, f"{number}-{repetition}", seed=repetition, ttft_ms=ttft)
    return step(forge, "compare")


def name_of(number: int) -> str:
    return f"nightly-2026110{number}T030000Z"


def test_the_workflow_calls_steps_that_the_script_has() -> None:
    workflow = yaml.safe_load((PAGES / "workflow.yaml").read_text())
    steps = [each for job in workflow["jobs"].values() for each in job["steps"]]
    called = [each["run"].split()[1] for each in steps if "benchmark.sh" in each.get("run", "")]
    assert called == ["preview", "run", "compare"]
    defined = SCRIPT.read_text()
    assert all(f"{name}() {{" in defined for name in called)
