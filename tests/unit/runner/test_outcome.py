"""The exit code says how a run ended; the most serious thing wins."""

from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.exports.experiment_file import SCHEMA as EXPERIMENT_SCHEMA
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.outcome import RUN_RESULT, RunOutcome


def summary(
    requests: int = 10, verdict: str = "valid", slo: tuple[bool, ...] = ()
) -> dict[str, Any]:
    return {
        "request_count": {"unit": "requests", "avg": float(requests)},
        "aiperf_svc": {"verdict": verdict, "slo": [{"ok": ok} for ok in slo]},
    }


def outcome(**fields: Any) -> RunOutcome:
    values: dict[str, Any] = {"run_id": "0123456789ab", "state": "done", "reason": ""}
    values |= {"summary": summary(), "artifacts": Path("artifacts/x")}
    return RunOutcome(**{**values, **fields})


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, ExitCode.OK),
        ({"summary": summary(verdict="degraded")}, ExitCode.OK),
        ({"summary": summary(slo=(True, True))}, ExitCode.OK),
        ({"summary": summary(slo=(True, False))}, ExitCode.SLO_MISSED),
        ({"summary": summary(verdict="invalid", slo=(False,))}, ExitCode.VERDICT_INVALID),
        ({"artifact_error": "disk full"}, ExitCode.ERROR),
        ({"summary": summary(requests=0)}, ExitCode.BENCHMARK_FAILED),
        ({"summary": None}, ExitCode.BENCHMARK_FAILED),
        ({"state": "failed", "artifact_error": "disk full"}, ExitCode.BENCHMARK_FAILED),
        ({"state": "failed", "failure": ExitCode.BAD_CONFIG}, ExitCode.BAD_CONFIG),
        ({"state": "done", "failure": ExitCode.BAD_CONFIG}, ExitCode.OK),
        ({"left": ("Namespace n",), "was_interrupted": True}, ExitCode.LEAKED),
        ({"is_unverified": True, "was_interrupted": True}, ExitCode.ERROR),
        ({"is_unlisted": True, "was_interrupted": True}, ExitCode.UNVERIFIED),
        ({"is_unlisted": True, "is_unverified": True}, ExitCode.UNVERIFIED),
        ({"is_unlisted": True, "left": ("Pod p",)}, ExitCode.LEAKED),
        ({"is_unverified": True, "state": "failed"}, ExitCode.ERROR),
        ({"is_unverified": True, "summary": summary(verdict="invalid")}, ExitCode.ERROR),
        ({"state": "cancelled"}, ExitCode.INTERRUPTED),
        ({"state": "failed", "was_interrupted": True}, ExitCode.INTERRUPTED),
        ({"summary": None, "was_interrupted": True}, ExitCode.INTERRUPTED),
    ],
)
def test_the_most_serious_thing_is_the_exit_code(fields: dict[str, Any], code: ExitCode) -> None:
    assert outcome(**fields).exit_code is code


def trial(
    state: str = "done",
    left_out: str = "",
    slo: str = "",
    cause: str = "",
    values: dict[str, float] | None = None,
) -> dict[str, Any]:
    found = {"state": state, "left_out": left_out, "slo": slo, "cause": cause}
    return found | {"reason": "", "values": values or {}}


AWAY = trial(left_out="invalid: target-failing", values={"request_count_avg": 0.0})
"""A trial of which no request completed."""


