"""`profile --kubernetes` and `run`: create, measure and remove a stack."""

import argparse
import os
import sys

from aiperf_svc.cli.checks import tracker_problems
from aiperf_svc.cli.flag_config import put, read_flags, read_stack_draft
from aiperf_svc.cli.stacks import committed_request, ephemeral_request, life_options, print_notices
from aiperf_svc.config.clusters import read_clusters
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.runner.stack import placement
from aiperf_svc.runner.stack.request import StackRequest


def _check_flags(args: argparse.Namespace) -> None:
    """Print a note about a flag without effect. Raises ConfigError for an invalid one."""
    if args.verbose:
        text = "no effect on a stack, whose logs are in logs/ of its results"
        print(f"note: --verbose: {text}", file=sys.stderr)
    if args.dry_run:
        raise ConfigError(
            "--dry-run: only for a run on this machine; use `aiperf-svc preview` for a stack"
        )


def _check_trackers(request: StackRequest) -> None:
    """Raise ConfigError if this machine cannot send the results to the config's trackers."""
    for problem in tracker_problems(request.config.artifacts, os.environ):
        raise ConfigError(f"{problem.key}: {problem.text}")


def run_flags(args: argparse.Namespace) -> int:
    """Run the benchmark of the flags of `profile` in a new stack; return the exit code."""
    _check_flags(args)
    draft = read_flags(args)
    if args.kubernetes_namespace is not None:
        # The cluster decides whether it exists.
        where = {"name": args.kubernetes_namespace, "mode": "create"}
        put(draft.data, "deployment.namespace", where)
        draft.names["deployment.namespace.name"] = "--kubernetes-namespace"
    request, options = ephemeral_request(draft, args), life_options(args)
    _check_trackers(request)
    print_notices(draft)
    return int(placement.run_in_namespace(request, options, args.kubernetes_namespace))


def run_stack_file(args: argparse.Namespace) -> int:
    """Run the benchmark of a stack file in its cluster or clusters; return the exit code."""
    draft = read_stack_draft(args)
    _check_flags(args)
    request = committed_request(draft, args)
    _check_trackers(request)
    options = life_options(args)
    print_notices(draft)
    clusters = read_clusters(request.settings, str(args.config))
    return int(placement.run_stacks(request, options, clusters))
