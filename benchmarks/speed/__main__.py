"""Measures the throughput of the whole pipeline, with references from the same run and cores.

    python -m benchmarks.speed [--quick] [--json] [--only CASE]

Server and client share the machine. Compare the ratio to wrk between machines; a rate by itself
depends on how busy the machine was. Against a server without latency the client is the limit by
definition, so `invalid: client-bound` is the correct verdict here.
"""

import argparse
import json
import sys
from typing import Any

from benchmarks.machine import describe
from benchmarks.speed.cases import CASES, Figures
from benchmarks.speed.targets import judged


def main() -> int:
    """Run the cases and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short runs, no peers")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", choices=CASES, action="append", help="this case; again for more")
    options = parser.parse_args()
    cases: dict[str, Figures] = {}
    for name in options.only or CASES:
        cases[name] = CASES[name](is_quick=options.quick)
        if not options.json:
            print_case(name, cases[name])
    targets = judged(cases, is_quick=options.quick)
    if options.json:
        print(json.dumps({"machine": describe(), "cases": cases, "targets": targets}, indent=1))
    else:
        print("\ntargets")
        for target in targets:
            mark = "met " if target["met"] else "MISSED"
            print(f"  {mark:6} {target['name']:44} {_shown(target['value'])}  {target['target']}")
    return 0


def print_case(name: str, figures: Figures) -> None:
    """Print one case as a table."""
    print(f"\n{name}: {CASES[name].__doc__}", file=sys.stdout)
    for key, value in figures.items():
        if not isinstance(value, dict):
            print(f"  {key:34} {_shown(value)}")
        elif value:
            print(f"  {key}")
            for part, inner in value.items():
                print(f"    {part:32} {_shown(inner)}")
    sys.stdout.flush()


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_shown(v).strip()}" for k, v in value.items())
    if isinstance(value, float):
        return f"{value:14,.0f}" if abs(value) >= 1_000 else f"{value:14.4g}"
    return f"{value:14,}" if isinstance(value, int) else f"{value!s:>14}"


if __name__ == "__main__":
    sys.exit(main())
