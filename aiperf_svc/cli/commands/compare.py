"""`aiperf-svc compare`."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aiperf_svc.cli.options import add_junit_flag
from aiperf_svc.domain.errors import ConfigError, Incomparable
from aiperf_svc.domain.exit_codes import ExitCode

if TYPE_CHECKING:
    from aiperf_svc.adapters.comparison.experiment_folders import FolderGroup
    from aiperf_svc.adapters.report.curve_chart import NamedCurve
    from aiperf_svc.core.compare.groups import Comparisons, Group
    from aiperf_svc.core.compare.measured_run import MeasuredRun

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
    from aiperf_svc.adapters.exports.qualify_export import is_qualification
    from aiperf_svc.core.compare.groups import Group, compare_groups

    if len(args.folders) == 2 and not args.to and all(map(is_qualification, args.folders)):
        return _compare_nodes(args)
    tolerance = read_tolerance(args.tolerance)
    folders = _groups(args.folders, args.to, args.by)
    if args.paired and not all(all(each.blocks.values()) and each.blocks for each in folders):
        raise ConfigError(
            "--paired: needs an experiment that ran in blocks (experiment.blocks), by itself: "
            "compare EXPERIMENT --by KEY --paired"
        )
    groups = [
        _with_requests(
            Group(each.name, _runs(each.base, each.blocks), _runs(each.new, each.blocks)), args
        )
        for each in folders
    ]
    found = compare_groups(
        groups,
        tolerance=tolerance,
        wanted=args.metric,
        with_all=args.all,
        is_paired=args.paired,
    )
    found = _with_answers(found, groups)
    if args.html is not None:
        from aiperf_svc.adapters.comparison import page
        from aiperf_svc.adapters.storage.atomic_files import write_file

        curves = _curves([*args.folders, *(args.to or ())])
        write_file(args.html, lambda: page.render(found, groups, curves))
    _print(found, args)
    if args.junit is not None:
        from aiperf_svc.adapters.storage import junit_file

        junit_file.write_cases(args.junit, junit_file.comparison_cases(found), ExitCode.OK, "")
    return int(_judged(found) if args.fail_on else ExitCode.OK)


def _with_answers(found: "Comparisons", groups: "Sequence[Group]") -> "Comparisons":
    """Add how the answers to the questions of a quality gate agree."""
    from msgspec.structs import replace

    from aiperf_svc.adapters.comparison.run_folders import answers_agreement

    sides = {each.name: each for each in groups}
    return replace(
        found,
        groups=tuple(
            replace(each, answers=answers_agreement(sides[each.name].base, sides[each.name].new))
            for each in found.groups
        ),
    )


def _curves(folders: Sequence[Path]) -> "list[NamedCurve]":
    """Return the curves of the experiments among the folders."""
    from aiperf_svc.adapters.exports.experiment_file import is_experiment, read_result
    from aiperf_svc.adapters.report.curve_chart import named
    from aiperf_svc.core.experiments.throughput_curve import curves_of_result

    results = {each: read_result(each) for each in folders if is_experiment(each)}
    names = [each.name for each in results.values()]
    found: list[NamedCurve] = []
    for folder, result in results.items():
        is_clear = names.count(result.name) == 1
        found += named(curves_of_result(result), result.name if is_clear else str(folder))
    return found


def _runs(folders: "Sequence[Path]", blocks: Mapping[str, int]) -> "list[MeasuredRun]":
    """Read the runs of a side, each with its block."""
    from msgspec.structs import replace

    from aiperf_svc.adapters.comparison.run_folders import read_runs

    found = zip(folders, read_runs(folders), strict=True)
    return [replace(run, block=blocks.get(str(folder), 0)) for folder, run in found]


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


def _groups(folders: Sequence[Path], to: Sequence[Path] | None, by: str) -> "Sequence[FolderGroup]":
    from aiperf_svc.adapters.comparison import experiment_folders as experiments
    from aiperf_svc.adapters.comparison.run_folders import find_runs
    from aiperf_svc.adapters.exports.experiment_file import is_experiment

    if len(folders) == 1 and not to and is_experiment(folders[0]):
        return experiments.groups_of_variants(folders[0], by)
    if by:
        raise ConfigError("--by: compares two variants of one experiment; name its folder alone")
    base, new = _sides(folders, to)
    everything = [*base, *new]
    if all(map(is_experiment, everything)):
        return experiments.groups_of_sides(base, new)
    find_runs([each for each in everything if not is_experiment(each)])
    for folder in filter(is_experiment, everything):
        experiments.refuse_several_combinations(folder)
    return [experiments.FolderGroup("", find_runs(base), find_runs(new))]


def _with_requests(group: "Group", args: argparse.Namespace) -> "Group":
    """Read the single requests if they are needed: with few runs, they show how certain a
    difference is; with many, they do not matter. The page plots them."""
    from aiperf_svc.adapters.comparison.run_folders import with_requests
    from aiperf_svc.core.compare.comparison import LEAST_RUNS

    sides = group.base, group.new
    are_few = min(sum(run.is_usable for run in side) for side in sides) < LEAST_RUNS
    if not are_few and args.html is None:
        return group
    base, new = (
        with_requests(side, batches=are_few, curves=args.html is not None) for side in sides
    )
    return group._replace(base=base, new=new)


def _sides(folders: Sequence[Path], to: Sequence[Path] | None) -> tuple[Sequence[Path], ...]:
    if to:
        return folders, to
    if len(folders) != 2:
        raise ConfigError(
            "two folders are needed: compare BASE NEW; with more of them, name the new side after "
            "--to: compare BASE BASE --to NEW NEW; of one experiment, two variants: compare "
            "EXPERIMENT --by KEY"
        )
    return folders[:1], folders[1:]


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
