"""Fuzzes the product: a server sends seeded legal and broken responses, and configs are mutated.

    make fuzz
    python -m benchmarks.fuzz --responses 10000 --configs 1000 --seed 1

Every run and every config is a function of the seed. Prints a line for each run, and each problem
with the bytes that caused it. Exits with 1 if there is a problem.
"""

import argparse
import sys
import time

from benchmarks import machine_use
from benchmarks.fuzz.configs import fuzz_configs
from benchmarks.fuzz.in_process import run_in_process
from benchmarks.fuzz.trials import Finding, run_trial, trials

SHOWN = 10
"""Number of problems printed for each run."""


def main() -> int:
    """Run the fuzzers and print the results. Return 0 if no problem was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--responses", type=int, default=10_000)
    parser.add_argument("--configs", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trial", type=int, help="only the run of this number")
    parser.add_argument(
        "--in-process", action="store_true", help="client and record assembly only, no services"
    )
    options = parser.parse_args()
    machine_use.end_orderly()
    problems, began = 0, time.monotonic()
    for trial in trials(options.responses, seed=options.seed):
        if options.trial in (None, trial.number):
            finding = run_in_process(trial) if options.in_process else run_trial(trial)
            _show(finding)
            problems += len(finding.problems)
    if options.configs:
        found = fuzz_configs(options.configs, seed=options.seed)
        print(f"{options.configs} changed configs: {len(found)} problems")
        for problem in found[:SHOWN]:
            print(f"  {problem}")
        problems += len(found)
    seconds = time.monotonic() - began
    print(f"{options.responses:,} responses, {options.configs:,} configs in {seconds:.0f} s: "
          f"{f'{problems} problems, FAILED' if problems else 'passed'}")  # fmt: skip
    return 1 if problems else 0


def _show(finding: Finding) -> None:
    trial = finding.trial
    max_mib = max(finding.growth.values(), default=0) / 2**20
    print(
        f"run {trial.number:3}: {trial.responses:5} "
        f"{'streams' if trial.is_streaming else 'bodies '} {finding.good:5} good "
        f"{finding.bad:5} bad "
        f"{finding.verdict or '-':9} exit {finding.exit_code:2} {finding.seconds:5.1f} s"
        + (f", grew by at most {max_mib:.1f} MiB" if finding.growth else "")
        + (f", {len(finding.problems)} PROBLEMS" if finding.problems else "")
    )
    for problem in finding.problems[:SHOWN]:
        print(f"  {problem}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
