"""Functions for commands about a stack that was run as several, in several clusters, for several
targets or shapes: its one name stands for all of them."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from aiperf_svc.domain.errors import AiperfError, ConfigError
from aiperf_svc.domain.exit_codes import ExitCode

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class NamedStack:
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


def stacks_of(stack: str, args: argparse.Namespace) -> list[NamedStack]:
    """Return the stacks that a stack's file stands for; of those in several clusters only the ones
    in the cluster that `--context` chooses, if it is given. Raises ConfigError."""
    from aiperf_svc.config.clusters import read_clusters
    from aiperf_svc.config.load_config import STACK_KEY, STACKS
    from aiperf_svc.config.yaml_files import read_yaml

    path = STACKS / f"Pulumi.{stack}.yaml"
    content = read_yaml(path) if path.is_file() else None
    content = content if isinstance(content, dict) else {}
    clusters = read_clusters(content, str(path))
    chosen = [each for each in clusters if args.context in (None, each.context)]
    if clusters and not chosen:
        contexts = ", ".join(each.context for each in clusters)
        raise ConfigError(f"--context: stack {stack} is not in {args.context!r}, but in {contexts}")
    benchmark = (content.get("config") or {}).get(STACK_KEY) or {}
    targets = [
        (each["name"], str((each.get("endpoint") or {}).get("url", "")))
        for each in benchmark.get("targets") or ()
    ]
    found = []
    for name, context, kubeconfig in [
        (each.short, each.context, args.kubeconfig or each.kubeconfig) for each in chosen
    ] or [("", args.context, args.kubeconfig)]:
        for target, url in targets or [("", "")]:
            own = "-".join(filter(None, (name, target)))
            found.append(
                NamedStack(
                    stack=f"{stack}-{own}" if own else stack,
                    name=own,
                    where=" ".join(filter(None, (context if name else "", url))),
                    kind="clusters" if len(chosen) > 1 else "targets",
                    kubeconfig=kubeconfig,
                    context=context,
                )
            )
    if (benchmark.get("experiment") or {}).get("parallel", 1) != 1:
        shapes = [shape for each in found for shape in _shapes_there(each)]
        return shapes or found
    return found


def _shapes_there(parent: NamedStack) -> list[NamedStack]:
    """Return the stacks of single shapes that exist, by the records of their runs."""
    from aiperf_svc.runner.stack.state_home import StateHome

    numbers = []
    for record in StateHome().records():
        name, _, number = record.stack.rpartition("-")
        if name == parent.stack and number.isdecimal():
            numbers.append(int(number))
    return [
        replace(
            parent,
            stack=f"{parent.stack}-{number}",
            name=" ".join(filter(None, (parent.name, f"shape {number}"))),
            kind="shapes",
        )
        for number in sorted(numbers)
    ]


async def in_each(
    stacks: list[NamedStack], work: Callable[[NamedStack], Awaitable[T]]
) -> tuple[list[T | AiperfError], ExitCode]:
    """Do the work for all stacks at once. Returns its results, or its errors, which were printed,
    and the first exit code of an error. Raises the error if there is one stack."""

    async def tried(stack: NamedStack) -> T | AiperfError:
        try:
            return await work(stack)
        except AiperfError as error:
            if not stack.name:
                raise
            print(f"error: {stack.line(str(error))}", file=sys.stderr)
            return error

    found = await asyncio.gather(*map(tried, stacks))
    errors = [each.exit_code for each in found if isinstance(each, AiperfError)]
    return found, errors[0] if errors else ExitCode.OK
