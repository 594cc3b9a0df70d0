"""`aiperf-svc results`."""

import argparse
import os
from pathlib import Path

from aiperf_svc.cli.clusters import StackPlace, in_each, places_of
from aiperf_svc.cli.stacks import add_cluster_flags
from aiperf_svc.domain.errors import ConfigError

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

    places = places_of(args.stack, args)
    if places[0].kind == "shapes":
        commands = "; ".join(f"aiperf-svc results {place.stack}" for place in places)
        raise ConfigError(f"stack {args.stack} is one for each shape: {commands}")
    if len(places) > 1:
        return _of_all(places, args)

    async def fetched(place: StackPlace) -> RunOutcome:
        where = {"kubeconfig": place.kubeconfig, "context": place.context}
        async with attach(place.stack, environ=os.environ, **where) as attached:
            return await fetch(attached, parent=args.artifact_dir)

    outcome = signals.run(fetched(places[0]))
    if outcome.artifacts is not None:
        manifests.refresh(outcome.artifacts)
    printing.print_outcome(outcome, RunOptions(json=args.json))
    return int(outcome.exit_code)


def _of_all(places: list[StackPlace], args: argparse.Namespace) -> int:
    from aiperf_svc.domain.errors import AiperfError
    from aiperf_svc.runner import folders, signals
    from aiperf_svc.runner.common_start import measure_offset
    from aiperf_svc.runner.joint_outcome import finish
    from aiperf_svc.runner.joint_runs import JointRun
    from aiperf_svc.runner.options import RunOptions
    from aiperf_svc.runner.outcome import failed_outcome
    from aiperf_svc.runner.stack.attached import attach, fetch

    folder = folders.make_dated_folder(args.artifact_dir, args.stack)

    async def fetched(place: StackPlace) -> JointRun:
        where = {"kubeconfig": place.kubeconfig, "context": place.context}
        async with attach(place.stack, environ=os.environ, **where) as attached:
            outcome = await fetch(attached, parent=folder, name=place.name)
            offset = await measure_offset(attached.client)
        return JointRun(name=place.name, where=place.where, outcome=outcome, offsets={1: offset})

    found, _ = signals.run(in_each(places, fetched))
    runs = [
        JointRun(name=place.name, where=place.where, outcome=failed_outcome(each))
        if isinstance(each, AiperfError)
        else each
        for place, each in zip(places, found, strict=True)
    ]
    kind = places[0].kind
    assert kind != "shapes"
    return int(finish(kind, args.stack, folder, runs, RunOptions(json=args.json)))
