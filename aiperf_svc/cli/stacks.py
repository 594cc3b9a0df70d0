"""Functions that the commands about stacks share: the request and options of a command line."""

import argparse
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aiperf_svc.cli.options import display_of
from aiperf_svc.cli.outlets import metrics_address, otlp_target
from aiperf_svc.cli.secrets import read_api_key
from aiperf_svc.config.secret_names import TARGET_KEY_ENV
from aiperf_svc.config.user_files import SMALL_FILE, read_text_file
from aiperf_svc.domain.errors import ConfigError

if TYPE_CHECKING:
    from aiperf_svc.cli.flag_config import Draft
    from aiperf_svc.config.workload import Config
    from aiperf_svc.runner.stack.options import StackOptions
    from aiperf_svc.runner.stack.request import StackRequest
    from aiperf_svc.workloads.trials import CheckedTrials

LONGEST_NAME = 40
"""Longest name of a stack."""
NUMBER_ROOM = len("-10000")
"""Room in it for the number of a shape that has a stack of its own."""


def life_options(args: argparse.Namespace) -> "StackOptions":
    """Return the options from those flags. Raises ConfigError."""
    from aiperf_svc.config.units import parse_duration_ns
    from aiperf_svc.plan.run_values import RunValues
    from aiperf_svc.runner.options import RunOptions
    from aiperf_svc.runner.stack.options import StackOptions

    timeout_s = None
    if args.timeout is not None:
        try:
            timeout_s = parse_duration_ns(args.timeout) / 1e9
        except ValueError as error:
            raise ConfigError(f"--timeout: {args.timeout!r}: {error}") from error
    run = RunOptions(
        ui=display_of(args),
        json=args.json,
        run=RunValues(cli_command=args.command_line),
        verbose=args.verbose,
        resume=args.resume,
        otlp=otlp_target(args.otlp),
        metrics_address=metrics_address(args.serve_metrics),
    )
    return StackOptions(
        run=run,
        yes=args.yes,
        keep=args.keep,
        keep_on_failure=args.keep_on_failure,
        timeout_s=timeout_s,
    )


def committed_request(draft: "Draft", args: argparse.Namespace, path: Path) -> "StackRequest":
    """The request that a stack's file stands for. Raises ConfigError."""
    from aiperf_svc.plan.identity import check_stack_name
    from aiperf_svc.runner.stack.project import read_settings, stack_name
    from aiperf_svc.runner.stack.request import StackRequest

    stack = stack_name(path)
    check_stack_name(stack)
    settings = read_settings(path)
    given = _given_key(draft, args)
    checked = _checked(draft)
    config = checked.config
    return StackRequest(
        stack=stack,
        config=config,
        settings=settings,
        checked=checked,
        kubeconfig=args.kubeconfig,
        context=args.context,
        generation=_generation(args),
        secrets={**_from_environment(config), **given},
    )


def ephemeral_request(draft: "Draft", args: argparse.Namespace) -> "StackRequest":
    """The request that flags stand for, as a stack of a new name. Raises ConfigError."""
    from aiperf_svc.plan.identity import stack_name_of
    from aiperf_svc.runner.stack.request import StackRequest
    from aiperf_svc.workloads.shapes import is_side_by_side

    given = _given_key(draft, args)
    _take_authorities(draft, args)
    checked = _checked(draft)
    config = checked.config
    suffix = f"-{secrets.token_hex(3)}"
    room = LONGEST_NAME - len(suffix) - (NUMBER_ROOM if is_side_by_side(config) else 0)
    stack = stack_name_of(config.name)[:room].rstrip("-") + suffix
    return StackRequest(
        stack=(_stack_of(args.resume) if args.resume else "") or stack,
        config=config,
        checked=checked,
        kubeconfig=args.kubeconfig,
        context=args.context,
        generation=_generation(args),
        secrets={**_from_environment(config), **given},
        is_ephemeral=True,
    )


def notices(draft: "Draft") -> None:
    """Return the notices about defaults that were chosen."""
    for notice in draft.notices:
        print(f"note: {notice}", file=sys.stderr)


def _checked(draft: "Draft") -> "CheckedTrials":
    from aiperf_svc.cli.checks import cluster_problems
    from aiperf_svc.cli.experiments import checked_trials

    config = draft.parse()
    return checked_trials(config, cluster_problems, source=draft.source, names=draft.names)


def _stack_of(folder: Path) -> str:
    """The stack that a killed runner has left, whose results belong into a folder; empty if there
    is none. Those of shapes beside each other have this name and the shape's number."""
    from aiperf_svc.runner.shape_trials import experiment_of
    from aiperf_svc.runner.stack.state_home import StateHome

    for record in StateHome().records():
        found, shape = experiment_of(Path(record.artifacts))
        if record.artifacts and found == folder.resolve():
            return record.stack.removesuffix(f"-{shape}") if shape else record.stack
    return ""


def _given_key(draft: "Draft", args: argparse.Namespace) -> dict[str, str]:
    from aiperf_svc.cli.flag_config import put
    from aiperf_svc.plan.service_pods import TARGET_KEY

    if args.api_key is None:
        return {}
    if "workload" in draft.data:
        raise ConfigError("--api-key is for an inference server; this workload has none")
    put(draft.data, "endpoint.api_key_env", TARGET_KEY_ENV)
    return {TARGET_KEY: read_api_key(args.api_key)}


def _take_authorities(draft: "Draft", args: argparse.Namespace) -> None:
    """A CA file of this machine goes to the pods as text."""
    from aiperf_svc.cli.flag_config import put

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


def _from_environment(config: "Config") -> dict[str, str]:
    from aiperf_svc.runner.stack.request import secrets_from

    return secrets_from(config, os.environ)


def _generation(args: argparse.Namespace) -> int | None:
    if args.generation is None:
        return None
    if not args.generation.isdecimal() or not int(args.generation):
        raise ConfigError(f"--generation: {args.generation!r}: expected a whole number from 1")
    return int(args.generation)
