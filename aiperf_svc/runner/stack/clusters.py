"""Runs a stack in several clusters at once: one stack in each, one start, one result."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aiperf_svc.config.clusters import CLUSTERS_KEY, ClusterPlace
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.identity import check_stack_name
from aiperf_svc.runner import folders, signals
from aiperf_svc.runner.common_start import CommonStart
from aiperf_svc.runner.joint_outcome import JointRun, finish
from aiperf_svc.runner.stack import summary, terminal
from aiperf_svc.runner.stack.changes import Comparison
from aiperf_svc.runner.stack.options import StackOptions
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.runner.stack.side_by_side import Member, run_side_by_side


def cluster_members(request: StackRequest, places: Sequence[ClusterPlace]) -> tuple[Member, ...]:
    """Return the stack of each cluster, whose name ends with the cluster's. Raises ConfigError."""
    if request.config.experiment is not None:
        raise ConfigError(
            f"{CLUSTERS_KEY}: the trials of an experiment would not start together; leave out one "
            "of both"
        )
    if request.context or request.kubeconfig:
        raise ConfigError(f"--context, --kubeconfig: {CLUSTERS_KEY} names the clusters")
    settings = dict(request.settings)
    settings["config"] = {k: v for k, v in settings["config"].items() if k != CLUSTERS_KEY}
    members = []
    for place in places:
        stack = member_stack(request.stack, place)
        check_stack_name(stack)
        own = replace(
            request,
            stack=stack,
            settings=settings,
            kubeconfig=place.kubeconfig,
            context=place.context,
            is_held=True,
        )
        members.append(Member(name=place.short, request=own))
    return tuple(members)


def member_stack(stack: str, place: ClusterPlace) -> str:
    """Return the name of the stack in one of the clusters."""
    return f"{stack}-{place.short}"


def run_in_clusters(
    request: StackRequest, places: Sequence[ClusterPlace], options: StackOptions
) -> ExitCode:
    """Run the stack in all clusters and print the joint result. Raises ConfigError and
    EnvironmentProblem for what is wrong before anything is made."""
    members = cluster_members(request, places)
    for member in members:
        member.request.check_secrets()
    with terminal.ignore_closed_stderr():
        if not _is_agreed(members, options):
            return ExitCode.INTERRUPTED
        config = request.config
        folder = folders.make_dated_folder(Path(config.artifacts.dir), config.name)
        return _run(members, options, folder, name=config.name)


def _is_agreed(members: Sequence[Member], options: StackOptions) -> bool:
    """Show what is created in each cluster, and ask once for all of them."""
    first = members[0].request
    names = ", ".join(f"{m.request.stack} in {m.request.context}" for m in members)
    terminal.say(summary.as_text(first.plan, Comparison(base="nothing")))
    terminal.say(f"  in each of {len(members)} clusters: {names}")
    if options.yes or not terminal.can_ask():
        return True
    return signals.run(terminal.ask("Create these stacks?"))


def _run(members: Sequence[Member], options: StackOptions, folder: Path, *, name: str) -> ExitCode:
    members = [
        replace(member, request=replace(member.request, folder=folder / member.name))
        for member in members
    ]
    start = CommonStart(member.name for member in members)
    outcomes = signals.run(run_side_by_side(members, options, limit=len(members), start=start))
    runs = [
        JointRun(
            name=member.name,
            where=member.request.context or "",
            outcome=outcome,
            offset=start.offsets.get(member.name),
        )
        for member, outcome in zip(members, outcomes, strict=True)
    ]
    return finish("clusters", name, folder, runs, options.run)
