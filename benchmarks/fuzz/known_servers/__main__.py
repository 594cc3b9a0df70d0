"""Measure every known server and print a table.

python -m benchmarks.fuzz.known_servers
python -m benchmarks.fuzz.known_servers --only hidden-reasoning
"""

import argparse
import sys

from benchmarks.fuzz.known_servers.registry import SERVERS, measure_all


def main() -> int:
    """Measure and print; return 1 if a result differs from the truth."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=[server.name for server in SERVERS])
    options = parser.parse_args()
    failed = 0
    for name, problems in measure_all(options.only or ()):
        failed += bool(problems)
        print(f"{name:40} {'; '.join(problems) or 'ok'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
