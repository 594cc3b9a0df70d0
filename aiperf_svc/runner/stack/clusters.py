"""Runs a stack in several clusters at once: one stack in each, one start, one result."""

from collections.abc import Sequence
from dataclasses import replace

from aiperf_svc.config.clusters import CLUSTERS_KEY, ClusterPlace
from aiperf_svc.config.problems import Problem
from aiperf_svc.config.several_targets import problem_of_joint
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.identity import check_stack_name
from aiperf_svc.runner.stack.joint_run import run_members
from aiperf_svc.runner.stack.options import StackOptions
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.runner.stack.side_by_side import Member
from aiperf_svc.workloads.shapes import only_shape


def cluster_members(request: StackRequest, places: Sequence[ClusterPlace]) -> tuple[Member, ...]:
    """Return the stack of each cluster, whose name ends with the cluster's. Raises ConfigError."""
    if request.config.experiment is not None:
        if problem := problem_of_joint(request.config.experiment):
            line = Problem("", problem, names_keys=True).line({})
            raise ConfigError(f"{CLUSTERS_KEY}: {line}")
        only_shape(request.config, "cluster", CLUSTERS_KEY, request.members)
    if request.config.targets:
        raise ConfigError(f"{CLUSTERS_KEY}: for one target in each cluster; leave out `targets`")
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
            run=replace(request.run, is_held=True),
        )
        members.append(Member(name=place.short, where=place.context, request=own))
    return tuple(members)


def member_stack(stack: str, place: ClusterPlace) -> str:
    """Return the name of the stack in one of the clusters."""
    return f"{stack}-{place.short}"


def run_in_clusters(
    request: StackRequest, places: Sequence[ClusterPlace], options: StackOptions
) -> ExitCode:
    """Run the stack in all clusters and print the joint result. Raises ConfigError and
    EnvironmentProblem for what is wrong before anything is made."""
    return run_members("clusters", request.config, cluster_members(request, places), options)
