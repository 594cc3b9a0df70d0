"""`aiperf-svc run`."""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiperf_svc.cli.flags import FLAGS
from aiperf_svc.cli.options import add_cluster_flags, add_flags, add_life_flags, add_run_flags
from aiperf_svc.cli.runs import run_here
from aiperf_svc.cli.stacks import committed_request, life_options, print_notices
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem

if TYPE_CHECKING:
    from aiperf_svc.cli.flag_config import Draft
    from aiperf_svc.runner.fork_server import ForkServer

DESCRIPTION = """Run the benchmark of a stack file: checks, `pulumi up`, the load, its results,
`pulumi destroy`, and a check that nothing is left.

Ctrl-C stops the run, keeps the results so far and removes the stack. With --local the services run
as processes on this machine. If the stack has its own mock server, that runs here too."""

_OVERRIDES = tuple(flag for flag in FLAGS if flag.key in ("endpoint.url", "artifacts.dir"))


def add_arguments(parser: argparse.ArgumentParser, *, is_stack_needed: bool = True) -> None:
    """The stack, and what may differ between machines."""
    parser.add_argument(
        "stack",
        metavar="STACK",
        nargs=None if is_stack_needed else "?",
        help="Name of a stack, or its file.",
    )
    parser.add_argument(
        "--local", action="store_true", help="Run on this machine, without a cluster."
    )
    add_life_flags(parser)
    add_cluster_flags(parser)
    add_flags(parser, "instead of the values in the stack file", _OVERRIDES)
    add_run_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Measure here or on a cluster."""
    return measure(args, lambda draft: None)


def measure(args: argparse.Namespace, complete: Callable[["Draft"], None]) -> int:
    """Measure the config of the stack file, to which `complete` adds what its command knows."""
    if args.local:
        from aiperf_svc.runner import fork_server

        _refuse_cluster_flags(args)
        with fork_server.starting(is_needed=not args.dry_run) as forks:
            return _run_here(_draft(args, complete), args, forks)
    return _run_stack(_draft(args, complete), args)


def _draft(args: argparse.Namespace, complete: Callable[["Draft"], None]) -> "Draft":
    from aiperf_svc.cli.flag_config import read_draft
    from aiperf_svc.config.load_config import stack_path

    args.config = stack_path(args.stack)
    draft = read_draft(args, flags=_OVERRIDES)
    complete(draft)
    return draft


def _run_here(draft: "Draft", args: argparse.Namespace, forks: "ForkServer | None") -> int:
    from aiperf_svc.config.parameters import is_below

    config = draft.parse()
    target, inference = config.deployment.target, config.inference
    if inference is None or target.kind != "mock" or not _is_own_target(inference.endpoint.url):
        return run_here(draft, args, forks)
    keys = config.experiment.keys if config.experiment is not None else ()
    if any(each.deployment for each in config.targets) or any(
        is_below(key, "deployment.target") or is_below("deployment.target", key) for key in keys
    ):
        raise ConfigError(
            "--local: this needs several servers (deployment.target), and here one mock server "
            "stands for all; run it on a cluster"
        )
    if args.dry_run:
        draft.data["endpoint"]["url"] = "http://127.0.0.1"  # Nothing is started.
        return run_here(draft, args, forks)
    with _mock_server(list(target.args)) as url:
        draft.data["endpoint"]["url"] = url
        return run_here(draft, args, forks)


def _run_stack(draft: "Draft", args: argparse.Namespace) -> int:
    if args.dry_run:
        raise ConfigError("--dry-run: for a run on this machine; aiperf-svc preview shows stacks")
    request = committed_request(draft, args, args.config)
    from aiperf_svc.cli.checks import tracker_problems

    for problem in tracker_problems(request.config.artifacts, os.environ):
        raise ConfigError(f"{problem.key}: {problem.text}")
    options = life_options(args)
    print_notices(draft)

    from aiperf_svc.config.clusters import read_clusters
    from aiperf_svc.runner.stack.placement import run_stacks

    clusters = read_clusters(request.settings, str(args.config))
    return int(run_stacks(request, options, clusters))


def _refuse_cluster_flags(args: argparse.Namespace) -> None:
    names = ("yes", "keep", "keep_on_failure", "timeout", "generation", "kubeconfig", "context")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name)]
    if given:
        raise ConfigError(f"{', '.join(given)}: about a cluster; leave out --local or this")


def _is_own_target(url: str) -> bool:
    from aiperf_svc.config.target import HOST

    return urlsplit(url).hostname == HOST


@contextmanager
def _mock_server(arguments: list[str]) -> Iterator[str]:
    """The stack's mock server on this machine; its address."""
    from aiperf_svc.cli.arguments import Parser
    from aiperf_svc.mock_server.config import (
        MockServerConfigError,
        add_arguments,
        config_from_args,
    )
    from aiperf_svc.mock_server.processes import MockServerError
    from aiperf_svc.mock_server.running import running

    parser = Parser("mock-server", "")
    add_arguments(parser)
    try:
        server = config_from_args(parser.parse(arguments))
    except (MockServerConfigError, ConfigError) as error:
        raise ConfigError(f"deployment.target.args: {error}") from error
    try:
        with running(server) as mock:
            print(f"mock server: {mock.url} {shlex.join(arguments)}", file=sys.stderr)
            yield mock.url
    except MockServerError as error:
        raise EnvironmentProblem(f"mock server: {error}") from error
