"""`aiperf-svc compare`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aiperf_svc.domain.errors import ConfigError, Incomparable
from aiperf_svc.domain.exit_codes import ExitCode

if TYPE_CHECKING:
    from aiperf_svc.core.compare.comparison import Comparison

DESCRIPTION = """Compare finished runs: is the new side better, worse or the same?

  aiperf-svc compare BASE NEW
  aiperf-svc compare BASE BASE BASE --to NEW NEW NEW

A folder is a run's artifact folder, or holds such folders. At least 3 runs a side are judged, taken
in turns (base, new, base, new, ...). docs/comparing.md says why, and what the words mean."""

TOLERANCE = "5%"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folders, the tolerance and the output flags."""
    parser.add_argument("folders", metavar="FOLDER", type=Path, nargs="+", help="BASE and NEW")
    parser.add_argument(
        "--to", metavar="NEW", type=Path, nargs="+", help="the new side, of several folders"
    )
    parser.add_argument(
        "--tolerance",
        metavar="SHARE",
        default=TOLERANCE,
        help="largest difference that does not matter (default 5%%)",
    )
    parser.add_argument(
        "--metric",
        metavar="TAG[:STAT]",
        action="append",
        default=[],
        help="judge this row, e.g. time_to_first_token:p99, not the usual ones; repeatable",
    )
    parser.add_argument(
        "--all", action="store_true", help="show all rows; the added ones do not count"
    )
    parser.add_argument(
        "--fail-on",
        metavar="WORD",
        choices=["worse"],
        help="worse: exit with 7 if a metric is worse, with 8 if a row cannot be judged",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--markdown", action="store_true", help="print Markdown")
    output.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="also write a page with both distributions"
    )


def run(args: argparse.Namespace) -> int:
    """Compare, print, and judge if that was asked for."""
    from aiperf_svc.adapters.comparison.run_folders import find_runs, read_runs, with_requests
    from aiperf_svc.config.units import parse_share
    from aiperf_svc.core.compare.comparison import LEAST_RUNS, compare

    try:
        tolerance = parse_share(args.tolerance)
    except ValueError as error:
        raise ConfigError(f"--tolerance {args.tolerance}: {error}") from error
    base, new = (read_runs(find_runs(side)) for side in _sides(args.folders, args.to))
    # In few runs, their requests say how sure a difference is; with many, they do not matter.
    are_few = min(sum(run.is_usable for run in side) for side in (base, new)) < LEAST_RUNS
    if are_few or args.html is not None:
        base, new = (
            with_requests(side, batches=are_few, curves=args.html is not None)
            for side in (base, new)
        )
    found = compare(base, new, tolerance=tolerance, wanted=args.metric, with_all=args.all)
    if args.html is not None:
        from aiperf_svc.adapters.comparison import page
        from aiperf_svc.adapters.storage.atomic_files import write_file

        write_file(args.html, lambda: page.render(found, base, new))
    _print(found, args)
    return int(_judged(found) if args.fail_on else ExitCode.OK)


def _sides(folders: Sequence[Path], to: Sequence[Path] | None) -> tuple[Sequence[Path], ...]:
    if to:
        return folders, to
    if len(folders) != 2:
        raise ConfigError(
            "two folders are needed: compare BASE NEW; with more of them, name the new side after "
            "--to: compare BASE BASE --to NEW NEW"
        )
    return folders[:1], folders[1:]


def _judged(found: "Comparison") -> ExitCode:
    if found.is_worse:
        return ExitCode.WORSE
    if not found.is_judged:
        raise Incomparable(
            "--fail-on: not every row can be judged; compare at least 3 runs on each side, with "
            "the same metrics, or choose rows with --metric"
        )
    return ExitCode.OK


def _print(found: "Comparison", args: argparse.Namespace) -> None:
    if args.json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(found)).decode())
        return
    if args.markdown:
        from aiperf_svc.adapters.comparison import markdown

        print(markdown.render(found))
        return
    from rich.console import Console

    from aiperf_svc.runner.comparison_tables import print_comparison
    from aiperf_svc.runner.printing import WIDTH

    width = None if sys.stdout.isatty() else WIDTH + 20
    print_comparison(found, Console(width=width, highlight=False, markup=False))
