"""The workflow for a forge's CI, run by a shell instead of the forge."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from junitparser import Failure, JUnitXml

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support import forking
from tests.support.forge_steps import ACTION, ROOT, ForgeRunner, action_steps
from tests.support.forked_program import write_program
from tests.support.runs_to_compare import inference_run

PAGES = ROOT / "docs" / "ci"
SCRIPT = PAGES / "benchmark.sh"
STACK = {
    "config": {
        "aiperf:benchmark": {
            "name": "nightly",
            "endpoint": {"url": "http://target", "model": "mock-model", "streaming": True},
            "load": {"requests": 3, "concurrency": 1},
            "dataset": {"entries": 10, "input_tokens": {"mean": 32}},
            "slo": {"objectives": [{"metric": "request_latency", "max": "1ns"}]},
            "experiment": {"repetitions": 3},
            # Slow enough that pauses of a busy machine are a small share of the latency.
            "deployment": {"target": {"kind": "mock", "args": ["--ttft", "1s"]}},
        }
    }
}
"""Its SLO is missed, which does not fail a nightly run."""


@pytest.fixture
def forge(tmp_path: Path) -> Path:
    """Create a job's folder: a stack file, and a command that writes comments to a file."""
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "Pulumi.nightly.yaml").write_text(yaml.safe_dump(STACK))
    (tmp_path / "post").write_text('#!/bin/sh\ncat "$1" >> comments.md\n')
    (tmp_path / "post").chmod(0o755)
    return tmp_path


SETTINGS = {
    "STACK": "nightly",
    "RUNS": "runs",
    "RUN_FLAGS": "--local --ui none",
    "COMMENT": "./post",
}


def step(forge: Path, name: str, *, is_executed: bool = False) -> int:
    """Run one step as a job does and return its exit code. Commands run as forks, or the installed
    program is executed."""
    path, orders = forked_path(forge)
    if is_executed:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [SCRIPT, name],
        cwd=forge,
        env={**os.environ, "PATH": path, **SETTINGS},
        pass_fds=(orders,),
        timeout=120,
        check=False,
    )
    return done.returncode


def forked_path(forge: Path) -> tuple[str, int]:
    """Return a PATH whose `aiperf-svc` is a fork, and the descriptor that the fork needs."""
    orders, programs = forking.start(), forge / "bin"
    programs.mkdir(exist_ok=True)
    write_program(programs / "aiperf-svc", orders)
    return f"{programs}:{os.environ['PATH']}", orders.fileno()


def action_step(forge: Path, number: int, inputs: Mapping[str, str], **environ: str) -> int:
    """Run a step of the action as a forge's runner does and return its exit code."""
    path, orders = forked_path(forge)
    steps, known = action_steps(inputs)
    values = {**os.environ, "PATH": path, **environ}
    return ForgeRunner(forge, forge, values, known, (orders,)).run(steps[number])


def failures(file: Path) -> list[str]:
    """Return the names of a file's failed cases. Fails if a case is an error."""
    broken = [case for suite in JUnitXml.fromfile(str(file)) for case in suite if case.result]
    assert all(isinstance(case.result[0], Failure) for case in broken)
    return [case.name for case in broken]


def comments(forge: Path) -> str:
    return (forge / "comments.md").read_text()


def test_pull_request_comment_has_pods_and_trials(forge: Path) -> None:
    assert step(forge, "preview", is_executed=True) == 0
    assert "### Benchmark stack `nightly`" in comments(forge)
    assert "3 trials (1 different, 3 times)" in comments(forge)


def test_first_night_becomes_the_comparison_base(forge: Path) -> None:
    assert (step(forge, "run"), step(forge, "compare")) == (0, 0)
    (run,) = forge.glob("runs/nightly-*Z")
    assert (forge / "runs" / "good").resolve() == run
    assert (run / "experiment.json").exists()
    junit = forge / "runs" / "junit.xml"
    assert failures(junit) == ["SLO: request_latency avg at most 0.000001 ms"] * 3
    assert not (forge / "runs" / "compare.xml").exists()


@pytest.mark.parametrize(
    ("code", "fail_on_slo", "expected"),
    [(0, "1", 0), (4, "", 0), (4, "0", 0), (9, "", 0), (5, "", 5), (4, "1", 4), (9, "1", 9)],
)
def test_slo_fails_the_run_on_demand(
    tmp_path: Path, code: int, fail_on_slo: str, expected: int
) -> None:
    command = tmp_path / "aiperf-svc"
    command.write_text(f"#!/bin/sh\nexit {code}\n")
    command.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    environ = {**os.environ, **SETTINGS, "PATH": path, "FAIL_ON_SLO": fail_on_slo}
    done = subprocess.run([SCRIPT, "run"], cwd=tmp_path, env=environ, check=False)
    assert done.returncode == expected


