"""`profile`, `run`, `qualify` and `bench`: choose between this machine and a cluster.

The process from which services are forked is started first. It imports the services while this
process imports the models, so functions import the modules that do the work later.
"""

import argparse

from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.runner import fork_server

CLUSTER_ONLY = ("kubeconfig", "context", "yes", "keep", "keep_on_failure", "timeout", "generation")


def profile(args: argparse.Namespace) -> int:
    """Run the benchmark of the flags."""
    if args.kubernetes:
        from aiperf_svc.cli.commands import cluster_runs

        return cluster_runs.run_flags(args)
    if refused := _set_flags(args, "kubernetes_namespace", *CLUSTER_ONLY):
        raise ConfigError(
            f"{refused}: only for a run in a cluster; add --kubernetes or leave it out"
        )
    with fork_server.starting(is_needed=not args.dry_run) as forks:
        from aiperf_svc.cli.commands import local_runs

        return local_runs.run_flags(args, forks)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark of a stack file."""
    if not args.local:
        from aiperf_svc.cli.commands import cluster_runs

        return cluster_runs.run_stack_file(args)
    if refused := _set_flags(args, *CLUSTER_ONLY):
        raise ConfigError(f"{refused}: only for a cluster; leave out --local or this flag")
    with fork_server.starting(is_needed=not args.dry_run) as forks:
        from aiperf_svc.cli.commands import local_runs

        return local_runs.run_stack_file(args, forks)


def qualify(args: argparse.Namespace) -> int:
    """Qualify, or label the nodes of an earlier qualification."""
    if args.label is None:
        if args.stack is None:
            raise ConfigError("name a stack, or with --label the folder of a qualification")
        return run(args)
    if args.stack is not None:
        raise ConfigError(f"--label: labels nodes and measures nothing; leave out {args.stack}")
    from aiperf_svc.cli.commands import clusters

    return clusters.label(args)


def bench(args: argparse.Namespace) -> int:
    """Measure the mock server, which runs only during this call."""
    with fork_server.starting() as forks:
        from aiperf_svc.cli.commands import mock_runs

        return mock_runs.run_bench(args, forks)


def _set_flags(args: argparse.Namespace, *names: str) -> str:
    """Return the names of these flags that are set on the command line."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in names if getattr(args, name))
