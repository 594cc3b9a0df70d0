"""`aiperf-svc cancel`."""

import argparse
import os
import sys

from aiperf_svc.cli.clusters import NamedStack, in_each, stacks_of
from aiperf_svc.cli.stacks import add_cluster_flags

DESCRIPTION = """Stop the run of a stack that is up. What was measured is kept: `aiperf-svc results`
fetches it. The stack stays."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The stack."""
    parser.add_argument("stack", metavar="STACK", help="name of a stack")
    add_cluster_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Ask for the stop."""
    from aiperf_svc.protocol.run_states import RunState
    from aiperf_svc.runner import signals
    from aiperf_svc.runner.stack.attached import attach

    async def cancel(stack: NamedStack) -> None:
        where = {"kubeconfig": stack.kubeconfig, "context": stack.context}
        async with attach(stack.stack, environ=os.environ, **where) as attached:
            status = await attached.client.status()
            if RunState(status.state).is_final:
                said = f"the run is over ({status.state}): there is nothing to stop"
            else:
                await attached.client.cancel("cancelled by `aiperf-svc cancel`")
                said = "the run stops and keeps what it has measured"
        print(f"stack {stack.stack}: {said}", file=sys.stderr)

    _, code = signals.run(in_each(stacks_of(args.stack, args), cancel))
    return int(code)
