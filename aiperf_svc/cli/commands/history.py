"""`aiperf-svc history`."""

import argparse
import sys
from pathlib import Path

from aiperf_svc.cli.commands.compare import TOLERANCE, read_tolerance

DESCRIPTION = """Show a metric over finished runs in order of time, and mark where it changed.

  aiperf-svc history FOLDER... --metric time_to_first_token:p99

A folder is the artifact folder of a run, or contains such folders. s3://BUCKET/PREFIX stands for
the runs that were uploaded there; keys, endpoint and region come from AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL and AWS_REGION. docs/comparing.md explains how
changes are found."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folders, the metric and the output flags."""
    parser.add_argument("folders", metavar="FOLDER", nargs="+", help="Runs, or s3://BUCKET/PREFIX.")
    parser.add_argument(
        "--metric",
        metavar="TAG[:STAT]",
        default="",
        help="Metric to show. Default: the first usual one.",
    )
    parser.add_argument(
        "--tolerance",
        metavar="SHARE",
        default=TOLERANCE,
        help="Largest change that is not marked. Default: 5%%.",
    )
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="Also write a page with the plot."
    )
    parser.add_argument(
        "--csv",
        metavar="FILE",
        type=Path,
        help="Also write all metrics, one row per run, for change-point tools.",
    )


def run(args: argparse.Namespace) -> int:
    """Read the runs, find the changes, print and write."""
    from msgspec.structs import replace

    from aiperf_svc.adapters.comparison import history_views as views
    from aiperf_svc.adapters.comparison.run_folders import find_runs, read_runs
    from aiperf_svc.adapters.storage.atomic_files import write_file
    from aiperf_svc.adapters.storage.bucket_runs import local_folders
    from aiperf_svc.core.compare.history import history

    with local_folders(args.folders) as names:
        named = {
            run: f"{name.rstrip('/')}{str(run).removeprefix(str(folder))}"
            for folder, name in names.items()
            for run in find_runs([folder])
        }
        runs = [replace(run, folder=named[Path(run.folder)]) for run in read_runs(list(named))]
    found = history(runs, args.metric, tolerance=read_tolerance(args.tolerance))
    if args.html is not None:
        write_file(args.html, lambda: views.render_page(found))
    if args.csv is not None:
        write_file(args.csv, lambda: views.render_csv(runs))
    if args.json:
        from aiperf_svc.adapters.terminal.output import print_json

        print_json(found)
        return 0
    from aiperf_svc.adapters.terminal.comparison_tables import print_history
    from aiperf_svc.adapters.terminal.output import console_on

    with console_on(sys.stdout) as console:
        print_history(found, console)
    return 0
