"""Builds the result of a run from the records of its steps, with the tool's verdict. Pure.

Each check of the verdict compares the tool's output, or the config, with the counters that couriers
read for their ranks. A check without data to compare returns an `info` or no result.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from aiperf_svc.config.workload import AnyWorkloadConfig
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.results.tool_objectives import judge_objectives
from aiperf_svc.core.results.tool_result import (
    MetricResult,
    MetricValue,
    RankFacts,
    RankLayout,
    StepAccounts,
    StepResult,
    StepSeries,
    StepTable,
    StepWitness,
    ToolResult,
)
from aiperf_svc.core.verdict.check_result import (
    RANK_LOST,
    RUN_FAILED,
    STEP_FAILED,
    Reason,
    Severity,
    worst_of,
)
from aiperf_svc.protocol.messages.steps import StepRecord
from aiperf_svc.workloads import completion_checks, rank_checks, traffic_checks
from aiperf_svc.workloads.step_evidence import Attempt, StepEvidence
from aiperf_svc.workloads.steps import PlannedStep, Reading
from aiperf_svc.workloads.tool import ToolWorkload

CHECKS: tuple[Callable[[StepEvidence], Reason | None], ...] = (
    completion_checks.run,
    completion_checks.steps,
    completion_checks.step_failed,
    completion_checks.retried,
    completion_checks.exit_codes,
    completion_checks.values,
    completion_checks.rank_lost,
    completion_checks.oom,
    traffic_checks.interface_bytes,
    rank_checks.step_length,
    rank_checks.tool_versions,
    rank_checks.same_node,
    rank_checks.start_skew,
    rank_checks.late_start,
    rank_checks.throttled,
    rank_checks.cpu_pressure,
    rank_checks.memory_pressure,
    rank_checks.stolen,
    traffic_checks.drops,
    traffic_checks.retransmits,
    rank_checks.repetitions,
    rank_checks.courier_load,
)
"""All checks, in the order of the table in docs/workloads.md."""
_CAUSES = (
    ("run", RUN_FAILED),
    ("rank-lost", RANK_LOST),
    ("oom", STEP_FAILED),
    ("step-failed", STEP_FAILED),
    ("exit-codes", STEP_FAILED),
    ("interface-bytes", "bytes-differ"),
    ("throttled", "rank-starved"),
)
"""Check to cause. The first invalid check determines the cause."""


class FinishedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known at the end of a run's steps."""

    run_id: str
    version: str
    """Version of this program."""
    config: AnyWorkloadConfig
    records: tuple[StepRecord, ...]
    """One for each attempt, in any order."""
    planned: int
    """Steps of the run, repetitions included; 0 if it ended before they were known."""
    ranks: tuple[RankFacts, ...]
    is_local: bool
    """Whether the ranks were processes of this machine."""
    failure: str = ""
    """Why the run failed; empty if it did not."""
    was_cancelled: bool = False
    cli_command: str = ""
    start_wall_ns: int
    end_wall_ns: int
    topology: RankLayout = RankLayout()


def summarise_steps(workload: ToolWorkload[Any], finished: FinishedSteps) -> ToolResult:
    """Return the result of a run. Failed attempts are kept as steps. Metrics, series and tables use
    the last successful attempt at each measured step."""
    config = finished.config
    attempts = attempts_of(finished.records)
    infos = workload.metrics_of(config)
    evidence = StepEvidence(
        config=config,
        attempts=attempts,
        planned=finished.planned,
        is_local=finished.is_local,
        failure=finished.failure,
        was_cancelled=finished.was_cancelled,
        headline=infos[0].tag if infos else "",
    )
    counted = evidence.counted
    readings = [attempt.reading for attempt in counted]
    applied = (check(evidence) for check in CHECKS)
    checks = (*filter(None, applied), *workload.checks(config, readings))
    invalid = {each.check for each in checks if each.severity is Severity.INVALID}
    metrics = _metrics(infos, counted)
    tools = (tool for each in readings for tool in (each.tool, *each.tools.values()))
    return ToolResult(
        run_id=finished.run_id,
        name=config.name,
        workload=workload.kind,
        version=finished.version,
        cli_command=finished.cli_command,
        start_wall_ns=finished.start_wall_ns,
        end_wall_ns=finished.end_wall_ns,
        failure=finished.failure,
        was_cancelled=finished.was_cancelled,
        verdict=worst_of(checks),
        cause=next((cause for check, cause in _CAUSES if check in invalid), ""),
        checks=checks,
        slo=judge_objectives(config.slo, infos, metrics),
        accounts=_accounts(finished.planned, attempts),
        metrics=metrics,
        series=tuple(
            StepSeries(**_step_fields(attempt), series=series)
            for attempt in counted
            for series in attempt.reading.series
        ),
        tables=tuple(
            StepTable(**_step_fields(attempt), table=table)
            for attempt in counted
            for table in attempt.reading.tables
        ),
        facts=_facts(readings),
        tools=tuple(dict.fromkeys(filter(None, tools))),
        ranks=finished.ranks,
        steps=tuple(map(_step, attempts)),
        config=config.model_dump(mode="json", by_alias=True),
        topology=finished.topology,
    )


