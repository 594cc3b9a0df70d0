"""Measures several targets from this machine at the same time: a set of processes for each, one
start, one result."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from aiperf_svc.adapters.host.machine import local_facts
from aiperf_svc.any_kind.planning import plan_any
from aiperf_svc.any_kind.shapes import only_shape
from aiperf_svc.any_kind.target_configs import TargetConfig
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.topology import Facts
from aiperf_svc.runner import folders, log_tails, manifests, resuming
from aiperf_svc.runner.common_start import CommonStart
from aiperf_svc.runner.environment import LocalRun
from aiperf_svc.runner.joint_outcome import finish
from aiperf_svc.runner.joint_runs import JointRun
from aiperf_svc.runner.local import SERVICE_COMMAND, LocalLaunch
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome, failed_outcome
from aiperf_svc.runner.outlets import check_single
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack.board import Board, MemberScreen, make_board
from aiperf_svc.runner.stack.stages import Stage

KEY = "targets"
LEAD_S = 2.0
"""Time from the moment at which all runs are ready to their start: all is on this machine."""


def run_local_targets(
    targets: Sequence[TargetConfig], options: RunOptions, *, parent: Path, name: str
) -> ExitCode:
    """Run all targets and print the joint result. Raises ConfigError if this machine has too few
    cores, or for a folder to resume that is not of these targets; EnvironmentProblem if no folder
    can be made."""
    check_single(options)
    facts = share_of(local_facts(), len(targets))
    if options.resume is not None:
        folder = options.resume
        resuming.prepare_members({folder / each.name: each.config for each in targets})
    else:
        folder = folders.make_dated_folder(parent, name)
    runs = asyncio.run(_run_all(targets, replace(options, is_held=True), facts, folder))
    return finish("targets", name, folder, runs, options)


def share_of(facts: Facts, count: int) -> Facts:
    """Return what each of `count` sets of processes has of this machine. Raises ConfigError if that
    is less than a core: they would measure each other."""
    if facts.cores < count:
        raise ConfigError(
            f"targets: {count} runs at the same time need {count} cores, and this machine has "
            f"{facts.cores:g}; run them on a cluster, or let one run send to all of them in turn "
            "(endpoint.urls)"
        )
    memory = facts.memory_bytes // count
    return msgspec.structs.replace(facts, cores=facts.cores / count, memory_bytes=memory)


async def _run_all(
    targets: Sequence[TargetConfig], options: RunOptions, facts: Facts, folder: Path
) -> list[JointRun]:
    start = CommonStart([target.name for target in targets], lead_s=LEAD_S)
    names = [target.name for target in targets]
    with Interrupts() as interrupts, make_board(options, names) as board:
        runs = [
            _run(target, options, facts, folder / target.name, interrupts, board, start)
            for target in targets
        ]
        outcomes = await asyncio.gather(*runs)
    return [
        JointRun(
            name=target.name,
            where=target.config.endpoint.url,
            outcome=outcome,
            offsets=start.offsets[target.name],
        )
        for target, outcome in zip(targets, outcomes, strict=True)
    ]


async def _run(
    target: TargetConfig,
    options: RunOptions,
    facts: Facts,
    artifacts: Path,
    interrupts: Interrupts,
    board: Board,
    start: CommonStart,
) -> RunOutcome:
    """Run one target. Errors become outcomes."""
    screen = board.screen(target.name)
    screen.begin(Stage.RUN)
    try:
        outcome = await _launched(
            target, options, facts, artifacts, interrupts, board, screen, start
        )
    except Exception as error:
        # The others must go on to their ends.
        outcome = failed_outcome(error)
        screen.say(f"error: {outcome.reason}")
    start.leave(target.name)
    screen.end(outcome)
    return outcome


async def _launched(
    target: TargetConfig,
    options: RunOptions,
    facts: Facts,
    artifacts: Path,
    interrupts: Interrupts,
    board: Board,
    screen: MemberScreen,
    start: CommonStart,
) -> RunOutcome:
    @contextmanager
    def counting() -> Iterator[Interrupts]:
        yield interrupts

    if options.resume is None:
        folders.make_folder(artifacts)
    else:
        (artifacts / "logs").mkdir(exist_ok=True)
        options = replace(options, resume=artifacts)
    with folders.private_folder() as private:
        run = LocalRun(
            config=target.config,
            topology=plan_any(only_shape(target.config, "local", KEY), facts),
            options=options,
            private=private,
            artifacts=artifacts,
            logs=artifacts / "logs",
        )
        run.write_files()
        launch = LocalLaunch(run, SERVICE_COMMAND, None)
        try:
            outcome = await launch.run(
                "",
                counting=counting,
                show=lambda _: board.display(screen),
                give_start=lambda api, say: start.give(target.name, api, say),
            )
        finally:
            log_tails.remove_empty(run.logs)
            is_empty = folders.remove_if_empty(artifacts)
    if is_empty:
        return replace(outcome, artifacts=None)
    manifests.refresh(artifacts)
    return outcome
