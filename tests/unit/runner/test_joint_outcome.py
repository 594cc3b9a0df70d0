"""The one exit code and the files of several runs."""

import json
from pathlib import Path
from typing import Any

import fake_run
import pytest
from msgspec.structs import replace

from aiperf_svc.adapters.storage.artifacts import write_all
from aiperf_svc.core.results.summarise import summarise
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.common_start import Offset
from aiperf_svc.runner.joint_outcome import JointRun, finish, joint_exit_code
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome, failed_outcome


def outcome(verdict: str = "valid", **fields: Any) -> RunOutcome:
    given: dict[str, Any] = {
        "run_id": "r",
        "state": "done",
        "reason": "",
        "summary": {"request_count": {"avg": 1.0}, "aiperf_svc": {"verdict": verdict}},
        "artifacts": None,
    }
    return RunOutcome(**{**given, **fields})


NOT_REACHED = failed_outcome(EnvironmentProblem("nothing responds"))
REFUSED = failed_outcome(ConfigError("no such model"))


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([outcome(), outcome()], ExitCode.OK),
        ([outcome(), outcome("invalid")], ExitCode.VERDICT_INVALID),
        ([outcome("invalid"), NOT_REACHED], ExitCode.BENCHMARK_FAILED),
        ([outcome(), REFUSED], ExitCode.BENCHMARK_FAILED),
        ([REFUSED, NOT_REACHED], ExitCode.BAD_CONFIG),
        ([NOT_REACHED, REFUSED], ExitCode.ERROR),
        ([outcome(was_interrupted=True), NOT_REACHED], ExitCode.INTERRUPTED),
        ([outcome(is_unverified=True), REFUSED], ExitCode.ERROR),
        ([outcome(was_interrupted=True), outcome(left=("Pod x",))], ExitCode.LEAKED),
    ],
)
def test_the_exit_code_is_that_of_the_worst(outcomes: list[RunOutcome], code: ExitCode) -> None:
    assert joint_exit_code(outcomes) is code


def test_the_files_hold_every_run_and_an_exact_total(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    for name, count, ahead_ns in (("eu", 800, 0), ("us", 300, 250_000)):
        rows = fake_run.closed_loop(requests=count, concurrency=10)
        columns = fake_run.columns_of(rows)
        context = replace(fake_run.context(rows), run_id=name)
        (tmp_path / name).mkdir()
        write_all(tmp_path / name, summarise(columns, None, context), columns)
        content = json.loads((tmp_path / name / "profile_export_aiperf.json").read_bytes())
        made = outcome(summary=content, artifacts=tmp_path / name)
        offset = Offset(ahead_ns, 40_000)
        runs.append(JointRun(name=name, where=f"context-{name}", outcome=made, offset=offset))
    runs.append(JointRun(name="asia", where="context-asia", outcome=NOT_REACHED))

    code = finish("clusters", "bench", tmp_path, runs, RunOptions(json=True))
    assert code is ExitCode.BENCHMARK_FAILED
    said = capsys.readouterr()
    joint = json.loads((tmp_path / "joint.json").read_bytes())
    assert json.loads(said.out)["results"] == joint
    assert (joint["total_of"], joint["exit_code"]) == (["eu", "us"], int(code))
    eu, us, asia = joint["members"]
    assert (eu["folder"], asia["folder"], asia["reason"]) == ("eu", "", "nothing responds")
    for tag in ("request_count", "total_osl"):
        total = joint["total"][tag]["avg"]
        assert total == eu["metrics"][tag]["avg"] + us["metrics"][tag]["avg"]
    latency = joint["total"]["request_latency"]
    assert latency["count"] == sum(m["metrics"]["request_latency"]["count"] for m in (eu, us))
    assert joint["start_spread_ms"] == pytest.approx(0.25, abs=0.01)
    assert joint["start_uncertainty_ms"] == 0.04
    assert "the total is without asia" in said.err
    page = (tmp_path / "report.html").read_text()
    assert '<a href="eu/report.html">eu</a>' in page
    assert "nothing responds" in page
    head = (tmp_path / "joint.csv").read_text().splitlines()[0]
    assert head == "metric,unit,eu,us,asia,total"
