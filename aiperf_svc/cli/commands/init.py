"""`aiperf-svc init`."""

import argparse
from pathlib import Path

DESCRIPTION = """Write a Pulumi project for benchmarks into a folder.

It has the Pulumi program, stack files to start from, and a requirements.txt that pins this version.
Nothing is overwritten."""
DEFAULT = "bench-smoke"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder and the stacks."""
    parser.add_argument("folder", nargs="?", default=".", type=Path, help="Default: this folder.")
    parser.add_argument(
        "--stack",
        action="append",
        metavar="NAME",
        help=f"A stack file to start from, of those that come with aiperf-svc. May be repeated. "
        f"Default: {DEFAULT}",
    )


def run(args: argparse.Namespace) -> int:
    """Write it."""
    from aiperf_svc.adapters.pulumi.new_project import project_files, write_project
    from aiperf_svc.cli.schemas import json_schema

    stacks = list(dict.fromkeys(args.stack or [DEFAULT]))
    files = project_files(stacks, json_schema("stack"))
    write_project(args.folder, files)
    for name in files:
        print(args.folder / name)
    return 0
