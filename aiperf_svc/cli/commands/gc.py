"""`aiperf-svc gc`."""

import argparse
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from aiperf_svc.cli.options import add_cluster_flags
from aiperf_svc.cli.stacks import stacks_of

if TYPE_CHECKING:
    from aiperf_svc.runner.stack.garbage import Collected, GarbageRequest

DESCRIPTION = """Remove what earlier runs left: objects found by label, then the state.

Without names, it removes the stacks that runs of this machine left in any cluster, and all stacks
whose time to live has expired. Other stacks are listed and not touched. --context or --kubeconfig
limits the search to one cluster. A stack in use by another process is never removed without
--take-over. --yes is required if there is no terminal for the question."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose the stacks."""
    parser.add_argument("stacks", nargs="*", metavar="STACK", help="Name of a stack.")
    parser.add_argument("--yes", "-y", action="store_true", help="Remove without asking.")
    parser.add_argument(
        "--force",
        action="store_true",
        help="Proceed although another machine holds the lock of the state, or the state cannot be "
        "read.",
    )
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="Also remove stacks in use. Their runs fail, and report who removed the stack.",
    )
    parser.add_argument(
        "--namespace",
        "-n",
        metavar="NS",
        help="Namespace to search, if this user may not list all namespaces.",
    )
    parser.add_argument("--json", action="store_true", help="Print the result as JSON.")
    add_cluster_flags(parser)


async def _all(requests: "list[GarbageRequest]") -> "Collected":
    """Remove what each request names, one cluster after the other. A cluster that cannot be reached
    is reported, and the others follow."""
    from aiperf_svc.domain.errors import EnvironmentProblem
    from aiperf_svc.runner.stack.garbage import Collected, collect_everywhere, collect_garbage

    if not any((requests[0].stacks, requests[0].context, requests[0].kubeconfig)):
        return await collect_everywhere(requests[0])
    done = Collected()
    for request in requests:
        try:
            await collect_garbage(request, done)
        except EnvironmentProblem as error:
            if len(requests) == 1:
                raise
            done.not_reached |= dict.fromkeys(request.stacks, str(error))
    return done


def run(args: argparse.Namespace) -> int:
    """Remove, and print what is left."""
    import json

    from aiperf_svc.adapters.terminal import output
    from aiperf_svc.runner import signals
    from aiperf_svc.runner.stack.garbage import Collected, GarbageRequest

    stacks = [stack for name in args.stacks for stack in stacks_of(name, args)]
    request = GarbageRequest(
        stacks=tuple(stack.stack for stack in stacks if not stack.name),
        environ=dict(os.environ),
        kubeconfig=args.kubeconfig,
        context=args.context,
        namespace=args.namespace,
        force=args.force,
        take_over=args.take_over,
        yes=args.yes,
    )
    elsewhere = [
        replace(request, stacks=(stack.stack,), kubeconfig=stack.kubeconfig, context=stack.context)
        for stack in stacks
        if stack.name
    ]
    requests = [request, *elsewhere] if request.stacks or not elsewhere else elsewhere
    with output.ignore_closed_stderr():
        done = signals.run(_all(requests))
    if done.folders:
        print(f"removed: temporary files of killed runs, {done.folders} folders", file=sys.stderr)
    for name, found in done.removed.items():
        print(f"removed: {name}; {found}", file=sys.stderr)
    for line in done.not_touched:
        print(f"not touched: {line}", file=sys.stderr)
    for name in done.unknown:
        where = "in this cluster, in the state and in this machine's records"
        print(f"nothing to remove: there is no stack {name} {where}", file=sys.stderr)
    for why in done.unverified.values():
        print(f"error: {why}", file=sys.stderr)
    for name, why in done.refused.items():
        print(f"error: {name}: {why}", file=sys.stderr)
    for name, why in done.not_reached.items():
        print(f"error: {name}: it is unknown whether anything is left: {why}", file=sys.stderr)
    for name, left in done.left.items():
        print("\n  ".join([f"left of {name}:", *left]), file=sys.stderr)
        if name in done.not_checked:
            missed = ", ".join(done.not_checked[name])
            print(f"{name}: not checked: {missed}", file=sys.stderr)
    if args.json:
        content = {
            "exit_code": int(done.exit_code),
            "removed": list(done.removed),
            "left": done.left,
            "unverified": done.unverified,
            "refused": done.refused,
            "not_reached": done.not_reached,
            "not_checked": done.not_checked,
            "not_touched": done.not_touched,
            "unknown": done.unknown,
            "folders": done.folders,
        }
        print(json.dumps(content))
    elif done == Collected(not_touched=done.not_touched, clusters=done.clusters):
        print("nothing to remove", file=sys.stderr)
    return int(done.exit_code)
