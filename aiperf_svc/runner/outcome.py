"""The outcome of a run, and its exit code."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiperf_svc.core.results.run_result import SCHEMA
from aiperf_svc.core.results.slo_results import MISSED, NOT_JUDGED, outcome_of_all
from aiperf_svc.core.verdict.check_result import ENDED_EARLY
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.protocol.run_states import RunState

RUN_RESULT = SCHEMA.partition("/")[0] + "/"
"""Beginning of the `schema_version` of results.json."""
EXPERIMENT = "experiment/"
"""Beginning of the `schema_version` of experiment.json."""
_OBJECTIVE = ("metric", "stat", "reason")
"""What is said of an objective that does not hold."""
_SLO_CODES = {MISSED: ExitCode.SLO_MISSED, NOT_JUDGED: ExitCode.SLO_NOT_JUDGED}


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """Everything that is shown at the end of a run."""

    run_id: str
    state: str
    """The run's final state."""
    reason: str
    """Reason of a failure or a cancellation."""
    failure: ExitCode = ExitCode.BENCHMARK_FAILED
    """Kind of failure, in the state `failed`."""
    summary: dict[str, Any] | None
    """The content of profile_export_aiperf.json or results.json; None when nothing was measured."""
    artifacts: Path | None
    """Artifact folder; None if it could not be made."""
    artifact_error: str = ""
    uploaded_to: str = ""
    """URL of the uploaded artifacts; empty if there is none."""
    was_interrupted: bool = False
    left: tuple[str, ...] = ()
    """Objects or processes of the run that still exist."""
    is_unverified: bool = False
    """True if it could not be checked whether something is left."""
    is_unlisted: bool = False
    """True if what the stack uses may not be listed, so that what is left is unknown."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further keys for `--json`."""

    @property
    def exit_code(self) -> ExitCode:
        """The first of these that applies."""
        if self.left:
            return ExitCode.LEAKED
        if self.is_unlisted:
            return ExitCode.UNVERIFIED
        if self.is_unverified:
            return ExitCode.ERROR
        if self.was_interrupted:
            return ExitCode.INTERRUPTED
        if self.state == RunState.FAILED:
            return self.failure
        if self.state == RunState.CANCELLED:
            return ExitCode.INTERRUPTED
        if self.summary is None or not has_succeeded(self.summary):
            return ExitCode.BENCHMARK_FAILED
        if self.artifact_error:
            return ExitCode.ERROR
        if is_experiment(self.summary):
            return _of_trials(self.summary["trials"])
        if own_part(self.summary).get("verdict") == "invalid":
            return ExitCode.VERDICT_INVALID
        return _SLO_CODES.get(outcome_of_all(own_part(self.summary).get("slo", ())), ExitCode.OK)

    def _failed_part(self) -> str:
        """Return why a run that ended as planned has another exit code than 0."""
        summary = self.summary
        match self.exit_code:
            case ExitCode.OK:
                return ""
            case ExitCode.LEAKED:
                return f"left behind: {', '.join(self.left)}"
            case ExitCode.UNVERIFIED:
                return "it is unknown whether anything is left"
            case ExitCode.ERROR:
                return self.artifact_error or "it is unknown whether anything is left"
            case ExitCode.INTERRUPTED:
                return "stopped by the user"
        if summary is None:
            return "nothing was measured"
        match self.exit_code:
            case ExitCode.VERDICT_INVALID:
                return f"the verdict is invalid: {_not_believed(summary)}"
            case ExitCode.SLO_MISSED | ExitCode.SLO_NOT_JUDGED:
                return _not_held(summary)
        return first_failure(summary) or "no request completed"

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as an object for `--json`."""
        return {
            "run_id": self.run_id,
            "exit_code": int(self.exit_code),
            "state": self.state,
            "reason": self.reason or self._failed_part(),
            "artifacts": str(self.artifacts) if self.artifacts else None,
            "artifact_error": self.artifact_error or None,
            "uploaded_to": self.uploaded_to or None,
            **self.more,
            "results": self.summary,
        }


def _of_trials(trials: list[dict[str, Any]]) -> ExitCode:
    """The exit code of an experiment. It is OK if one trial can be believed and holds its
    SLO, and no trial is unfinished."""
    if any(trial["state"] != RunState.DONE for trial in trials):
        return ExitCode.BENCHMARK_FAILED
    # A load that a search ended early is no measurement, and misses its objective for certain.
    believed = [t for t in trials if not t["left_out"] or t["cause"] == ENDED_EARLY]
    if not believed:
        return ExitCode.VERDICT_INVALID
    found = {t["slo"] for t in believed}
    if found <= {MISSED, NOT_JUDGED}:
        return _SLO_CODES[NOT_JUDGED if NOT_JUDGED in found else MISSED]
    return ExitCode.OK


def is_experiment(summary: dict[str, Any]) -> bool:
    """True if this is the content of experiment.json."""
    return str(summary.get("schema_version")).startswith(EXPERIMENT)


def is_run_result(summary: dict[str, Any]) -> bool:
    """True if this is the content of results.json: of a benchmark that ran a tool on ranks."""
    return str(summary.get("schema_version")).startswith(RUN_RESULT)


def own_part(summary: dict[str, Any]) -> dict[str, Any]:
    """Our own part of AIPerf's schema, or all of results.json: verdict, SLO, accounts."""
    if is_run_result(summary):
        return summary
    part: dict[str, Any] = summary.get("aiperf_svc", {})
    return part


