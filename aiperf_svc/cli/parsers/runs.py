"""Arguments of the commands that measure: `profile`, `run`, `qualify`, `bench`, `calibrate`."""

import argparse
from pathlib import Path

from aiperf_svc.cli.flags import FLAGS, GROUPS
from aiperf_svc.cli.options import add_cluster_flags, add_flags, add_life_flags, add_run_flags

PROFILE_USAGE = "aiperf-svc profile --url URL --model NAME [flag ...]"


def profile(parser: argparse.ArgumentParser) -> None:
    """Measure a server under load.

      aiperf-svc profile -u localhost:8000 -m my-model --streaming --concurrency 50 --duration 60
      aiperf-svc profile -u localhost:8000 -m my-model --streaming --request-rate 20 --duration 60
      aiperf-svc profile --config run.yaml

    Each flag sets one key of a config. The complete config is saved with the results and can be run
    again with --config. The default load is one user (--concurrency 1). Without --request-count and
    --benchmark-duration, a closed loop ends after 10 requests per user, and an open loop after 10
    seconds' worth of requests. Times have units: 250ms, 30s, 5m. A plain number is seconds.

    With --kubernetes, the services run in a cluster, as a stack that is created for this run and
    removed after it."""
    parser.usage = PROFILE_USAGE
    parser.add_argument(
        "--config",
        "-f",
        metavar="FILE",
        type=Path,
        help="Start from this config. Flags override it.",
    )
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
        help="Run in a cluster instead of on this machine.",
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


STACK_FLAGS = tuple(flag for flag in FLAGS if flag.key in ("endpoint.url", "artifacts.dir"))


def run(parser: argparse.ArgumentParser, *, is_stack_needed: bool = True) -> None:
    """Run the benchmark of a stack file: check the cluster, `pulumi up`, send the load, fetch
    the results, `pulumi destroy`, and check that nothing is left.

    Ctrl-C stops the run, keeps the results so far and removes the stack. With --local the services
    run as processes on this machine, and so does the stack's own mock server."""
    parser.set_defaults(is_qualification=False)
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
    add_flags(parser, "instead of the values in the stack file", STACK_FLAGS)
    add_run_flags(parser)


def qualify(parser: argparse.ArgumentParser) -> None:
    """Qualify the nodes of a cluster: measure them alone, in pairs and all together, and
    find slow nodes and paths.

      aiperf-svc qualify STACK [--limits FILE] [--baseline FOLDER]
      aiperf-svc qualify STACK --local          with ranks as processes of this machine
      aiperf-svc qualify --label FOLDER         label the nodes with the verdicts of a qualification

    The stack file has `workload: {kind: qualify, stages: [...]}`. docs/qualify.md explains the
    verdicts."""
    run(parser, is_stack_needed=False)
    parser.set_defaults(is_qualification=True)
    group = parser.add_argument_group("nodes")
    group.add_argument(
        "--limits",
        metavar="FILE",
        type=Path,
        help="YAML list of limits, added to those of the stack file. Limits for other GPU products "
        "and fabrics are ignored.",
    )
    group.add_argument(
        "--baseline",
        metavar="FOLDER",
        type=Path,
        help="Results of an earlier qualification with which the nodes are compared.",
    )
    group.add_argument(
        "--label",
        metavar="FOLDER",
        type=Path,
        help="Measure nothing; set the labels aiperf.dev/qualified and aiperf.dev/qualified-at of "
        "the nodes of this qualification.",
    )


BENCH_FLAGS = tuple(flag for flag in FLAGS if flag.key != "endpoint.url")


def bench(parser: argparse.ArgumentParser) -> None:
    """Start the built-in mock server and measure it: twelve seconds of streaming chat.

    The server sends the first token after 200 ms and 31 further tokens at intervals of 20 ms, so
    the expected results are known. The flags of `profile` change the load."""
    parser.usage = "aiperf-svc bench [flag ...]"
    parser.set_defaults(config=None)
    for title, flags in GROUPS.items():
        add_flags(parser, title, tuple(flag for flag in flags if flag in BENCH_FLAGS))
    add_run_flags(parser)


def calibrate(parser: argparse.ArgumentParser) -> None:
    """Find the highest load that this machine can generate, with short runs against the
    mock server.

    The server responds immediately and shares the machine's cores. The figures are stored in the
    user's cache folder. Later open-loop runs use them to choose the number of workers, and print a
    warning before a run with a higher rate."""
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