def test_failed_run_leaves_no_comparison(forge: Path) -> None:
    comparison = forge / "runs" / "compare.xml"
    comparison.parent.mkdir()
    comparison.write_text("of the night before")
    (forge / "stacks" / "Pulumi.nightly.yaml").unlink()
    assert step(forge, "run") == ExitCode.BAD_CONFIG
    assert not comparison.exists()


def test_worse_night_fails_and_keeps_last_good_run(forge: Path) -> None:
    good = forge / "runs" / "good"
    assert night(forge, 1, ttft_ms=20.0) == 0
    assert night(forge, 2, ttft_ms=30.0) == ExitCode.WORSE
    assert "worse" in comments(forge)
    assert good.resolve().name == name_of(1)
    assert "Time to First Token p99" in failures(forge / "runs" / "compare.xml")
    assert night(forge, 3, ttft_ms=20.2) == 0
    assert failures(forge / "runs" / "compare.xml") == []
    assert good.resolve().name == name_of(3)


def night(forge: Path, number: int, *, ttft_ms: float) -> int:
    """Run a night with a fake run and its comparison."""
    made_up_runs(forge, number, ttft_ms=ttft_ms)
    return step(forge, "compare")


def made_up_runs(forge: Path, number: int, *, ttft_ms: float) -> None:
    """Write three repetitions with about this time to first token."""
    for repetition in range(3):
        run = forge / "runs" / name_of(number) / str(repetition)
        ttft = ttft_ms * (1 + 0.001 * repetition)
        inference_run(run, f"{number}-{repetition}", seed=repetition, ttft_ms=ttft)


def name_of(number: int) -> str:
    return f"nightly-2026110{number}T030000Z"


def test_workflow_and_action_call_steps_of_the_script() -> None:
    workflow = yaml.safe_load((PAGES / "workflow.yaml").read_text())
    steps = [each for job in workflow["jobs"].values() for each in job["steps"]]
    uses = ".github/actions/benchmark@"
    called = [each["with"]["step"] for each in steps if uses in each.get("uses", "")]
    assert called == ["preview", "run", "compare"]
    defined = SCRIPT.read_text()
    assert all(f"{name}() {{" in defined for name in called)
    inputs = set(yaml.safe_load(ACTION.read_text())["inputs"])
    assert all(set(each["with"]) <= inputs for each in steps if uses in each.get("uses", ""))


def test_workflow_keeps_the_run_of_every_night() -> None:
    steps = yaml.safe_load((PAGES / "workflow.yaml").read_text())["jobs"]["nightly"]["steps"]
    assert steps[-1]["uses"].startswith("actions/cache/save@")
    assert steps[-1]["if"] == "always()"


def test_step_that_does_not_exist_is_refused(forge: Path) -> None:
    assert step(forge, "echo") == ExitCode.BAD_CONFIG


def test_action_passes_the_exit_code_on(forge: Path) -> None:
    inputs = {"step": "compare", "stack": "nightly", "comment": "./post"}
    for number, ttft_ms in enumerate((20.0, 30.0), start=1):
        made_up_runs(forge, number, ttft_ms=ttft_ms)
        code = action_step(forge, 1, inputs)
    assert code == ExitCode.WORSE
    assert (forge / "GITHUB_OUTPUT").read_text().splitlines() == ["code=0", "code=7"]
    assert "worse" in comments(forge)


@pytest.mark.parametrize(
    ("version", "package"), [("", f"{ROOT}[stack]"), ("0.1.0", "aiperf-svc[stack]==0.1.0")]
)
def test_action_installs_its_own_or_the_named_version(
    forge: Path, version: str, package: str
) -> None:
    installer = forge / "python3"
    installer.write_text(
        '#!/bin/sh\nmkdir -p "$3/bin"\n'
        'printf \'#!/bin/sh\\necho "$3" >asked\\n\' >"$3/bin/pip"\nchmod +x "$3/bin/pip"\n'
    )
    installer.chmod(0o755)
    path = f"{forge}:{os.environ['PATH']}"
    assert action_step(forge, 0, {"version": version}, PATH=path) == 0
    installed = (forge / "asked").read_text().strip()
    assert installed.replace(f"{ACTION.parent}/../../..", str(ROOT)) == package
    bin_folder = f"{forge / 'RUNNER_TEMP'}/aiperf-svc/bin"
    assert (forge / "GITHUB_PATH").read_text().strip() == bin_folder
