"""Arguments of the commands about stacks, their files and their clusters."""

import argparse
import os
from pathlib import Path

from aiperf_svc.cli.options import add_cluster_flags, add_request_flags


def preview(parser: argparse.ArgumentParser) -> None:
    """Show what a stack will create, request from the cluster and cost, and how it
    differs from the deployed stack. Needs no cluster.

    The trials of an experiment are listed with their expected duration. --against compares with
    another version of the stack file instead of the deployed stack, such as that of the main
    branch."""
    parser.add_argument("stack", metavar="STACK", help="Name of a stack, or its file.")
    parser.add_argument(
        "--markdown", action="store_true", help="Print Markdown for a comment in a pull request."
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="Print one JSON object.")
    output.add_argument(
        "--objects",
        action="store_true",
        help="Also list the Kubernetes objects. What several have in common is listed once. With "
        "--against, list what changes in them.",
    )
    output.add_argument(
        "--manifests", action="store_true", help="Print only the Kubernetes objects, as YAML."
    )
    parser.add_argument(
        "--against", metavar="FILE", type=Path, help="Compare with this stack file."
    )
    add_request_flags(parser)


def schedule(parser: argparse.ArgumentParser) -> None:
    """Print a CronJob that runs a stack on a schedule, with its roles, or apply it.

      aiperf-svc schedule bench-night --cron "0 3 * * *" --state s3://BUCKET/state |
        kubectl apply -f -

    Pulumi's state and the results are stored in buckets. You create the Secret with the keys of
    the buckets and the passphrase of the state: PULUMI_CONFIG_PASSPHRASE, AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY, and AIPERF_WEBHOOK_SECRET for a webhook. docs/production.md has
    details."""
    parser.add_argument("stack", metavar="STACK", help="Name of a stack, or its file.")
    parser.add_argument(
        "--cron",
        metavar="FIELDS",
        required=True,
        help='When: minute hour day month weekday, such as "0 3 * * *".',
    )
    parser.add_argument(
        "--time-zone",
        metavar="ZONE",
        help="Time zone of --cron, such as Europe/Berlin. Default: the cluster's.",
    )
    parser.add_argument(
        "--state",
        metavar="URL",
        default=os.environ.get("PULUMI_BACKEND_URL", ""),
        help="Bucket of Pulumi's state. Default: PULUMI_BACKEND_URL.",
    )
    parser.add_argument(
        "--image",
        metavar="NAME",
        default=os.environ.get("AIPERF_RUNNER_IMAGE", ""),
        help="Image of the runner, built by images/build with RUNNER=1. Default: "
        "AIPERF_RUNNER_IMAGE, else the image of the services with -runner after its name.",
    )
    parser.add_argument(
        "--namespace",
        metavar="NAME",
        default="",
        help="Namespace of the runner. Default: deployment.namespace.name, else aiperf.",
    )
    parser.add_argument(
        "--secret",
        metavar="NAME",
        default="",
        help="Secret with the passphrase and the keys. Default: aiperf-STACK.",
    )
    parser.add_argument("--apply", action="store_true", help="Create or update the objects.")
    add_request_flags(parser)


def status(parser: argparse.ArgumentParser) -> None:
    """Show the progress of the run of a stack.

    With --wait, print a line for every new state until the run has ended."""
    parser.add_argument("stack", metavar="STACK", help="Name of a stack.")
    parser.add_argument("--wait", action="store_true", help="Wait until the run has ended.")
    parser.add_argument("--json", action="store_true", help="Print the status as JSON.")
    add_cluster_flags(parser)


def results(parser: argparse.ArgumentParser) -> None:
    """Fetch the results of a stack that is up: after `pulumi up`, or `run --keep`.

    The hash of every file is checked. The stack is not removed; `pulumi destroy` or `aiperf-svc gc
    STACK` removes it."""
    parser.add_argument("stack", metavar="STACK", help="Name of a stack.")
    parser.add_argument(
        "--artifact-dir", metavar="DIR", type=Path, default=Path("artifacts"),
        help="Folder for the results. Default: artifacts.",
    )  # fmt: skip
    parser.add_argument(
        "--json", action="store_true", help="Print the results as one JSON object on stdout."
    )
    add_cluster_flags(parser)


def cancel(parser: argparse.ArgumentParser) -> None:
    """Stop the run of a stack that is up. Results so far are kept; `aiperf-svc results`
    fetches them. The stack is not removed."""
    parser.add_argument("stack", metavar="STACK", help="Name of a stack.")
    add_cluster_flags(parser)


def check_cluster(parser: argparse.ArgumentParser) -> None:
    """Check whether a cluster is ready for a benchmark: nodes, pressure, clocks, GPUs
    by type, GPU exporters and their Xid errors, and whether NetworkPolicies are enforced.

    Two pods in a temporary namespace test the network. All created objects are removed afterwards.
    """
    parser.add_argument("--image", metavar="NAME", help="Image of this program for the two pods.")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="Count warnings, and checks that were not possible, as failures.",
    )
    parser.add_argument("--json", action="store_true", help="Print the checks as JSON.")
    add_cluster_flags(parser)


def gc(parser: argparse.ArgumentParser) -> None:
    """Remove what earlier runs left behind: objects found by label, then the state.

    Without names, it removes the stacks that runs of this machine left behind in any cluster, and
    all stacks whose time to live has expired. Other stacks are listed but not touched. --context or
    --kubeconfig limits the search to one cluster. A stack in use by another process is never
    removed without --take-over. Without a terminal for the confirmation, --yes is required."""
    parser.add_argument("stacks", nargs="*", metavar="STACK", help="Name of a stack.")
    parser.add_argument("--yes", "-y", action="store_true", help="Remove without asking.")
    parser.add_argument(
        "--force",
        action="store_true",
        help="Proceed even if another machine holds the lock of the state, or the state cannot be "
        "read.",
    )
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="Also remove stacks in use. Their runs fail, and report who removed the stack.",
    )
    parser.add_argument(
        "--namespace",
        "-n",
        metavar="NS",
        help="Namespace to search, if this user may not list all namespaces.",
    )
    parser.add_argument("--json", action="store_true", help="Print the result as JSON.")
    add_cluster_flags(parser)


FIRST_STACK = "bench-smoke"


def init(parser: argparse.ArgumentParser) -> None:
    """Create a Pulumi project for benchmarks in a folder.

    The project contains the Pulumi program, stack files to start from, a requirements.txt that pins
    this version, and the Containerfile of the image. Existing files are never overwritten."""
    parser.add_argument(
        "folder", metavar="FOLDER", nargs="?", default=".", type=Path,
        help="Folder for the project. Default: the current folder.",
    )  # fmt: skip
    parser.add_argument(
        "--stack",
        action="append",
        metavar="NAME",
        help=f"Stack file to copy, from those that come with aiperf-svc. Repeat for more. "
        f"Default: {FIRST_STACK}.",
    )


def validate(parser: argparse.ArgumentParser) -> None:
    """Check stack files and configs without starting anything.

    All mistakes in all files are printed. For a stack file, these include everything that `run`
    refuses without contacting a cluster. Without a name, all stack files in stacks/ are checked."""
    parser.add_argument(
        "configs", nargs="*", metavar="STACK|FILE", help="Name of a stack, or a file."
    )
