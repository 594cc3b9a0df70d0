"""Functions for commands about a stack that was run as several, in several clusters, for several
targets or shapes: its one name stands for all of them."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from aiperf_svc.domain.errors import AiperfError, ConfigError
from aiperf_svc.domain.exit_codes import ExitCode

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class StackPlace:
    """A stack and its cluster."""

    stack: str
    name: str = ""
    """Name of the cluster, target or shape among several; empty: there is one stack."""
    where: str = ""
    """The context of its cluster, or the address of its target."""
    kind: Literal["clusters", "targets", "shapes"] = "clusters"
    kubeconfig: str | None = None
    context: str | None = None

    def line(self, text: str) -> str:
        """Return a line about the stack, which begins with the name that it has among several."""
        return f"{self.name}  {text}" if self.name else text


def places_of(stack: str, args: argparse.Namespace) -> list[StackPlace]:
    """Return the stacks that a stack's file stands for; of those in several clusters only the one
    that `--context` chooses, if it is given. Raises ConfigError."""
    from aiperf_svc.config.clusters import read_clusters
    from aiperf_svc.config.load_config import STACK_KEY, STACKS
    from aiperf_svc.config.yaml_files import read_yaml
    from aiperf_svc.runner.stack.clusters import member_stack

    path = STACKS / f"Pulumi.{stack}.yaml"
    content = read_yaml(path) if path.is_file() else None
    content = content if isinstance(content, dict) else {}
    here = {"kubeconfig": args.kubeconfig, "context": args.context}
    clusters = read_clusters(content, str(path))
    if not clusters:
        benchmark = (content.get("config") or {}).get(STACK_KEY) or {}
        if (benchmark.get("experiment") or {}).get("parallel", 1) != 1:
            return _shapes_there(stack, args) or [StackPlace(stack=stack, **here)]
        return [
            StackPlace(
                stack=f"{stack}-{each['name']}",
                name=each["name"],
                where=str((each.get("endpoint") or {}).get("url", "")),
                kind="targets",
                **here,
            )
            for each in benchmark.get("targets") or ()
        ] or [StackPlace(stack=stack, **here)]
    chosen = [each for each in clusters if args.context in (None, each.context)]
    if not chosen:
        contexts = ", ".join(each.context for each in clusters)
        raise ConfigError(f"--context: stack {stack} is not in {args.context!r}, but in {contexts}")
    return [
        StackPlace(
            stack=member_stack(stack, each),
            name=each.short,
            where=each.context,
            kubeconfig=args.kubeconfig or each.kubeconfig,
            context=each.context,
        )
        for each in chosen
    ]


def _shapes_there(stack: str, args: argparse.Namespace) -> list[StackPlace]:
    """Return the stacks of single shapes that are there, as the records of their runs say."""
    from aiperf_svc.runner.stack.state_home import StateHome

    places = []
    for record in StateHome().records():
        name, _, number = record.stack.rpartition("-")
        if name == stack and number.isdecimal():
            places.append(
                StackPlace(
                    stack=record.stack,
                    name=f"shape {number}",
                    kind="shapes",
                    kubeconfig=args.kubeconfig,
                    context=args.context,
                )
            )
    return sorted(places, key=lambda place: int(place.stack.rpartition("-")[2]))


async def in_each(
    places: list[StackPlace], work: Callable[[StackPlace], Awaitable[T]]
) -> tuple[list[T | AiperfError], ExitCode]:
    """Do the work for all stacks at once. Returns its results, or its errors, which were printed,
    and the first exit code of an error. Raises the error if there is one stack."""

    async def tried(place: StackPlace) -> T | AiperfError:
        try:
            return await work(place)
        except AiperfError as error:
            if not place.name:
                raise
            print(f"error: {place.line(str(error))}", file=sys.stderr)
            return error

    found = await asyncio.gather(*map(tried, places))
    errors = [each.exit_code for each in found if isinstance(each, AiperfError)]
    return found, errors[0] if errors else ExitCode.OK
