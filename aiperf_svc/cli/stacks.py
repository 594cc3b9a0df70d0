"""Functions that the commands about stacks share: the request and options of a command line, and
the stacks of one name if a stack file has several clusters, targets or shapes."""

import argparse
import asyncio
import os
import secrets
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from aiperf_svc.adapters.pulumi.project import read_settings, stack_name
from aiperf_svc.adapters.pulumi.state_home import StateHome
from aiperf_svc.adapters.storage.shape_trials import experiment_of
from aiperf_svc.cli.checks import checked_trials, cluster_problems
from aiperf_svc.cli.flag_config import Draft, put, read_api_key_flag
from aiperf_svc.cli.options import run_options
from aiperf_svc.config.clusters import read_clusters
from aiperf_svc.config.load_config import STACK_KEY, STACKS, own_base
from aiperf_svc.config.units import parse_duration_ns
from aiperf_svc.config.user_files import SMALL_FILE, read_text_file
from aiperf_svc.config.yaml_files import read_yaml
from aiperf_svc.domain.errors import AiperfError, ConfigError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.identity import check_stack_name, stack_name_of
from aiperf_svc.plan.service_pods import TARGET_KEY
from aiperf_svc.runner.options import StackOptions
from aiperf_svc.runner.stack.request import StackRequest, secrets_from
from aiperf_svc.workloads.shapes import is_side_by_side

T = TypeVar("T")

MAX_NAME_LENGTH = 40
"""Maximum length of a stack's name."""
NUMBER_ROOM = len("-10000")
"""Part of the length reserved for the number of a shape with its own stack."""


def life_options(args: argparse.Namespace) -> StackOptions:
    """Return the options from the flags of `add_life_flags`. Raises ConfigError."""
    timeout_s = None
    if args.timeout is not None:
        try:
            timeout_s = parse_duration_ns(args.timeout) / 1e9
        except ValueError as error:
            raise ConfigError(f"--timeout: {args.timeout!r}: {error}") from error
    return StackOptions(
        run=run_options(args),
        yes=args.yes,
        keep=args.keep,
        keep_on_failure=args.keep_on_failure,
        timeout_s=timeout_s,
    )


def committed_request(draft: Draft, args: argparse.Namespace) -> StackRequest:
    """Return the request of a stack file. Raises ConfigError."""
    stack = stack_name(args.config)
    check_stack_name(stack)
    settings = read_settings(args.config)
    request = _request(draft, args)
    return replace(request, stack=stack, settings=settings, base=own_base(args.config))


def ephemeral_request(draft: Draft, args: argparse.Namespace) -> StackRequest:
    """Return the request of the flags of `profile`, with a new stack name. Raises ConfigError."""
    _send_authorities(draft, args)
    request = _request(draft, args)
    suffix = f"-{secrets.token_hex(3)}"
    room = MAX_NAME_LENGTH - len(suffix) - (NUMBER_ROOM if is_side_by_side(request.config) else 0)
    stack = stack_name_of(request.config.name)[:room].rstrip("-") + suffix
    earlier = _stack_of(args.resume) if args.resume else ""
    return replace(request, stack=earlier or stack, is_ephemeral=True)


def _request(draft: Draft, args: argparse.Namespace) -> StackRequest:
    """Return a request without a stack name. Raises ConfigError."""
    key = read_api_key_flag(draft, args.api_key)
    checked = checked_trials(
        draft.parse(), cluster_problems, source=draft.source, names=draft.names
    )
    values = secrets_from(checked.config, os.environ)
    return StackRequest(
        stack="",
        config=checked.config,
        checked=checked,
        kubeconfig=args.kubeconfig,
        context=args.context,
        generation=_generation(args),
        secrets=values if key is None else values | {TARGET_KEY: key},
    )


def print_notices(draft: Draft) -> None:
    """Print the notices about defaults that were chosen."""
    for notice in draft.notices:
        print(f"note: {notice}", file=sys.stderr)


def _stack_of(folder: Path) -> str:
    """Return the stack of a killed runner whose results belong in a folder; empty if there is none.
    Stacks of single shapes have this name plus the number of the shape."""
    for record in StateHome().records():
        found, shape = experiment_of(Path(record.artifacts))
        if record.artifacts and found == folder.resolve():
            return record.stack.removesuffix(f"-{shape}") if shape else record.stack
    return ""


def _send_authorities(draft: Draft, args: argparse.Namespace) -> None:
    """Put the content of a local CA file into the config, for the pods."""
    name = args.tls_ca_file
    if name is None:
        return
    try:
        text = read_text_file(Path(name), SMALL_FILE)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--tls-ca-file: cannot read {name!r}: {error}") from error
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise ConfigError(f"--tls-ca-file: {name!r} holds no certificates in PEM")
    put(draft.data, "endpoint.tls.ca", text)
    put(draft.data, "endpoint.tls.ca_file", None)


def _generation(args: argparse.Namespace) -> int | None:
    if args.generation is None:
        return None
    if not args.generation.isdecimal() or not int(args.generation):
        raise ConfigError(f"--generation: {args.generation!r}: expected a whole number from 1")
    return int(args.generation)


@dataclass(frozen=True, kw_only=True)
class NamedStack:
    """A stack and its cluster."""

    stack: str
    name: str = ""
    """Name of the cluster, target or shape among several; empty for a single stack."""
    where: str = ""
    """The context of its cluster, or the URL of its target."""
    kind: Literal["clusters", "targets", "shapes"] = "clusters"
    kubeconfig: str | None = None
    context: str | None = None

    def line(self, text: str) -> str:
        """Return a line about the stack, prefixed with the stack's name if there are several."""
        return f"{self.name}  {text}" if self.name else text


def stacks_of(stack: str, args: argparse.Namespace) -> list[NamedStack]:
    """Return the stacks that a stack file creates. With `--context`, return only those in its
    cluster. Raises ConfigError."""
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
        shapes = [shape for each in found for shape in _shapes_of(each)]
        return shapes or found
    return found


def _shapes_of(parent: NamedStack) -> list[NamedStack]:
    """Return the existing stacks of single shapes, found by the records of their runs."""
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
    """Do the work for all stacks concurrently. Errors are printed.

    Returns a result or error for each stack, and the exit code of the first error. Raises the error
    if there is only one stack."""

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