def attempts_of(records: Iterable[StepRecord]) -> tuple[Attempt, ...]:
    """Return the attempts of a run in order. An error in a tool's output is a problem of the
    attempt."""
    planned = [(msgspec.json.decode(r.plan, type=PlannedStep), r) for r in records]
    planned.sort(key=lambda pair: pair[0].number)
    last = {_step_key(plan): plan.attempt for plan, _ in planned}
    return tuple(
        _attempt(plan, record, was_retried=plan.attempt < last[_step_key(plan)])
        for plan, record in planned
    )


def _step_key(plan: PlannedStep) -> tuple[str, int]:
    return plan.step.name, plan.repetition


def _attempt(plan: PlannedStep, record: StepRecord, *, was_retried: bool) -> Attempt:
    reading, problem = Reading(values={}), record.problem
    if record.reading:
        try:
            reading = msgspec.json.decode(record.reading, type=Reading)
            problem = problem or "; ".join(reading.errors)
        except msgspec.DecodeError as error:
            # JSON cannot represent NaN and infinity.
            problem = problem or f"its reading has no usable numbers: {error}"
    elif plan.step.is_measured:
        problem = problem or "its output was not read"
    return Attempt(
        plan=plan,
        problem=problem,
        was_retried=was_retried and bool(problem),
        reading=reading,
        witnesses=record.witnesses,
        ends=record.ends,
    )


def _metrics(infos: Sequence[MetricInfo], counted: Sequence[Attempt]) -> tuple[MetricResult, ...]:
    """Return the metrics that have values, in the workload's order."""
    values: dict[str, list[MetricValue]] = defaultdict(list)
    for attempt in counted:
        for tag, value in attempt.reading.values.items():
            values[tag].append(MetricValue(**_step_fields(attempt), value=value))
    return tuple(MetricResult.of(info, values[info.tag]) for info in infos if info.tag in values)


def _step_fields(attempt: Attempt) -> dict[str, Any]:
    """Return the fields that identify the step of a value."""
    step = attempt.plan.step
    return {"step": step.name, "repetition": attempt.plan.repetition, "labels": step.labels}


def _accounts(planned: int, attempts: Sequence[Attempt]) -> StepAccounts:
    completed = sum(not attempt.problem for attempt in attempts)
    failed = sum(attempt.has_failed for attempt in attempts)
    return StepAccounts(
        planned=planned,
        completed=completed,
        failed=failed,
        lost=max(planned - completed - failed, 0),
        retried=sum(attempt.was_retried for attempt in attempts),
    )


def _facts(readings: Iterable[Reading]) -> dict[str, str]:
    """Return the facts by name, with all texts if steps differ."""
    found: dict[str, dict[str, None]] = {}
    for reading in readings:
        for name, text in reading.facts.items():
            found.setdefault(name, {})[text] = None
    return {name: ", ".join(texts) for name, texts in found.items()}


def _step(attempt: Attempt) -> StepResult:
    plan, reading = attempt.plan, attempt.reading
    starts = [w.started_wall_ns for w in attempt.witnesses if w.started_wall_ns]
    due = max((w.due_wall_ns for w in attempt.witnesses), default=0)
    ended = max((w.ended_wall_ns for w in attempt.witnesses), default=0)
    return StepResult(
        number=plan.number,
        name=plan.step.name,
        repetition=plan.repetition,
        attempt=plan.attempt,
        folder=plan.folder,
        is_measured=plan.step.is_measured,
        labels=plan.step.labels,
        problem=attempt.problem,
        was_retried=attempt.was_retried,
        due_wall_ns=due,
        started_wall_ns=max(starts, default=0),
        ended_wall_ns=ended,
        duration_s=attempt.length_ns / 1e9,
        expected_s=plan.step.expected_ns / 1e9,
        start_skew_ms=attempt.skew_ns / 1e6 if attempt.skew_ns is not None else None,
        values=reading.values,
        tools=reading.tools,
        exit_codes=tuple(end.exit_code for end in attempt.ends),
        witnesses=tuple(StepWitness(**msgspec.structs.asdict(each)) for each in attempt.witnesses),
    )
