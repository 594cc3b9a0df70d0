"""`aiperf-svc preview`."""

import argparse
import json
from pathlib import Path

from aiperf_svc.cli.options import add_request_flags
from aiperf_svc.cli.stacks import committed_request
from aiperf_svc.domain.exit_codes import ExitCode

DESCRIPTION = """Show what a stack will create, request from the cluster and cost, and how it
differs from the deployed stack. Needs no cluster.

The trials of an experiment are listed with their expected time. --markdown prints a text for a pull
request. --against compares with another version of the stack file instead, such as that of the main
branch."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the stack, and the version to compare with."""
    parser.add_argument("stack", metavar="STACK", help="Name of a stack, or its file.")
    parser.add_argument(
        "--markdown", action="store_true", help="Print Markdown, for a pull request."
    )
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    parser.add_argument(
        "--against", metavar="FILE", type=Path, help="Compare with this stack file."
    )
    add_request_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Print the summary."""
    from aiperf_svc.cli.flag_config import read_draft
    from aiperf_svc.config.clusters import read_clusters
    from aiperf_svc.config.load_config import stack_path
    from aiperf_svc.runner.stack import preview
    from aiperf_svc.runner.stack.members import (
        expand_requests,
        member_requests,
        several_lines,
        whole_footprint,
    )
    from aiperf_svc.workloads.previews import summary

    args.config = stack_path(args.stack)
    request = committed_request(read_draft(args, flags=()), args, args.config)
    requests = member_requests(request, read_clusters(request.settings, str(args.config)))
    expansion = expand_requests(requests)
    footprint = whole_footprint(requests, expansion)
    if args.json:
        found = preview.as_json(request) | {"footprint": footprint.as_json}
        print(json.dumps(found, default=str))
        return int(ExitCode.OK)
    compared = preview.compare(request, args.against)
    if len(request.plans) > 1:
        print(preview.of_shapes(request, compared, is_markdown=args.markdown))
        return int(ExitCode.OK)
    format_ = summary.as_markdown if args.markdown else summary.as_text
    print(format_(request.plan, compared).rstrip("\n"))
    if expansion.is_joint:
        several = several_lines(expansion, requests)
        print(f"\n#### Stacks\n\n```\n{several}\n```" if args.markdown else several)
    if request.config.experiment is not None:
        print("\n" + preview.trials_text(request, is_markdown=args.markdown))
    return int(ExitCode.OK)
