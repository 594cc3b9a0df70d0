"""Runs several stacks with one start, from the question to the joint result."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from aiperf_svc.config.workload import Config
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner import folders, signals
from aiperf_svc.runner.common_start import CommonStart
from aiperf_svc.runner.joint_outcome import finish
from aiperf_svc.runner.joint_runs import JointRun
from aiperf_svc.runner.outlets import check_single
from aiperf_svc.runner.stack import summary, terminal
from aiperf_svc.runner.stack.changes import Comparison
from aiperf_svc.runner.stack.options import StackOptions
from aiperf_svc.runner.stack.shape_lines import changed_keys
from aiperf_svc.runner.stack.side_by_side import Member, run_side_by_side
from aiperf_svc.runner.stack.stack_outcome import NOTHING_MADE
from aiperf_svc.runner.stack.turns import Turns


def run_members(
    kind: Literal["clusters", "targets"],
    config: Config,
    members: Sequence[Member],
    options: StackOptions,
) -> ExitCode:
    """Run held stacks at once and print their joint result, which is kept in a new folder as
    `config` says. Raises ConfigError and EnvironmentProblem for what is wrong before anything is
    made."""
    check_single(options.run)
    for member in members:
        member.request.check_prerequisites()
    with terminal.ignore_closed_stderr():
        if not _is_agreed(kind, members, options):
            terminal.say(NOTHING_MADE)
            return ExitCode.INTERRUPTED
        folder = folders.make_dated_folder(Path(config.artifacts.dir), config.name)
        runs = _run(members, options, folder)
    return finish(kind, config.name, folder, runs, options.run)


def _is_agreed(kind: str, members: Sequence[Member], options: StackOptions) -> bool:
    """Show what each stack creates, and ask once for all of them."""
    terminal.say(summary.as_text(members[0].request.plan, Comparison(base="nothing")))
    terminal.say(f"  {same_for(kind, members)}")
    if options.yes or not terminal.can_ask():
        return True
    return signals.run(terminal.ask("Create these stacks?"))


def same_for(kind: str, members: Sequence[Member]) -> str:
    """Return which stacks are made, and how each differs from the first one."""
    first = members[0].request.plan
    lines = [f"the same for each of {len(members)} {kind}, but for what is named:"]
    for member in members:
        plan = member.request.plan
        what = summary.totals_line(plan)
        lines.append(f"    {member.request.stack} ({member.where}); {what}")
        if kind == "targets":
            changed = [each for each in changed_keys(first, plan) if each.key != "endpoint.url"]
            lines += [f"      {each}" for each in changed]
    return "\n".join(lines)


def _run(members: Sequence[Member], options: StackOptions, folder: Path) -> list[JointRun]:
    placed = [
        replace(member, request=replace(member.request, folder=folder / member.name))
        for member in members
    ]
    start = CommonStart(member.name for member in members)
    outcomes = signals.run(run_side_by_side(placed, options, turns=Turns(len(placed)), start=start))
    return [
        JointRun(
            name=member.name,
            where=member.where,
            outcome=outcome,
            offsets=start.offsets[member.name],
        )
        for member, outcome in zip(members, outcomes, strict=True)
    ]
