"""`aiperf-svc profile`."""

import argparse

from aiperf_svc.cli.flags import GROUPS
from aiperf_svc.cli.runs import add_config_flag, add_flags, add_run_flags, run_here
from aiperf_svc.cli.stacks import (
    add_cluster_flags,
    add_life_flags,
    ephemeral_request,
    life_options,
    notices,
)
from aiperf_svc.domain.errors import ConfigError

USAGE = "aiperf-svc profile --url URL --model NAME [flag ...]"
DESCRIPTION = """Measure a server under load.

  aiperf-svc profile -u localhost:8000 -m my-model --streaming --concurrency 50 --duration 60
  aiperf-svc profile -u localhost:8000 -m my-model --streaming --request-rate 20 --duration 60
  aiperf-svc profile --config run.yaml

Every flag writes one key of a config; the whole config is saved beside the results and can be run
again with --config. Without a load there is one user (--concurrency 1). Without --request-count and
--benchmark-duration the run ends after 10 requests for each user, or after 10 seconds' worth of an
open loop. Times take units: 250ms, 30s, 5m; a plain number is seconds.

With --kubernetes the services run in a cluster, as a stack that is made for this run and removed
with everything that belongs to it."""
CLUSTER_ONLY = ("kubernetes_namespace", "kubeconfig", "context", "yes", "keep", "keep_on_failure",
                "timeout", "generation")  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The table of flags, and what is about this program."""
    parser.usage = USAGE
    add_config_flag(parser)
    for title, flags in GROUPS.items():
        add_flags(parser, title, flags)
    group = parser.add_argument_group("another workload than an inference server")
    group.add_argument(
        "--workload",
        nargs="+",
        metavar=("KIND", "KEY=VALUE"),
        help="run a tool, such as iperf streams=8; `aiperf-svc workloads` lists the kinds",
    )
    group = parser.add_argument_group("on a cluster")
    group.add_argument(
        "--kubernetes", "-k", action="store_true", help="run in a cluster, not on this machine"
    )
    group.add_argument(
        "--kubernetes-namespace",
        metavar="NS",
        help="namespace: one that is there is used and kept, another is created and removed "
        "(default: one with a name of its own)",
    )
    add_cluster_flags(parser)
    add_life_flags(parser)
    add_run_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Measure as the flags say."""
    if args.kubernetes:
        return _run_in_cluster(args)
    given = [f"--{name.replace('_', '-')}" for name in CLUSTER_ONLY if getattr(args, name)]
    if given:
        raise ConfigError(f"{', '.join(given)}: about a cluster; add --kubernetes or leave it out")
    from aiperf_svc.runner import fork_server

    with fork_server.starting(is_needed=not args.dry_run) as forks:
        from aiperf_svc.cli.flag_config import read_draft, read_workload_draft

        draft = read_workload_draft(args) if args.workload else read_draft(args)
        return run_here(draft, args, forks)


def _run_in_cluster(args: argparse.Namespace) -> int:
    from aiperf_svc.cli.flag_config import put, read_draft, read_workload_draft

    if args.dry_run:
        raise ConfigError("--dry-run: for a run on this machine; aiperf-svc preview shows stacks")
    draft = read_workload_draft(args) if args.workload else read_draft(args)
    if args.kubernetes_namespace is not None:
        # Whether it is there is found out when the cluster is asked.
        where = {"name": args.kubernetes_namespace, "mode": "create"}
        put(draft.data, "deployment.namespace", where)
        draft.names["deployment.namespace.name"] = "--kubernetes-namespace"
    request, options = ephemeral_request(draft, args), life_options(args)
    notices(draft)
    from aiperf_svc.runner.stack.placement import run_in_namespace

    return int(run_in_namespace(request, options, args.kubernetes_namespace))
