"""`aiperf-svc status`."""

import argparse
import os

from aiperf_svc.cli.options import add_cluster_flags
from aiperf_svc.cli.stacks import NamedStack, in_each, stacks_of
from aiperf_svc.domain.exit_codes import ExitCode

DESCRIPTION = """Show the progress of the run of a stack.

With --wait, a line is printed at every new state until the run has ended."""
POLL_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the stack, and the flags of the output."""
    parser.add_argument("stack", metavar="STACK", help="Name of a stack.")
    parser.add_argument("--wait", action="store_true", help="Wait until the run has ended.")
    parser.add_argument("--json", action="store_true", help="Print the status as JSON.")
    add_cluster_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Fetch the status and print it."""
    import msgspec

    from aiperf_svc.adapters.results_api.status import Status
    from aiperf_svc.adapters.terminal.status_text import final_line, plain_line
    from aiperf_svc.domain.foreign_text import one_line
    from aiperf_svc.protocol.run_states import RunState
    from aiperf_svc.runner import signals
    from aiperf_svc.runner.stack.attached import attach

    def show(stack: NamedStack, status: Status) -> None:
        if args.json:
            named = {"name": stack.name} if stack.name else {}
            content = {**named, **msgspec.to_builtins(status)}
            print(msgspec.json.encode(content).decode(), flush=True)
            return
        line = final_line(status) if status.is_settled else plain_line(status)
        print(one_line(stack.line(line)), flush=True)
        if status.is_settled and status.results_ready and not stack.name:
            print(f"results: aiperf-svc results {args.stack}", flush=True)

    async def look(stack: NamedStack) -> bool:
        where = {"kubeconfig": stack.kubeconfig, "context": stack.context}
        async with attach(stack.stack, environ=os.environ, **where) as attached:
            status = await attached.client.status()
            show(stack, status)
            while args.wait and not status.is_settled:
                before = status.state
                status = await attached.client.status(after=status.number, timeout_s=POLL_S)
                if status.state != before or status.is_settled:
                    show(stack, status)
            return status.state == RunState.FAILED

    failed, code = signals.run(in_each(stacks_of(args.stack, args), look))
    return int(ExitCode.BENCHMARK_FAILED if True in failed else code)
