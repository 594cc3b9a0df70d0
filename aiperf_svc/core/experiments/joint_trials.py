"""The trials of one experiment that several runs performed at the same time, and their total.

The total is an experiment too: the result of one of its trials is the total of that trial over all
runs. A trial that some run did not finish has no total, since its total would cover fewer runs than
those of other trials. A run that finished no trial is in no total.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from aiperf_svc.core.experiments.criteria import statistics_of
from aiperf_svc.core.experiments.machine import Finding
from aiperf_svc.core.experiments.outcomes import DONE, TrialOutcome
from aiperf_svc.core.experiments.search import SearchedTrial
from aiperf_svc.core.experiments.search_report import SearchReport
from aiperf_svc.core.experiments.summary import ExperimentSummary
from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.joint_result import Joint, MemberEnd, worst
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.core.results.slo_results import ObjectiveResult
from aiperf_svc.core.telemetry.system_report import SystemReport
from aiperf_svc.core.verdict.check_result import Reason, Severity, worst_of
from aiperf_svc.domain.metric_catalog import CATALOG

FAILED = "failed"


class ExperimentMember(MemberEnd, frozen=True, kw_only=True):
    """One run of the experiment."""

    summary: ExperimentSummary
    """The run's own trials."""


@dataclass(frozen=True, kw_only=True)
class JointExperiment:
    """All runs, and their total."""

    kind: Literal["clusters", "targets", "models"]
    name: str
    exit_code: int
    members: tuple[ExperimentMember, ...]
    trials: tuple[tuple[Trial, Joint], ...]
    """Each trial in all runs."""
    total: ExperimentSummary
    search: SearchReport | None = None
    """Result of a search, which tries each value in all runs."""
    notes: tuple[str, ...] = ()

    @property
    def has_total(self) -> bool:
        """True if the total of any trial is known."""
        return any(row.measured is not None for row in self.total.rows)


def total_outcome(
    trial: Trial, joint: Joint, results: Mapping[str, InferenceResult] | None = None
) -> TrialOutcome:
    """Return the total of a trial over all runs, as a trial. `results` are by run name. The total
    passes a check or holds an objective if all runs do."""
    ends = {m.name: (m.state, m.reason or m.state) for m in joint.members if m.state != DONE}
    if joint.total and not ends:
        ends = {
            m.name: (FAILED, m.problem or "no records")
            for m in joint.members
            if m.name not in joint.total_of
        }
    if ends or not joint.total:
        states = {state for state, _ in ends.values()} or {DONE}
        state = states.pop() if len(states) == 1 else FAILED
        reason = "; ".join(_named(name, text) for name, (_, text) in ends.items())
        return TrialOutcome(trial, state, reason, None)
    causes = [_named(each.name, each.cause) for each in joint.members if each.cause]
    results = results or {}
    system = _worst_reasons({name: each.system_reasons for name, each in results.items()})
    total = InferenceResult(
        run_id="",
        name=joint.name,
        version="",
        verdict=Severity(joint.verdict or Severity.INVALID),
        cause="; ".join(causes),
        reasons=_worst_reasons({name: each.reasons for name, each in results.items()}),
        system=SystemReport(verdict=worst_of(system), checks=system, metrics={}, sources=()),
        slo=_joint_objectives(results),
        quality=next((each.quality for each in results.values() if each.missed_quality), None),
        metrics={tag: joint.total[tag] for tag in CATALOG if tag in joint.total},
        config={},
    )
    return TrialOutcome(trial, DONE, "", total)


def _named(name: str, text: str) -> str:
    return f"{name}: {text}"


def _joint_objectives(results: Mapping[str, InferenceResult]) -> tuple[ObjectiveResult, ...]:
    return tuple(
        replace(each, metric=f"{each.metric} of {name}")
        for name, result in results.items()
        for each in result.slo
    )


def _worst_reasons(reasons: Mapping[str, Sequence[Reason]]) -> tuple[Reason, ...]:
    """Return the checks that did not pass, each from the run with the worst result."""
    found: dict[str, Reason] = {}
    for name, own in reasons.items():
        for each in own:
            worse = found.get(each.check)
            if worse is None or _badness(each) > _badness(worse):
                found[each.check] = replace(each, text=_named(name, each.text))
    return tuple(sorted(found.values(), key=lambda each: each.severity is not Severity.INVALID))


def _badness(reason: Reason) -> tuple[bool, float]:
    return reason.severity is Severity.INVALID, reason.measured


def joint_finding(results: Sequence[RunResult], searched: SearchedTrial | None = None) -> Finding:
    """Return the worst verdict of several runs and its cause. They decide whether a trial is
    repeated: it is if the client may have spoiled any of the runs."""
    verdict = worst([each.verdict for each in results])
    of_worst = [
        Finding(each.verdict, each.cause, searched) for each in results if each.verdict == verdict
    ]
    spoiled = (each for each in of_worst if each.is_spoiled)
    return next(spoiled, of_worst[0] if of_worst else Finding("", "", searched))


def joint_result(
    results: Mapping[str, SearchedTrial], total: InferenceResult | None, maximized: str | None
) -> SearchedTrial:
    """Return the result of a trial for the search, over several runs by name. An objective holds if
    it holds in all of them. The statistics are those of `total`, of all runs."""
    if len(results) == 1:
        return next(iter(results.values()))
    evidence = [
        replace(each, name=f"{each.name} of {name}", text=each.text and f"{name}: {each.text}")
        for name, result in results.items()
        for each in result.evidence
    ]
    verdicts = {each.verdict.partition(":")[0]: each.verdict for each in results.values()}
    problems = [_named(name, each.problem) for name, each in results.items() if each.problem]
    return SearchedTrial(
        evidence=tuple(evidence),
        verdict=verdicts[worst(list(verdicts)) or next(iter(verdicts))],
        is_client_bound=any(each.is_client_bound for each in results.values()),
        problem=next(iter(problems), ""),
        statistics=statistics_of(total, maximized) if total is not None else {},
    )


def widest_start(trials: Iterable[Joint]) -> tuple[float, float] | None:
    """Return the maximum time between the first requests of a trial in two runs, and the
    uncertainty of the clocks at that time, in ms; None unless some trial was in two runs."""
    known = [
        (each.start_spread_ms, each.start_uncertainty_ms)
        for each in trials
        if each.start_spread_ms is not None and each.start_uncertainty_ms is not None
    ]
    return max(known, default=None)
