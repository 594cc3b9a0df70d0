"""Measures several targets from a cluster at the same time: a stack for each, one start, one
result."""

from dataclasses import replace

from aiperf_svc.config.target_configs import TargetConfig, target_configs
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.identity import check_stack_name
from aiperf_svc.runner.stack.joint_run import run_members
from aiperf_svc.runner.stack.options import StackOptions
from aiperf_svc.runner.stack.request import StackRequest, secrets_from
from aiperf_svc.runner.stack.side_by_side import Member, check_namespace
from aiperf_svc.workloads.shapes import only_shape


def run_stack_targets(request: StackRequest, options: StackOptions) -> ExitCode:
    """Run a stack for each target and print the joint result. Raises ConfigError and
    EnvironmentProblem for what is wrong before anything is made."""
    return run_members("targets", request.config, target_members(request), options)


def target_members(request: StackRequest) -> list[Member]:
    """Return the stack of each target, whose name ends with the target's; none without `targets`.
    Raises ConfigError."""
    found = target_configs(request.config)
    if found:
        check_namespace(request.config.deployment, "targets")
    return [_member(request, target) for target in found]


def _member(request: StackRequest, target: TargetConfig) -> Member:
    stack = f"{request.stack}-{target.name}"
    check_stack_name(stack)
    own = replace(
        request,
        stack=stack,
        config=target.config,
        secrets={**secrets_from(target.config, request.environ), **request.secrets},
        run=replace(request.run, is_held=True),
    )
    only_shape(own.config, "cluster", "targets", own.members)
    return Member(name=target.name, where=own.plan.inference.endpoint.url, request=own)
