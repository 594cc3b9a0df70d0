"""`aiperf-svc compare`."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aiperf_svc.cli.arguments import add_junit_flag
from aiperf_svc.domain.errors import ConfigError, Incomparable
from aiperf_svc.domain.exit_codes import ExitCode

if TYPE_CHECKING:
    from aiperf_svc.core.compare.groups import Comparisons

DESCRIPTION = """Compare finished runs: is the new side better, worse or the same?

  aiperf-svc compare BASE NEW
  aiperf-svc compare BASE BASE BASE --to NEW NEW NEW
  aiperf-svc compare EXPERIMENT --by KEY=BASE,NEW

A folder is the artifact folder of a run, or contains such folders. Experiments are compared for
each combination of their parameters, and qualifications node by node. A judgement needs at least 3
runs on each side, measured in turns (base, new, base, new, ...). docs/comparing.md explains the
reason and the terms."""

TOLERANCE = "5%"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folders, the tolerance and the output flags."""
    parser.add_argument("folders", metavar="FOLDER", type=Path, nargs="+", help="BASE and NEW.")
    parser.add_argument(
        "--to", metavar="NEW", type=Path, nargs="+", help="The new side, if it has several folders."
    )
    parser.add_argument(
        "--by",
        metavar="KEY[=BASE,NEW]",
        default="",
        help="Compare the trials of one experiment that have these two values of a parameter.",
    )
    parser.add_argument(
        "--paired",
        action="store_true",
        help="With --by, compare within the blocks of an experiment (experiment.blocks): a drift "
        "is the same for both sides of a block.",
    )
    parser.add_argument(
        "--tolerance",
        metavar="SHARE",
        default=TOLERANCE,
        help="Largest difference that does not matter. Default: 5%%.",
    )
    parser.add_argument(
        "--metric",
        metavar="TAG[:STAT]",
        action="append",
        default=[],
        help="Judge this row, such as time_to_first_token:p99, instead of the usual ones. "
        "Repeat for more.",
    )
    parser.add_argument(
        "--all", action="store_true", help="Show all rows. The added rows are not judged."
    )
    parser.add_argument(
        "--fail-on",
        metavar="WORD",
        choices=["worse"],
        help="worse: exit with 7 if a metric is worse, with 8 if a row cannot be judged.",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--markdown", action="store_true", help="Print Markdown.")
    output.add_argument("--json", action="store_true", help="Print one JSON object.")
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="Also write a page with both distributions."
    )
    add_junit_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Compare and print, and judge with `--fail-on`."""
    from aiperf_svc.adapters.comparison.comparing import compare_folders, curves_of
    from aiperf_svc.adapters.exports.qualify_export import is_qualification

    if len(args.folders) == 2 and not args.to and all(map(is_qualification, args.folders)):
        return _compare_nodes(args)
    found, groups = compare_folders(
        args.folders,
        args.to or (),
        by=args.by,
        is_paired=args.paired,
        tolerance=read_tolerance(args.tolerance),
        wanted=args.metric,
        with_all=args.all,
        with_curves=args.html is not None,
    )
    if args.html is not None:
        from aiperf_svc.adapters.comparison import page
        from aiperf_svc.adapters.storage.atomic_files import write_file

        curves = curves_of([*args.folders, *(args.to or ())])
        write_file(args.html, lambda: page.render(found, groups, curves))
    _print(found, args)
    if args.junit is not None:
        from aiperf_svc.adapters.storage import junit_file

        junit_file.write_cases(args.junit, junit_file.comparison_cases(found), ExitCode.OK, "")
    return int(_judged(found) if args.fail_on else ExitCode.OK)


def _compare_nodes(args: argparse.Namespace) -> int:
    """Compare two qualifications node by node."""
    from aiperf_svc.adapters.exports.qualify_export import read_qualification
    from aiperf_svc.adapters.terminal.output import WIDTH, console_on
    from aiperf_svc.adapters.terminal.qualify_tables import print_changes
    from aiperf_svc.core.qualify.changes import changes

    if args.by or args.metric or args.markdown or args.html or args.junit:
        raise ConfigError(
            "--by, --metric, --markdown, --html, --junit: two qualifications are compared node by "
            "node, without them"
        )
    found = changes(*map(read_qualification, args.folders))
    if args.json:
        from aiperf_svc.adapters.terminal.output import print_json

        print_json(found)
    else:
        with console_on(sys.stdout, width=WIDTH + 20) as console:
            print_changes(found, console)
    is_worse = any(each.change in ("worse", "gone", "not measured") for each in found)
    return int(ExitCode.WORSE if args.fail_on and is_worse else ExitCode.OK)


def read_tolerance(text: str) -> float:
    """Return the share that `--tolerance` gives. Raises ConfigError."""
    from aiperf_svc.config.units import parse_share

    try:
        return parse_share(text)
    except ValueError as error:
        raise ConfigError(f"--tolerance {text}: {error}") from error


def _judged(found: "Comparisons") -> ExitCode:
    if found.is_worse:
        return ExitCode.WORSE
    if not found.is_judged:
        raise Incomparable(
            "--fail-on: not every row can be judged; compare at least 3 runs on each side, with "
            "the same metrics, or choose rows with --metric"
        )
    return ExitCode.OK


def _print(found: "Comparisons", args: argparse.Namespace) -> None:
    if args.json:
        from aiperf_svc.adapters.terminal.output import print_json

        # Without parameters there is one comparison, and no combinations to name.
        content = found if found.groups[0].name or found.skipped else found.groups[0]
        print_json(content)
        return
    if args.markdown:
        from aiperf_svc.adapters.comparison import markdown

        print(markdown.render_groups(found))
        return
    from aiperf_svc.adapters.terminal.comparison_tables import print_comparisons
    from aiperf_svc.adapters.terminal.output import WIDTH, console_on

    with console_on(sys.stdout, width=WIDTH + 20) as console:
        print_comparisons(found, console)
