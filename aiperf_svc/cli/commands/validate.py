"""`aiperf-svc validate`."""

import argparse
import sys

from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode

DESCRIPTION = """Check stack files and configs without starting anything.

Every mistake of every file is printed; all stacks in stacks/ are checked when none is named."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to check."""
    parser.add_argument(
        "configs", nargs="*", metavar="STACK|FILE", help="name of a stack, or a file"
    )


def run(args: argparse.Namespace) -> int:
    """Check all of them, and say so of each."""
    from aiperf_svc.cli.checks import config_problems
    from aiperf_svc.config.load_config import STACKS, load_stack, refusal, stack_path

    names = args.configs or sorted(str(path) for path in STACKS.glob("Pulumi.*.yaml"))
    if not names:
        raise ConfigError(f"no stack files in {STACKS}/; name a file")
    is_refused = False
    for name in names:
        try:
            problems = config_problems(load_stack(name))
            if problems:
                raise refusal(problems, str(stack_path(name)))
            print(f"{stack_path(name)}: ok")
        except ConfigError as error:
            is_refused = True
            print(f"error: {error}", file=sys.stderr)
    return int(ExitCode.BAD_CONFIG if is_refused else ExitCode.OK)
