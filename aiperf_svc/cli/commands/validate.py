"""`aiperf-svc validate`."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode

if TYPE_CHECKING:
    from aiperf_svc.config.models import BenchmarkConfig

DESCRIPTION = """Check stack files and configs without starting anything.

Every mistake of every file is printed, of a stack file also what `run` refuses before it looks at
a cluster; all stacks in stacks/ are checked when none is named."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the files to check."""
    parser.add_argument(
        "configs", nargs="*", metavar="STACK|FILE", help="name of a stack, or a file"
    )


def run(args: argparse.Namespace) -> int:
    """Check all of them, and say so of each."""
    from aiperf_svc.cli.checks import config_problems
    from aiperf_svc.cli.stacks import cluster_problems
    from aiperf_svc.config.load_config import (
        STACKS,
        is_stack_file,
        load_stack,
        refusal,
        stack_path,
    )

    names = args.configs or sorted(str(path) for path in STACKS.glob("Pulumi.*.yaml"))
    if not names:
        raise ConfigError(f"no stack files in {STACKS}/; name a file")
    is_refused = False
    for name in names:
        try:
            path, config = stack_path(name), load_stack(name)
            is_stack = is_stack_file(path)
            problems = config_problems(config) + (cluster_problems(config) if is_stack else [])
            if problems:
                raise refusal(problems, str(path))
            if is_stack:
                _check_stack(path, config)
            print(f"{stack_path(name)}: ok")
        except ConfigError as error:
            is_refused = True
            print(f"error: {error}", file=sys.stderr)
    return int(ExitCode.BAD_CONFIG if is_refused else ExitCode.OK)


def _check_stack(path: Path, config: "BenchmarkConfig") -> None:
    """Plan the stack as `run` does. Raises ConfigError."""
    from aiperf_svc.plan.identity import check_stack_name
    from aiperf_svc.runner.stack.project import read_settings, stack_name
    from aiperf_svc.runner.stack.request import StackRequest

    stack = stack_name(path)
    try:
        check_stack_name(stack)
        request = StackRequest(
            stack=stack, config=config, benchmark={}, settings=read_settings(path), environ={}
        )
        _ = request.plan
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
