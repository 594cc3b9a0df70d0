"""Functions for commands about a stack that is up in several clusters: its one name stands for the
stack in each of them."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from aiperf_svc.domain.errors import AiperfError, ConfigError
from aiperf_svc.domain.exit_codes import ExitCode

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class StackPlace:
    """A stack and its cluster."""

    stack: str
    cluster: str = ""
    """Name of the cluster among several; empty: there is one."""
    kubeconfig: str | None = None
    context: str | None = None

    def line(self, text: str) -> str:
        """Return a line about the stack, which begins with the cluster's name if there is one."""
        return f"{self.cluster}  {text}" if self.cluster else text


def places_of(stack: str, args: argparse.Namespace) -> list[StackPlace]:
    """Return the stack in each cluster that its file names, or in the one that `--context` chooses
    of them. Raises ConfigError."""
    from aiperf_svc.config.clusters import read_clusters
    from aiperf_svc.config.load_config import STACKS
    from aiperf_svc.config.yaml_files import read_yaml
    from aiperf_svc.runner.stack.clusters import member_stack

    path = STACKS / f"Pulumi.{stack}.yaml"
    content = read_yaml(path) if path.is_file() else None
    clusters = read_clusters(content, str(path)) if isinstance(content, dict) else ()
    if not clusters:
        return [StackPlace(stack=stack, kubeconfig=args.kubeconfig, context=args.context)]
    chosen = [each for each in clusters if args.context in (None, each.context)]
    if not chosen:
        contexts = ", ".join(each.context for each in clusters)
        raise ConfigError(f"--context: stack {stack} is not in {args.context!r}, but in {contexts}")
    return [
        StackPlace(
            stack=member_stack(stack, each),
            cluster=each.short,
            kubeconfig=args.kubeconfig or each.kubeconfig,
            context=each.context,
        )
        for each in chosen
    ]


async def in_each(
    places: list[StackPlace], work: Callable[[StackPlace], Awaitable[T]]
) -> tuple[list[T | AiperfError], ExitCode]:
    """Do the work in all clusters at once. Returns what it returned, or its error, which was
    printed, and the first exit code of an error. Raises the error if there is one cluster."""

    async def tried(place: StackPlace) -> T | AiperfError:
        try:
            return await work(place)
        except AiperfError as error:
            if not place.cluster:
                raise
            print(f"error: {place.line(str(error))}", file=sys.stderr)
            return error

    found = await asyncio.gather(*map(tried, places))
    errors = [each.exit_code for each in found if isinstance(each, AiperfError)]
    return found, errors[0] if errors else ExitCode.OK
