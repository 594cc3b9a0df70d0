"""`check-cluster`, `gc` and `qualify --label`: work on a cluster without a stack of a benchmark."""

import argparse
import json
import os
import sys
from dataclasses import replace
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

import aiperf_svc
from aiperf_svc.adapters.cluster.api.connection import connect
from aiperf_svc.adapters.cluster.node_labels import label_nodes
from aiperf_svc.adapters.cluster.preflight import cluster_checks
from aiperf_svc.adapters.cluster.preflight.cluster_checks import ClusterReport
from aiperf_svc.adapters.exports.qualify_export import read_qualification
from aiperf_svc.adapters.terminal import output
from aiperf_svc.adapters.terminal.tables import text_table
from aiperf_svc.cli.stacks import stacks_of
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.number_text import count
from aiperf_svc.plan.stack import services_image
from aiperf_svc.runner import signals
from aiperf_svc.runner.stack.garbage import (
    Collected,
    GarbageRequest,
    collect_everywhere,
    collect_garbage,
)
from aiperf_svc.runner.stack.request import CONTEXT, IMAGE


def check_cluster(args: argparse.Namespace) -> int:
    """Run the checks, and print a table."""
    report = signals.run(_check(args))
    code = _exit_code(report, is_strict=args.strict)
    left = report.left
    if args.json:
        print(json.dumps(_as_json(report, code)))
    else:
        _print(report)
    if left is not None and not left.is_clean:
        print("\n  ".join([f"left: {left.text}", *map(str, left.left)]), file=sys.stderr)
    return int(code)


async def _check(args: argparse.Namespace) -> ClusterReport:
    version = aiperf_svc.__version__
    image = services_image(args.image or os.environ.get(IMAGE, ""), version=version)
    context = args.context or os.environ.get(CONTEXT)
    async with connect(kubeconfig=args.kubeconfig, context=context) as cluster:
        return await cluster_checks.check_cluster(
            cluster, image=image, version=version, say=output.say
        )


def _exit_code(report: ClusterReport, *, is_strict: bool) -> ExitCode:
    if report.left is not None and report.left.left:
        return ExitCode.LEAKED
    if report.left is not None and report.left.unverified:
        return ExitCode.UNVERIFIED
    states = {each.state for each in report.checks}
    bad = {"failed", "warning", "not checked"} if is_strict else {"failed"}
    return ExitCode.ERROR if states & bad else ExitCode.OK


def _as_json(report: ClusterReport, code: ExitCode) -> dict[str, Any]:
    names = ("name", "state", "detail", "remedy")
    left = report.left
    return {
        "exit_code": int(code),
        "checks": [{name: getattr(each, name) for name in names} for each in report.checks],
        "gpus": msgspec.to_builtins(report.gpus),
        "left": [str(each) for each in left.left] if left is not None else [],
        "not_checked": list(left.not_checked) if left is not None else [],
    }


def _print(report: ClusterReport) -> None:
    rows = []
    for each in report.checks:
        found = one_line(each.detail)
        if each.remedy and each.state != "ok":
            found += f"\n→ {one_line(each.remedy)}"
        rows.append((each.name, each.state, Text(found)))
    table = text_table(("check", "result", "found"), rows, texts=(0, 1, 2))
    Console(highlight=False).print(table)


async def _all(requests: list[GarbageRequest]) -> Collected:
    """Carry out the requests, one cluster after the other. A cluster that cannot be reached is
    reported and does not stop the others."""
    if not any((requests[0].stacks, requests[0].context, requests[0].kubeconfig)):
        return await collect_everywhere(requests[0])
    done = Collected()
    for request in requests:
        try:
            await collect_garbage(request, done)
        except EnvironmentProblem as error:
            if len(requests) == 1:
                raise
            done.not_reached |= dict.fromkeys(request.stacks, str(error))
    return done


def gc(args: argparse.Namespace) -> int:
    """Remove the stacks, and print what is left."""
    stacks = [stack for name in args.stacks for stack in stacks_of(name, args)]
    request = GarbageRequest(
        stacks=tuple(stack.stack for stack in stacks if not stack.name),
        environ=dict(os.environ),
        kubeconfig=args.kubeconfig,
        context=args.context,
        namespace=args.namespace,
        force=args.force,
        take_over=args.take_over,
        yes=args.yes,
    )
    elsewhere = [
        replace(request, stacks=(stack.stack,), kubeconfig=stack.kubeconfig, context=stack.context)
        for stack in stacks
        if stack.name
    ]
    requests = [request, *elsewhere] if request.stacks or not elsewhere else elsewhere
    with output.ignore_closed_stderr():
        done = signals.run(_all(requests))
    if done.folders:
        folders = count(done.folders, "folder")
        print(f"removed: temporary files of killed runs, {folders}", file=sys.stderr)
    for name, found in done.removed.items():
        print(f"removed: {name}; {found}", file=sys.stderr)
    for line in done.not_touched:
        print(f"not touched: {line}", file=sys.stderr)
    for name in done.unknown:
        where = "in this cluster, in the state and in this machine's records"
        print(f"nothing to remove: there is no stack {name} {where}", file=sys.stderr)
    for why in done.unverified.values():
        print(f"error: {why}", file=sys.stderr)
    for name, why in done.refused.items():
        print(f"error: {name}: {why}", file=sys.stderr)
    for name, why in done.not_reached.items():
        print(f"error: {name}: it is unknown whether anything is left: {why}", file=sys.stderr)
    for name, left in done.left.items():
        print("\n  ".join([f"left of {name}:", *left]), file=sys.stderr)
        if name in done.not_checked:
            types = count(len(done.not_checked[name]), "type")
            text = f"{types} could not be listed and may hold more (--json names them)"
            print(f"{name}: {text}", file=sys.stderr)
    if args.json:
        content = {
            "exit_code": int(done.exit_code),
            "removed": list(done.removed),
            "left": done.left,
            "unverified": done.unverified,
            "refused": done.refused,
            "not_reached": done.not_reached,
            "not_checked": done.not_checked,
            "not_touched": done.not_touched,
            "unknown": done.unknown,
            "folders": done.folders,
        }
        print(json.dumps(content))
    elif done == Collected(not_touched=done.not_touched, clusters=done.clusters):
        print("nothing to remove", file=sys.stderr)
    return int(done.exit_code)


def label(args: argparse.Namespace) -> int:
    """Label the nodes of an earlier qualification."""
    found = read_qualification(args.label)
    context = args.context or os.environ.get(CONTEXT)

    async def set_labels() -> None:
        async with connect(kubeconfig=args.kubeconfig, context=context) as cluster:
            await label_nodes(cluster, found, say=output.say)

    signals.run(set_labels())
    return int(ExitCode.OK)
