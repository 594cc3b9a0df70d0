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
    from aiperf_svc.protocol.messages import RunState
    from aiperf_svc.runner import signals
    from aiperf_svc.runner.stack.attached import attach

    async def cancel() -> str:
        where = {"kubeconfig": args.kubeconfig, "context": args.context}
        async with attach(args.stack, environ=os.environ, **where) as attached:
            status = await attached.client.status()
            if RunState(status.state).is_final:
                return f"the run is over ({status.state}): there is nothing to stop"
            await attached.client.cancel("cancelled by `aiperf-svc cancel`")
            return "the run stops and keeps what it has measured"

    print(f"stack {args.stack}: {signals.run(cancel())}", file=sys.stderr)
    return int(ExitCode.OK)
