"""`aiperf-svc results`."""

import argparse
import os
from pathlib import Path

from aiperf_svc.cli.stacks import add_cluster_flags

DESCRIPTION = """Fetch the results of a stack that is up: after `pulumi up`, or `run --keep`.

Every file is checked by its hash. The stack stays; `pulumi destroy` or `aiperf-svc gc STACK`
removes it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The stack, and where the results go."""
    parser.add_argument("stack", metavar="STACK", help="name of a stack")
    parser.add_argument(
        "--artifact-dir", metavar="DIR", type=Path, default=Path("artifacts"),
        help="folder for the results (default: artifacts)",
    )  # fmt: skip
    parser.add_argument(
        "--json", action="store_true", help="print the results as one JSON object on stdout"
    )
    add_cluster_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Fetch and print."""

    from aiperf_svc.runner import manifests, printing, signals
    from aiperf_svc.runner.options import RunOptions
    from aiperf_svc.runner.outcome import RunOutcome
    from aiperf_svc.runner.stack.attached import attach, fetch

    async def fetched() -> RunOutcome:
        where = {"kubeconfig": args.kubeconfig, "context": args.context}
        async with attach(args.stack, environ=os.environ, **where) as attached:
            return await fetch(attached, parent=args.artifact_dir)

    outcome = signals.run(fetched())
    if outcome.artifacts is not None:
        manifests.refresh(outcome.artifacts)
    printing.print_outcome(outcome, RunOptions(json=args.json))
    return int(outcome.exit_code)
