"""The total of a trial that several runs executed at the same time."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from aiperf_svc.adapters.exports.experiment_export import experiment_numbers
from aiperf_svc.adapters.report import experiment_texts, joint_page
from aiperf_svc.adapters.terminal.joint_tables import print_joint_experiment
from aiperf_svc.core.experiments.joint_trials import (
    ExperimentMember,
    JointExperiment,
    joint_finding,
    total_outcome,
    widest_start,
)
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.summary import row_of, summarise
from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.core.quality import gate
from aiperf_svc.core.quality.questions import Grader, Question
from aiperf_svc.core.results.joint_result import Joint, JointMember
from aiperf_svc.core.results.run_result import MetricStats
from aiperf_svc.core.verdict.check_result import Reason, Severity, graded
from tests.support.fake_results import inference_result, objective, throttled
from tests.support.terminal import on_console

TRIAL = Trial(3, {"load.concurrency": 4})
TOTAL = {"request_count": MetricStats(unit="requests", avg=7.0)}


def member(name: str, **fields: Any) -> JointMember:
    defaults = {"where": "", "folder": "", "state": "done", "reason": "", "exit_code": 0}
    return JointMember(name=name, **{"verdict": "valid", **defaults, **fields})


def joint(*members: JointMember, total_of: tuple[str, ...], **fields: Any) -> Joint:
    defaults: dict[str, Any] = {"kind": "targets", "name": "x", "exit_code": 0, "verdict": "valid"}
    total = TOTAL if total_of else {}
    return Joint(**{**defaults, "total": total, "total_of": total_of, **fields}, members=members)


def test_total_is_a_separate_trial() -> None:
    of_both = joint(member("a"), member("b"), total_of=("a", "b"))
    row = row_of(total_outcome(TRIAL, of_both))
    assert row.outcome.trial == TRIAL
    assert row.left_out == ""
    assert row.measured is not None
    assert [value for key, value in row.measured.values.items() if key.stat == "avg"] == [7.0]


def test_joint_trial_has_worst_verdict_and_its_run() -> None:
    invalid = member("b", verdict="invalid", cause="client-bound")
    of_both = joint(member("a"), invalid, total_of=("a", "b"), verdict="invalid")
    assert row_of(total_outcome(TRIAL, of_both)).left_out == "invalid: b: client-bound"


@pytest.mark.parametrize("causes", [("target-failing", "client-bound"), ("client-bound", "")])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_joint_trial_with_a_spoiled_run_is_repeated(
    causes: tuple[str, ...], is_reversed: bool
) -> None:
    runs = [inference_result(verdict=Severity.INVALID, cause=cause) for cause in causes]
    assert joint_finding(runs[::-1] if is_reversed else runs).is_spoiled


def test_joint_trial_of_failing_targets_is_not_repeated() -> None:
    failed = inference_result(verdict=Severity.INVALID, cause="target-failing")
    assert not joint_finding([inference_result(), failed, failed]).is_spoiled


def test_joint_trial_holds_slo_if_all_do() -> None:
    held = objective(ok=True, metric="goodput", stat="avg", unit="", measured=1.0, limit=2.0)
    missed = replace(held, ok=False, reason="below")
    of_both = joint(member("a"), member("b"), total_of=("a", "b"))
    holding, missing = inference_result(slo=(held,)), inference_result(slo=(missed,))
    one = row_of(total_outcome(TRIAL, of_both, {"a": holding, "b": holding})).measured
    other = row_of(total_outcome(TRIAL, of_both, {"a": holding, "b": missing})).measured
    without = dict.fromkeys("ab", inference_result())
    none = row_of(total_outcome(TRIAL, of_both, without)).measured
    assert one is not None
    assert other is not None
    assert none is not None
    assert (one.slo, other.slo, none.slo) == ("held", "missed", "")
    assert other.not_held == ("avg goodput of b 1  (limit 2): below",)


def lagging(lag_ms: float) -> tuple[Reason, ...]:
    text = f"requests were {lag_ms:g} ms late"
    return (graded("schedule_lag", lag_ms, (1.0, 9.0), text=text, remedy="", unit="ms"),)


def test_joint_trial_fails_the_checks_that_any_fails() -> None:
    results = {
        "a": inference_result(reasons=lagging(2.0)),
        "b": inference_result(reasons=lagging(3.0), system=throttled(0.2)),
    }
    of_both = joint(member("a"), member("b"), total_of=("a", "b"), verdict="degraded")
    summary = summarise([total_outcome(TRIAL, of_both, results)])
    (trial,) = experiment_numbers(summary).trials
    assert (trial.verdict, trial.checks, trial.system) == (
        "degraded",
        "schedule_lag",
        "gpu_throttling",
    )
    found = experiment_texts.findings(summary)
    (of_client,), (of_system,) = found["verdict"], found["system"]
    assert of_client.share == "degraded in 1 of 1 trials"
    assert of_client.worst == "trial 3 (load.concurrency=4): b: requests were 3 ms late"
    assert of_system.worst == "trial 3 (load.concurrency=4): b: power limits, 20%"


def test_report_without_a_total_names_findings(tmp_path: Path) -> None:
    late = TrialOutcome(TRIAL, "done", "", inference_result(1, "degraded", reasons=lagging(3.0)))
    failed = TrialOutcome(TRIAL, "failed", "no server", None)
    members = tuple(
        ExperimentMember(
            name=name, where="", folder=name, state="done", reason="", exit_code=0,
            summary=summarise([outcome]),
        )
        for name, outcome in (("a", late), ("b", failed))
    )  # fmt: skip
    found = JointExperiment(
        kind="targets", name="x", exit_code=5, members=members, trials=(),
        total=summarise([failed]), notes=("b: a file is broken",),
    )  # fmt: skip
    page = joint_page.render_experiment(found).decode()
    assert "requests were 3 ms late" in page
    assert "failed: no server" in page
    assert "B: a file is broken." in page
    assert joint_page.NO_TOTAL in on_console(print_joint_experiment, found, tmp_path)


def test_joint_trial_misses_a_quality_gate_of_one() -> None:
    questions = [Question(prompt="?", grader=Grader.EXACT, expected="yes")]
    answers = gate.graded(questions, [gate.Answer(question=0, repeat=0, text="no")])
    poor = gate.score(["exact"], answers, file="q", sha256="0", concurrency=1, min_score=0.9)
    results = {"a": inference_result(), "b": inference_result(quality=poor)}
    of_both = joint(member("a"), member("b"), total_of=("a", "b"))
    measured = row_of(total_outcome(TRIAL, of_both, results)).measured
    assert measured is not None
    assert (measured.slo, measured.not_held) == ("missed", (f"quality: {poor.problem}",))


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"state": "failed", "reason": "worker lost"}, "failed: b: worker lost"),
        ({"state": "cancelled"}, "cancelled: b: cancelled"),
        ({}, "failed: b: no records"),
    ],
)
def test_unfinished_trial_of_a_run_has_no_total(broken: dict[str, str], reason: str) -> None:
    of_one = joint(member("a"), member("b", **broken), total_of=("a",))
    row = row_of(total_outcome(TRIAL, of_one))
    assert row.left_out == reason
    assert row.measured is None


def test_runs_without_records_have_no_total() -> None:
    row = row_of(total_outcome(TRIAL, joint(member("a"), member("b"), total_of=())))
    assert row.left_out == "nothing was measured"


def test_widest_start_is_reported_with_its_clock_uncertainty() -> None:
    def started(spread_ms: float | None, uncertainty_ms: float | None) -> Joint:
        close = {"start_spread_ms": spread_ms, "start_uncertainty_ms": uncertainty_ms}
        return joint(member("a"), member("b"), total_of=("a", "b"), **close)

    assert widest_start([started(0.1, 0.9), started(None, None), started(0.4, 0.2)]) == (0.4, 0.2)
    assert widest_start([started(None, None)]) is None
