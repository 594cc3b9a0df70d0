"""`aiperf-svc verify`."""

import argparse
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode

if TYPE_CHECKING:
    from aiperf_svc.core.rules.report import RulesReport

DESCRIPTION = """Check finished runs against the rules of a benchmark.

  aiperf-svc verify --rules mlperf-endpoints-1.0 FOLDER
  aiperf-svc verify --rules agentx-2026-08 FOLDER

FOLDER is that of an experiment over load.concurrency, of a run, or of several runs. Each
requirement is met, not met, or not checkable here. The exit code is 4 if one is not met.
docs/agentic.md describes the rules and what an official submission needs in addition."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the rules, the folder and the output flag."""
    from aiperf_svc.core.rules import RULES

    parser.add_argument("folder", metavar="FOLDER", type=Path, help="Experiment or runs.")
    parser.add_argument("--rules", required=True, choices=RULES, help="Rules to check.")
    parser.add_argument(
        "--max-concurrency",
        metavar="N",
        type=int,
        help="Declared maximum concurrency. Default: that of the highest point.",
    )
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")


def run(args: argparse.Namespace) -> int:
    """Read the runs, check them and print the requirements."""
    from aiperf_svc.adapters.comparison.run_folders import find_runs
    from aiperf_svc.adapters.rules.points import read_points
    from aiperf_svc.core.rules import agentx, mlperf_endpoints

    if args.max_concurrency is not None and args.max_concurrency < 1:
        raise ConfigError(f"--max-concurrency {args.max_concurrency}: expected 1 or more")
    rules: ModuleType = agentx if args.rules == agentx.NAME else mlperf_endpoints
    points = read_points(find_runs([args.folder]), rules.least_duration_s)
    report: RulesReport = rules.verify(points, args.max_concurrency)
    if args.json:
        from aiperf_svc.adapters.terminal.output import print_json

        print_json(report)
    else:
        from aiperf_svc.adapters.terminal.output import console_on
        from aiperf_svc.adapters.terminal.rules_tables import print_report

        with console_on(sys.stdout, width=120) as console:
            print_report(report, console)
    return int(ExitCode.OK if report.is_met else ExitCode.SLO_MISSED)
