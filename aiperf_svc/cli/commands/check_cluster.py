"""`aiperf-svc check-cluster`."""

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from aiperf_svc.cli.options import add_cluster_flags
from aiperf_svc.domain.exit_codes import ExitCode

if TYPE_CHECKING:
    from aiperf_svc.adapters.cluster.preflight.cluster_checks import ClusterReport

DESCRIPTION = """Check whether a cluster is fit for a benchmark: nodes, pressure, clocks, GPUs by
type, GPU exporters and their Xid errors, and whether NetworkPolicies are enforced.

Two pods in a temporary namespace test the network. All created objects are removed afterwards.

Exit code 0: no check failed. 1: a check failed, or with --strict gave a warning or was not
possible. 6: an object is left."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the cluster and of the output."""
    parser.add_argument("--image", metavar="NAME", help="Image of this program for the two pods.")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="Count warnings, and checks that were not possible, as failures.",
    )
    parser.add_argument("--json", action="store_true", help="Print the checks as JSON.")
    add_cluster_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Check, and print a table."""
    from aiperf_svc.runner import signals

    report = signals.run(_check(args))
    code = _exit_code(report, is_strict=args.strict)
    left = report.left
    if args.json:
        print(json.dumps(_as_json(report, code)))
    else:
        _print(report)
    if left is not None and not left.is_clean:
        print("\n  ".join([f"left: {left.in_words}", *map(str, left.left)]), file=sys.stderr)
    return int(code)


async def _check(args: argparse.Namespace) -> "ClusterReport":
    import aiperf_svc
    from aiperf_svc.adapters.cluster.api.connection import connect
    from aiperf_svc.adapters.cluster.preflight.cluster_checks import check_cluster
    from aiperf_svc.adapters.terminal import output
    from aiperf_svc.plan.stack import services_image
    from aiperf_svc.runner.stack.request import CONTEXT, IMAGE

    version = aiperf_svc.__version__
    image = services_image(args.image or os.environ.get(IMAGE, ""), version=version)
    context = args.context or os.environ.get(CONTEXT)
    async with connect(kubeconfig=args.kubeconfig, context=context) as cluster:
        return await check_cluster(cluster, image=image, version=version, say=output.say)


def _exit_code(report: "ClusterReport", *, is_strict: bool) -> ExitCode:
    if report.left is not None and report.left.left:
        return ExitCode.LEAKED
    states = {each.state for each in report.checks}
    bad = {"failed", "warning", "not checked"} if is_strict else {"failed"}
    return ExitCode.ERROR if states & bad else ExitCode.OK


def _as_json(report: "ClusterReport", code: ExitCode) -> dict[str, Any]:
    import msgspec

    names = ("name", "state", "detail", "remedy")
    left = report.left
    return {
        "exit_code": int(code),
        "checks": [{name: getattr(each, name) for name in names} for each in report.checks],
        "gpus": msgspec.to_builtins(report.gpus),
        "left": [str(each) for each in left.left] if left is not None else [],
        "not_checked": list(left.not_checked) if left is not None else [],
    }


def _print(report: "ClusterReport") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from aiperf_svc.domain.foreign_text import one_line

    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
    for column in ("check", "result", "found"):
        table.add_column(column, no_wrap=column != "found")
    for each in report.checks:
        found = one_line(each.detail)
        if each.remedy and each.state != "ok":
            found += f"\n→ {one_line(each.remedy)}"
        table.add_row(Text(one_line(each.name)), each.state, Text(found))
    Console(highlight=False).print(table)
