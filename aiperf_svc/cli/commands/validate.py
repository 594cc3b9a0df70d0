"""`aiperf-svc validate`."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode

if TYPE_CHECKING:
    from aiperf_svc.config.workload import Config

DESCRIPTION = """Check stack files and configs without starting anything.

All mistakes of all files are printed. For a stack file, these include everything that `run` refuses
without contacting a cluster. Without a name, all stacks in stacks/ are checked."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the files to check."""
    parser.add_argument(
        "configs", nargs="*", metavar="STACK|FILE", help="Name of a stack, or a file."
    )


def run(args: argparse.Namespace) -> int:
    """Check each of them, and print the result."""
    from aiperf_svc.cli.checks import checked_trials, cluster_problems, config_problems
    from aiperf_svc.config.load_config import STACKS, is_stack_file, stack_path
    from aiperf_svc.workloads.registry import load_benchmark

    names = args.configs or sorted(str(path) for path in STACKS.glob("Pulumi.*.yaml"))
    if not names:
        raise ConfigError(f"no stack files in {STACKS}/; name a file")
    is_refused = False
    for name in names:
        try:
            path = stack_path(name)
            config, is_stack = load_benchmark(path), is_stack_file(path)
            checks = cluster_problems if is_stack else config_problems
            checked_trials(config, checks, source=str(path))
            if is_stack:
                _check_stack(path, config)
            print(f"{stack_path(name)}: ok")
        except ConfigError as error:
            is_refused = True
            print(f"error: {error}", file=sys.stderr)
    return int(ExitCode.BAD_CONFIG if is_refused else ExitCode.OK)


def _check_stack(path: Path, config: "Config") -> None:
    """Plan the stack as `run` does. Raises ConfigError."""
    from aiperf_svc.adapters.pulumi.project import read_settings, stack_name
    from aiperf_svc.config.clusters import read_clusters
    from aiperf_svc.plan.identity import check_stack_name
    from aiperf_svc.runner.stack.members import expand_requests, member_requests
    from aiperf_svc.runner.stack.request import StackRequest

    stack, settings = stack_name(path), read_settings(path)
    places = read_clusters(settings, str(path))
    try:
        check_stack_name(stack)
        request = StackRequest(
            stack=stack,
            config=config,
            settings=settings,
            environ={},
        )
        requests = member_requests(request, places)
        expand_requests(requests)
        for each in requests.values():
            _ = each.plan
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
