"""`aiperf-svc cancel`."""

import argparse
import os
import sys

from aiperf_svc.cli.options import add_cluster_flags
from aiperf_svc.cli.stacks import NamedStack, in_each, stacks_of

DESCRIPTION = """Stop the run of a stack that is up. Results so far are kept; `aiperf-svc results`
fetches them. The stack is not removed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the stack."""
    parser.add_argument("stack", metavar="STACK", help="Name of a stack.")
    add_cluster_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Stop the run."""
    from aiperf_svc.protocol.run_states import RunState
    from aiperf_svc.runner import signals
    from aiperf_svc.runner.stack.attached import attach

    async def cancel(stack: NamedStack) -> None:
        where = {"kubeconfig": stack.kubeconfig, "context": stack.context}
        async with attach(stack.stack, environ=os.environ, **where) as attached:
            status = await attached.client.status()
            if RunState(status.state).is_final:
                text = f"the run has already ended ({status.state})"
            else:
                await attached.client.cancel("cancelled by `aiperf-svc cancel`")
                text = "the run is stopping; results so far are kept"
        print(f"stack {stack.stack}: {text}", file=sys.stderr)

    _, code = signals.run(in_each(stacks_of(args.stack, args), cancel))
    return int(code)
