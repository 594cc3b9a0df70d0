"""Measure every known server and print a table.

python -m benchmarks.fuzz.known_servers
python -m benchmarks.fuzz.known_servers --only hidden-reasoning
"""

import argparse
import sys

from benchmarks.fuzz.known_servers.known_server import measure
from benchmarks.fuzz.known_servers.registry import SERVERS
from benchmarks.truth.client_runs import RunFailedError


def main() -> int:
    """Measure and print; return 1 if a result differs from the truth."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=[server.name for server in SERVERS])
    options = parser.parse_args()
    failed = 0
    for server in SERVERS:
        if options.only and server.name not in options.only:
            continue
        try:
            problems = measure(server)
        except RunFailedError as error:
            problems = [f"the run failed: {error}"]
        failed += bool(problems)
        print(f"{server.name:40} {'; '.join(problems) or 'ok'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
