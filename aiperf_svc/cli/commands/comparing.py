"""`compare`, `history` and `verify`: finished runs compared with each other and with rules."""

import argparse
import sys
from pathlib import Path
from types import ModuleType

from msgspec.structs import replace

from aiperf_svc.adapters.comparison import history_views as views
from aiperf_svc.adapters.comparison import markdown, page
from aiperf_svc.adapters.comparison.comparing import compare_folders, curves_of
from aiperf_svc.adapters.comparison.run_folders import (
    find_runs,
    left_out_runs,
    read_runs,
    refuse_joint,
)
from aiperf_svc.adapters.exports.qualify_export import is_qualification, read_qualification
from aiperf_svc.adapters.rules.points import read_points
from aiperf_svc.adapters.storage import junit_file
from aiperf_svc.adapters.storage.atomic_files import write_file
from aiperf_svc.adapters.storage.bucket_runs import local_folders
from aiperf_svc.adapters.terminal.comparison_tables import print_comparisons, print_history
from aiperf_svc.adapters.terminal.output import WIDTH, console_on, print_found, print_json, say
from aiperf_svc.adapters.terminal.qualify_tables import print_changes
from aiperf_svc.adapters.terminal.rules_tables import print_report
from aiperf_svc.config.units import parse_share
from aiperf_svc.core.compare.comparison import Criteria
from aiperf_svc.core.compare.groups import Comparisons
from aiperf_svc.core.compare.history import history as changes_over_time
from aiperf_svc.core.qualify.changes import changes
from aiperf_svc.core.rules import agentx, mlperf_endpoints
from aiperf_svc.core.rules.report import RulesReport
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode


def compare(args: argparse.Namespace) -> int:
    """Compare the runs, print the result, and judge it with `--fail-on`."""
    if len(args.folders) == 2 and not args.to and all(map(is_qualification, args.folders)):
        return _compare_nodes(args)
    found, groups = compare_folders(
        args.folders,
        args.to or (),
        by=args.by,
        criteria=Criteria(
            read_tolerance(args.tolerance), args.metric, args.all, is_paired=args.paired
        ),
        with_curves=args.html is not None,
    )
    if args.html is not None:
        curves = curves_of([*args.folders, *(args.to or ())])
        write_file(args.html, lambda: page.render(found, groups, curves))
    _print(found, args)
    code, reason = _fail_on_code(found) if args.fail_on else (ExitCode.OK, "")
    if args.junit is not None:
        junit_file.write_cases(args.junit, junit_file.comparison_cases(found), code, reason)
    if reason:
        print(f"error: {reason}", file=sys.stderr)
    return int(code)


def _compare_nodes(args: argparse.Namespace) -> int:
    """Compare two qualifications node by node."""
    if args.by or args.metric or args.markdown or args.html or args.junit or args.paired:
        raise ConfigError(
            "--by, --metric, --markdown, --html, --junit, --paired: two qualifications are "
            "compared node by node, without them"
        )
    base, new = map(read_qualification, args.folders)
    found = changes(base, new, tolerance=read_tolerance(args.tolerance))
    print_found(found, print_changes, as_json=args.json, width=WIDTH + 20)
    is_worse = any(each.is_worse for each in found)
    return int(ExitCode.WORSE if args.fail_on and is_worse else ExitCode.OK)


def read_tolerance(text: str) -> float:
    """Parse the share of `--tolerance`. Raises ConfigError."""
    try:
        return parse_share(text)
    except ValueError as error:
        raise ConfigError(f"--tolerance: {text!r}: {error}") from error


def _fail_on_code(found: Comparisons) -> tuple[ExitCode, str]:
    """Return the exit code of `--fail-on`, and the reason why the comparison was not judged."""
    if found.is_worse:
        return ExitCode.WORSE, ""
    if not found.is_judged:
        return ExitCode.INCOMPARABLE, (
            "--fail-on: not every row can be judged; compare at least 3 runs on each side, with "
            "the same metrics, and no run that failed or that the target or a step made invalid, "
            "or choose rows with --metric"
        )
    return ExitCode.OK, ""


def _print(found: Comparisons, args: argparse.Namespace) -> None:
    if args.json:
        # Without parameters there is one comparison without a name.
        content = found if found.groups[0].name or found.skipped else found.groups[0]
        print_json(content)
        return
    if args.markdown:
        print(markdown.render_groups(found))
        return
    with console_on(sys.stdout, width=WIDTH + 20) as console:
        print_comparisons(found, console)


def history(args: argparse.Namespace) -> int:
    """Read the runs, find the changes, and print and write them."""
    with local_folders(args.folders, say=say) as names:
        refuse_joint(names)
        named = {
            run.folder: replace(
                run,
                folder="/".join((name.rstrip("/"), *Path(run.folder).relative_to(folder).parts)),
            )
            for folder, name in names.items()
            for run in (*read_runs(find_runs([folder])), *left_out_runs(folder))
        }
    runs = list(named.values())
    found = changes_over_time(runs, args.metric, tolerance=read_tolerance(args.tolerance))
    if args.html is not None:
        write_file(args.html, lambda: views.render_page(found))
    if args.csv is not None:
        write_file(args.csv, lambda: views.render_csv(runs))
    print_found(found, print_history, as_json=args.json)
    return 0


def verify(args: argparse.Namespace) -> int:
    """Read the runs, check them and print the requirements."""
    if args.max_concurrency is not None and args.max_concurrency < 1:
        raise ConfigError(
            f"--max-concurrency: {args.max_concurrency}: expected a number of at least 1"
        )
    rules: ModuleType = agentx if args.rules == agentx.NAME else mlperf_endpoints
    refuse_joint([args.folder])
    points = read_points(find_runs([args.folder]), rules.min_duration_s)
    report: RulesReport = rules.verify(points, args.max_concurrency)
    print_found(report, print_report, as_json=args.json, width=WIDTH + 20)
    return int(ExitCode.OK if report.is_met else ExitCode.SLO_MISSED)