def failed_checks(found: dict[str, Any]) -> list[str]:
    """Names of the checks that a benchmark on ranks did not pass, from its results.json."""
    return [each["check"] for each in found.get("checks", ()) if each["severity"] == "invalid"]


def has_succeeded(summary: dict[str, Any]) -> bool:
    """True if any request completed, in any trial of an experiment; of a benchmark on ranks, if all
    steps did."""
    if is_experiment(summary):
        # Trials on ranks have no such value: their states say what became of them.
        counts = (trial["values"].get("request_count_avg") for trial in summary["trials"])
        return any(count != 0 for count in counts)
    if is_run_result(summary):
        accounts = summary["accounts"]
        is_whole = not accounts["failed"] and not accounts["lost"]
        return is_whole and bool(accounts["completed"]) and not summary["failure"]
    return bool(summary.get("request_count", {}).get("avg"))


def _not_believed(summary: dict[str, Any]) -> str:
    if is_experiment(summary):
        return "no trial can be believed"
    own = own_part(summary)
    if is_run_result(summary):
        return ", ".join(failed_checks(own))
    texts = (each["text"] for each in own.get("reasons", ()) if each["severity"] == "invalid")
    return next(texts, "") or str(own.get("cause") or "see verdict.json")


def _not_held(summary: dict[str, Any]) -> str:
    if is_experiment(summary):
        unknown = [str(t["number"]) for t in summary["trials"] if t["slo"] == NOT_JUDGED]
        if not unknown:
            return "SLO missed: by all trials that can be believed"
        return f"SLO not judged: no trial holds it for certain, see trial {', '.join(unknown)}"
    objectives = own_part(summary).get("slo", ())
    texts = (
        " ".join(str(each.get(key, "")) for key in _OBJECTIVE)
        for each in objectives
        if not each["ok"]
    )
    return f"SLO {outcome_of_all(objectives)}: {'; '.join(texts)}"


def first_failure(summary: dict[str, Any]) -> str:
    """Return the first part that failed, with its own reason: a trial, a step, or the error that
    most requests had. Empty if none is recorded."""
    if is_experiment(summary):
        failed = (t for t in summary["trials"] if t["state"] != RunState.DONE)
        found = ((f"trial {t['number']}", t["reason"]) for t in failed)
    elif is_run_result(summary):
        failed = (s for s in summary["steps"] if s["problem"] and not s["was_retried"])
        found = ((f"step {s['name']}", s["problem"]) for s in failed)
    else:
        errors = sorted(summary.get("error_summary", ()), key=lambda error: -error["count"])
        found = (("no request completed", e["error_details"]["message"]) for e in errors)
    return next((": ".join(filter(None, each)) for each in found), "")
