"""Measures several targets from this machine at the same time: a set of processes for each, one
start, one result."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from aiperf_svc.adapters.host.machine import local_facts
from aiperf_svc.config.target_configs import TargetConfig
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.topology import Facts
from aiperf_svc.runner import folders, fork_server, log_tails, manifests, resuming
from aiperf_svc.runner.common_start import CommonStart
from aiperf_svc.runner.environment import LocalRun
from aiperf_svc.runner.fork_server import ForkServer
from aiperf_svc.runner.joint_outcome import finish
from aiperf_svc.runner.joint_runs import JointRun
from aiperf_svc.runner.local import SERVICE_COMMAND, LocalLaunch
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome, failed_outcome
from aiperf_svc.runner.outlets import check_single
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack.board import Board, MemberScreen, make_board
from aiperf_svc.runner.stack.stages import Stage
from aiperf_svc.workloads.shapes import only_shape
from aiperf_svc.workloads.stacks import plan_processes

KEY = "targets"
LEAD_S = 2.0
"""Time from the moment at which all runs are ready to their start: all is on this machine."""


def run_local_targets(
    targets: Sequence[TargetConfig],
    options: RunOptions,
    *,
    parent: Path,
    name: str,
    forks: ForkServer | None,
) -> ExitCode:
    """Run all targets and print the joint result. The services of the first target are forks of
    `forks`, those of each other target of a server of its own; without `forks` each is executed.
    Raises ConfigError if this machine has too few cores, for a folder to resume that is not of
    these targets, and if no folder can be made; EnvironmentProblem if no process started."""
    check_single(options)
    facts = share_of(local_facts(), len(targets))
    if options.resume is not None:
        folder = options.resume
        resuming.prepare_members({folder / each.name: each.config for each in targets})
        if (ended := _ended_before(targets, folder)) is not None:
            return finish("targets", name, folder, ended, options)
    else:
        folder = folders.make_dated_folder(parent, name)
    held = replace(options, run=replace(options.run, is_held=True))
    with ExitStack() as stack:
        others = [stack.enter_context(fork_server.starting()) for _ in targets[1:]]
        runs = asyncio.run(_run_all(targets, held, facts, folder, [forks, *others]))
    return finish("targets", name, folder, runs, options)


def _ended_before(targets: Sequence[TargetConfig], folder: Path) -> list[JointRun] | None:
    """Return the runs of a folder that is resumed if no trial is left; else None."""
    runs: list[JointRun] = []
    for target in targets:
        outcome = resuming.ended_before(folder / target.name, target.config)
        if outcome is None:
            return None
        runs.append(JointRun(name=target.name, where=target.config.endpoint.url, outcome=outcome))
    return runs


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
    targets: Sequence[TargetConfig],
    options: RunOptions,
    facts: Facts,
    folder: Path,
    forks: Sequence[ForkServer | None],
) -> list[JointRun]:
    start = CommonStart([target.name for target in targets], lead_s=LEAD_S)
    names = [target.name for target in targets]
    with Interrupts() as interrupts, make_board(options, names) as board:
        runs = [
            _run(target, options, facts, folder / target.name, interrupts, board, start, server)
            for target, server in zip(targets, forks, strict=True)
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
    forks: ForkServer | None,
) -> RunOutcome:
    """Run one target. Errors become outcomes."""
    screen = board.screen(target.name)
    screen.begin(Stage.RUN)
    try:
        outcome = await _launched(
            target, options, facts, artifacts, interrupts, board, screen, start, forks
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
    forks: ForkServer | None,
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
            topology=plan_processes(only_shape(target.config, "local", KEY), facts),
            options=options,
            private=private,
            artifacts=artifacts,
            logs=artifacts / "logs",
        )
        run.write_files()
        launch = LocalLaunch(run, SERVICE_COMMAND, forks)
        try:
            outcome = await launch.run(
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
