"""`aiperf-svc cancel`."""

import argparse
import os
import sys

from aiperf_svc.cli.stacks import add_cluster_flags
from aiperf_svc.domain.exit_codes import ExitCode

DESCRIPTION = """Stop the run of a stack that is up. What was measured is kept: `aiperf-svc results`
fetches it. The stack stays."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The stack."""
    parser.add_argument("stack", metavar="STACK", help="name of a stack")
    add_cluster_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Ask for the stop."""

    from aiperf_svc.runner import signals
    from aiperf_svc.runner.stack.attached import attach

    async def cancel() -> None:
        where = {"kubeconfig": args.kubeconfig, "context": args.context}
        async with attach(args.stack, environ=os.environ, **where) as attached:
            await attached.client.cancel("cancelled by `aiperf-svc cancel`")

    signals.run(cancel())
    print(f"stack {args.stack}: the run stops and keeps what it has measured", file=sys.stderr)
    return int(ExitCode.OK)
