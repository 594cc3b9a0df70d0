"""`aiperf-svc preview`."""

import argparse
from pathlib import Path

from aiperf_svc.cli.stacks import add_request_flags, committed_request
from aiperf_svc.domain.exit_codes import ExitCode

DESCRIPTION = """Say what a stack will create, ask of the cluster and cost, and what is different
from what is deployed. Needs no cluster.

With --markdown it is a text for a pull request; --against compares with another version of the
stack's file instead, such as the one of the main branch."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The stack, and what to compare it with."""
    parser.add_argument("stack", metavar="STACK", help="name of a stack, or its file")
    parser.add_argument("--markdown", action="store_true", help="for a pull request")
    parser.add_argument("--against", metavar="FILE", type=Path, help="compare with this stack file")
    add_request_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Print the summary."""
    from aiperf_svc.cli.flag_config import read_draft
    from aiperf_svc.config.load_config import stack_path
    from aiperf_svc.runner.stack import preview, summary

    args.config = stack_path(args.stack)
    request = committed_request(read_draft(args, flags=()), args, args.config)
    if args.against is not None:
        compared = preview.compare_with(request, args.against)
    else:
        compared = preview.compare_with_deployed(request)
    if args.markdown:
        print(summary.as_markdown(request.plan, compared), end="")
    else:
        print(summary.as_text(request.plan, compared))
    return int(ExitCode.OK)
