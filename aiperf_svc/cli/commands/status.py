"""`aiperf-svc status`."""

import argparse
import os

from aiperf_svc.cli.clusters import StackPlace, in_each, places_of
from aiperf_svc.cli.stacks import add_cluster_flags
from aiperf_svc.domain.exit_codes import ExitCode

DESCRIPTION = """Say how far the run of a stack is.

With --wait a line is printed at every new state until the run is over."""
POLL_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The stack, and for how long to look."""
    parser.add_argument("stack", metavar="STACK", help="name of a stack")
    parser.add_argument("--wait", action="store_true", help="until the run is over")
    parser.add_argument("--json", action="store_true", help="print the status as JSON")
    add_cluster_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Look, and print."""

    import msgspec

    from aiperf_svc.adapters.results_api.status import Status
    from aiperf_svc.domain.foreign_text import one_line
    from aiperf_svc.protocol.run_states import RunState
    from aiperf_svc.runner import signals
    from aiperf_svc.runner.display import final_line, plain_line
    from aiperf_svc.runner.stack.attached import attach

    def show(place: StackPlace, status: Status) -> None:
        if args.json:
            named = {"name": place.name} if place.name else {}
            content = {**named, **msgspec.to_builtins(status)}
            print(msgspec.json.encode(content).decode(), flush=True)
            return
        line = final_line(status) if status.is_settled else plain_line(status)
        print(one_line(place.line(line)), flush=True)
        if status.is_settled and status.results_ready and not place.name:
            print(f"results: aiperf-svc results {args.stack}", flush=True)

    async def look(place: StackPlace) -> bool:
        where = {"kubeconfig": place.kubeconfig, "context": place.context}
        async with attach(place.stack, environ=os.environ, **where) as attached:
            status = await attached.client.status()
            show(place, status)
            while args.wait and not status.is_settled:
                before = status.state
                status = await attached.client.status(after=status.number, timeout_s=POLL_S)
                if status.state != before or status.is_settled:
                    show(place, status)
            return status.state == RunState.FAILED

    failed, code = signals.run(in_each(places_of(args.stack, args), look))
    return int(ExitCode.BENCHMARK_FAILED if True in failed else code)