@pytest.mark.parametrize(
    ("trials", "code"),
    [
        ([trial(), trial()], ExitCode.OK),
        ([trial(), trial(left_out="invalid: client-bound")], ExitCode.OK),
        ([trial(left_out="invalid: client-bound")], ExitCode.VERDICT_INVALID),
        ([trial(), trial("failed", "failed: no target")], ExitCode.BENCHMARK_FAILED),
        ([trial(slo="held"), trial(slo="missed")], ExitCode.OK),
        ([trial(slo="missed"), trial(slo="missed")], ExitCode.SLO_MISSED),
        ([trial(slo="missed"), trial(left_out="invalid: lost")], ExitCode.SLO_MISSED),
        ([trial(left_out="invalid: x", slo="missed", cause="ended-early")], ExitCode.SLO_MISSED),
        ([trial(slo="not judged"), trial(slo="missed")], ExitCode.SLO_NOT_JUDGED),
        ([trial(slo="not judged"), trial(slo="held")], ExitCode.OK),
        ([], ExitCode.BENCHMARK_FAILED),
        ([AWAY, AWAY], ExitCode.BENCHMARK_FAILED),
        ([AWAY, trial(left_out="invalid: lost")], ExitCode.VERDICT_INVALID),
    ],
)
def test_an_experiment_succeeds_with_all_trials_finished_and_one_that_holds(
    trials: list[dict[str, Any]], code: ExitCode
) -> None:
    found = {"schema_version": EXPERIMENT_SCHEMA, "trials": trials}
    assert outcome(summary=found).exit_code is code


@pytest.mark.parametrize(
    ("others_judged", "word", "code"),
    [
        (True, "missed", ExitCode.SLO_MISSED),
        (False, "not judged", ExitCode.SLO_NOT_JUDGED),
    ],
)
def test_an_slo_that_is_not_judged_has_its_own_word_and_exit_code(
    others_judged: bool, word: str, code: ExitCode
) -> None:
    thin = {"metric": "m", "stat": "p99", "ok": False, "judged": False, "reason": "thin"}
    found = summary()
    found["aiperf_svc"]["slo"] = [thin, {**thin, "stat": "p50", "judged": others_judged}]
    end = outcome(summary=found)
    assert end.exit_code is code
    assert end.as_json()["reason"] == f"SLO {word}: m p99 thin; m p50 thin"


def test_the_reason_names_trials_whose_slo_is_not_judged() -> None:
    trials = [trial(slo="missed") | {"number": 1}, trial(slo="not judged") | {"number": 2}]
    end = outcome(summary={"schema_version": EXPERIMENT_SCHEMA, "trials": trials})
    said = "SLO not judged: no trial holds it for certain, see trial 2"
    assert end.as_json()["reason"] == said


def test_json_has_the_results_and_how_it_ended() -> None:
    found = outcome(summary=summary(slo=(False,))).as_json()
    assert found["exit_code"] == 4
    assert found["results"] == summary(slo=(False,))
    assert (found["state"], found["artifacts"]) == ("done", "artifacts/x")


STEPS = [
    {"name": "first", "problem": "", "was_retried": False},
    {"name": "second", "problem": "rank 1: no route", "was_retried": True},
    {"name": "second", "problem": "rank 0: sh ended with code 3", "was_retried": False},
]
TRIALS = [
    {"number": 1, "state": "done", "reason": "", "values": {}},
    {"number": 2, "state": "failed", "reason": "the server is not ready", "values": {}},
]
ERRORS = [
    {"count": 2, "error_details": {"message": "status 503"}},
    {"count": 8, "error_details": {"message": "connection refused"}},
]


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (
            {
                "schema_version": f"{RUN_RESULT}1",
                "accounts": {"failed": 1, "lost": 0, "completed": 1},
                "steps": STEPS,
            },
            "step second: rank 0: sh ended with code 3",
        ),
        (
            {"schema_version": EXPERIMENT_SCHEMA, "trials": TRIALS},
            "trial 2: the server is not ready",
        ),
        (
            summary(requests=0) | {"error_summary": ERRORS},
            "no request completed: connection refused",
        ),
        (summary(requests=0), "no request completed"),
        ({"schema_version": EXPERIMENT_SCHEMA, "trials": [AWAY]}, "no request completed"),
        (None, "nothing was measured"),
        (summary() | {"error_summary": ERRORS}, ""),
    ],
)
def test_a_failed_benchmark_has_a_reason_though_its_run_ended_as_planned(
    found: dict[str, Any] | None, reason: str
) -> None:
    assert outcome(summary=found).as_json()["reason"] == reason


def test_the_reason_of_a_run_that_did_not_end_as_planned_stays() -> None:
    failed = outcome(state="failed", reason="the target is away", summary=summary(requests=0))
    assert failed.as_json()["reason"] == "the target is away"
