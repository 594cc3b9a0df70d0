"""Checks of a tool: did every step run on every rank, finish and have a result?"""

from aiperf_svc.core.verdict.check_result import Reason, expect_none, graded, run_ended
from aiperf_svc.workloads.step_evidence import StepEvidence, not_retried, place_of, witnessed


def run(e: StepEvidence) -> Reason:
    """Check that the run finished."""
    return run_ended(e.failure)


def steps(e: StepEvidence) -> Reason:
    """Compare the steps that ran with the planned ones."""
    done = sum(not attempt.problem for attempt in e.attempts)
    failed = sum(attempt.has_failed for attempt in e.attempts)
    missing = e.planned - done - failed
    can_stand = e.was_cancelled and e.counted
    why = ": the run was stopped" if e.was_cancelled else ""
    return graded(
        "steps",
        float(missing),
        0.0 if can_stand else (0.0, 0.0),
        unit="steps",
        text=f"{done:,} of {e.planned:,} steps succeeded"
        + (f"; {missing:,} were not run{why}" if missing else ""),
        remedy="let the run finish",
    )


def step_failed(e: StepEvidence) -> Reason:
    """Check the last attempt at each step."""
    failed = [attempt for attempt in e.attempts if attempt.has_failed]
    first = f"; first {failed[0].name}" if failed else ""
    return expect_none(
        "step-failed",
        len(failed),
        unit="steps",
        text=f"failed steps: {len(failed):,}{first}" if failed else "no step failed",
        remedy="check the files of the step under raw/",
    )


def retried(e: StepEvidence) -> Reason | None:
    """Count attempts that failed and were repeated."""
    if not e.config.workload.retries:
        return None
    retried = [attempt for attempt in e.attempts if attempt.was_retried]
    first = f"; first {retried[0].name}: {retried[0].problem}" if retried else ""
    return graded(
        "retried",
        float(len(retried)),
        0.0,
        unit="attempts",
        text=f"failed attempts that were repeated: {len(retried):,}{first}",
        remedy="find out why attempts fail: the numbers are only from those that succeeded",
    )


def exit_codes(e: StepEvidence) -> Reason:
    """Check the exit codes of all commands except those that were stopped."""
    bad = [
        (attempt.name, end.exit_code)
        for attempt in e.attempts
        if not attempt.was_retried
        for end in attempt.ends
        if end.exit_code and not end.was_told_to_end
    ]
    first = ""
    if bad:
        name, code = bad[0]
        end_text = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
        first = f"; first {name}: {end_text}"
    return expect_none(
        "exit-codes",
        len(bad),
        unit="commands",
        text=f"commands that did not exit with 0: {len(bad):,}{first}",
        remedy="check the command's standard error under raw/",
    )


def values(e: StepEvidence) -> Reason | None:
    """Check that each measured step has its headline metric."""
    if not e.headline or not e.counted:
        return None
    without = [a for a in e.counted if e.headline_of(a) not in a.reading.values]
    tag = e.headline_of((without or e.counted)[0])
    return expect_none(
        "values",
        len(without),
        unit="steps",
        text=f"{len(without):,} of {len(e.counted):,} measured steps have no {tag}",
        remedy="check the tool's output under raw/",
    )


def rank_lost(e: StepEvidence) -> Reason:
    """Check that each rank reported each of its steps."""
    silent = (set(a.plan.step.ranks) - {w.rank for w in a.witnesses} for a in not_retried(e))
    lost = sorted(set().union(*silent))
    names = ", ".join(map(str, lost))
    return expect_none(
        "rank-lost",
        len(lost),
        unit="ranks",
        text=f"no report of a step from rank{'s' * (len(lost) > 1)} {names}"
        if lost
        else "every rank reported each of its steps",
        remedy="check the rank's pod or process: its last state, its node, its log",
    )


def oom(e: StepEvidence) -> Reason:
    """Count processes of the ranks that the kernel killed for lack of memory."""
    kills = [(w.oom_kills, w, a) for a, w in witnessed(not_retried(e)) if w.oom_kills]
    count = sum(number for number, _, _ in kills)
    where = f": first on {place_of(kills[0][1])} in {kills[0][2].name}" if kills else ""
    return expect_none(
        "oom",
        count,
        unit="processes",
        text=f"processes of ranks that the kernel killed for lack of memory: {count:,}{where}",
        remedy="raise the memory of the ranks (deployment.pods.rank), or make the workload smaller",
    )
