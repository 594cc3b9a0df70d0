"""`aiperf-svc profile`."""

import argparse

from aiperf_svc.cli.flags import GROUPS
from aiperf_svc.cli.options import (
    add_cluster_flags,
    add_config_flag,
    add_flags,
    add_life_flags,
    add_run_flags,
)
from aiperf_svc.cli.runs import run_here
from aiperf_svc.cli.stacks import (
    ephemeral_request,
    life_options,
    print_notices,
)
from aiperf_svc.domain.errors import ConfigError

USAGE = "aiperf-svc profile --url URL --model NAME [flag ...]"
DESCRIPTION = """Measure a server under load.

  aiperf-svc profile -u localhost:8000 -m my-model --streaming --concurrency 50 --duration 60
  aiperf-svc profile -u localhost:8000 -m my-model --streaming --request-rate 20 --duration 60
  aiperf-svc profile --config run.yaml

Each flag writes one key of a config. The complete config is saved with the results and can be run
again with --config. Without a load, one user is simulated (--concurrency 1). Without
--request-count and --benchmark-duration, the run ends after 10 requests of each user, or after the
requests of 10 seconds of an open loop. Times take units: 250ms, 30s, 5m. A plain number is seconds.

With --kubernetes, the services run in a cluster, as a stack that is created for this run and
removed after it."""
CLUSTER_ONLY = ("kubernetes_namespace", "kubeconfig", "context", "yes", "keep", "keep_on_failure",
                "timeout", "generation")  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all flags of the table, and those of the cluster and this program."""
    parser.usage = USAGE
    add_config_flag(parser)
    for title, flags in GROUPS.items():
        add_flags(parser, title, flags)
    group = parser.add_argument_group("instead of an inference server")
    group.add_argument(
        "--workload",
        nargs="+",
        metavar=("KIND", "KEY=VALUE"),
        help="Run a tool, such as iperf streams=8. `aiperf-svc workloads` lists the kinds.",
    )
    group = parser.add_argument_group("on a cluster")
    group.add_argument(
        "--kubernetes",
        "-k",
        action="store_true",
        help="Run in a cluster, not on this machine.",
    )
    group.add_argument(
        "--kubernetes-namespace",
        metavar="NS",
        help="Namespace for the stack. An existing one is used and kept; otherwise it is created "
        "and removed. Default: a new one for this run.",
    )
    add_cluster_flags(parser)
    add_life_flags(parser)
    add_run_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark of the flags."""
    if args.kubernetes:
        return _run_in_cluster(args)
    given = [f"--{name.replace('_', '-')}" for name in CLUSTER_ONLY if getattr(args, name)]
    if given:
        raise ConfigError(
            f"{', '.join(given)}: only for a run in a cluster; add --kubernetes or leave it out"
        )
    from aiperf_svc.runner import fork_server

    with fork_server.starting(is_needed=not args.dry_run) as forks:
        from aiperf_svc.cli.flag_config import read_draft, read_workload_draft

        draft = read_workload_draft(args) if args.workload else read_draft(args)
        return run_here(draft, args, forks)


def _run_in_cluster(args: argparse.Namespace) -> int:
    from aiperf_svc.cli.flag_config import put, read_draft, read_workload_draft

    if args.dry_run:
        raise ConfigError(
            "--dry-run: only for a run on this machine; use `aiperf-svc preview` for a stack"
        )
    draft = read_workload_draft(args) if args.workload else read_draft(args)
    if args.kubernetes_namespace is not None:
        # Whether it exists is checked in the cluster.
        where = {"name": args.kubernetes_namespace, "mode": "create"}
        put(draft.data, "deployment.namespace", where)
        draft.names["deployment.namespace.name"] = "--kubernetes-namespace"
    request, options = ephemeral_request(draft, args), life_options(args)
    print_notices(draft)
    from aiperf_svc.runner.stack.placement import run_in_namespace

    return int(run_in_namespace(request, options, args.kubernetes_namespace))
