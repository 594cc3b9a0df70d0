"""`aiperf-svc results`."""

import argparse
import os
from pathlib import Path

from aiperf_svc.cli.options import add_cluster_flags
from aiperf_svc.cli.stacks import NamedStack, in_each, stacks_of
from aiperf_svc.domain.errors import ConfigError

DESCRIPTION = """Fetch the results of a stack that is up: after `pulumi up`, or `run --keep`.

Every file is checked by its hash. The stack is not removed; `pulumi destroy` or `aiperf-svc gc
STACK` removes it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the stack, and the folder for the results."""
    parser.add_argument("stack", metavar="STACK", help="Name of a stack.")
    parser.add_argument(
        "--artifact-dir", metavar="DIR", type=Path, default=Path("artifacts"),
        help="Folder for the results. Default: artifacts.",
    )  # fmt: skip
    parser.add_argument(
        "--json", action="store_true", help="Print the results as one JSON object on stdout."
    )
    add_cluster_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Fetch and print."""

    from aiperf_svc.runner import ending, printing, signals
    from aiperf_svc.runner.options import RunOptions
    from aiperf_svc.runner.outcome import RunOutcome
    from aiperf_svc.runner.stack.attached import attach, fetch

    stacks = stacks_of(args.stack, args)
    if stacks[0].kind == "shapes":
        commands = "; ".join(f"aiperf-svc results {stack.stack}" for stack in stacks)
        raise ConfigError(f"{args.stack} has one stack for each shape: {commands}")
    if len(stacks) > 1:
        return _of_all(stacks, args)

    async def fetched(stack: NamedStack) -> RunOutcome:
        where = {"kubeconfig": stack.kubeconfig, "context": stack.context}
        async with attach(stack.stack, environ=os.environ, **where) as attached:
            return await fetch(attached, parent=args.artifact_dir)

    outcome = signals.run(fetched(stacks[0]))
    if outcome.artifacts is not None:
        ending.refresh_manifest(outcome.artifacts)
    printing.print_outcome(outcome, RunOptions(json=args.json))
    return int(outcome.exit_code)


def _of_all(stacks: list[NamedStack], args: argparse.Namespace) -> int:
    from aiperf_svc.adapters.storage import folders
    from aiperf_svc.domain.errors import AiperfError
    from aiperf_svc.runner import signals
    from aiperf_svc.runner.joining import JointRun, finish
    from aiperf_svc.runner.options import RunOptions
    from aiperf_svc.runner.outcome import RunEnd
    from aiperf_svc.runner.stack.attached import attach, fetch
    from aiperf_svc.runner.start_gate import measure_offset

    folder = folders.make_dated_folder(args.artifact_dir, args.stack)

    async def fetched(stack: NamedStack) -> JointRun:
        where = {"kubeconfig": stack.kubeconfig, "context": stack.context}
        async with attach(stack.stack, environ=os.environ, **where) as attached:
            outcome = await fetch(attached, parent=folder, name=stack.name)
            offset = await measure_offset(attached.client)
        return JointRun(name=stack.name, where=stack.where, outcome=outcome, offsets={1: offset})

    found, _ = signals.run(in_each(stacks, fetched))
    runs = [
        JointRun(name=stack.name, where=stack.where, outcome=RunEnd(error=each).outcome())
        if isinstance(each, AiperfError)
        else each
        for stack, each in zip(stacks, found, strict=True)
    ]
    kind = stacks[0].kind
    assert kind != "shapes"
    return int(finish(kind, args.stack, folder, runs, RunOptions(json=args.json)))
