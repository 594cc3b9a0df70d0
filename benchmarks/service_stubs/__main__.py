"""Runs the stubs whose numbers are this process's share."""

import argparse
import json
from pathlib import Path

from aiperf_svc.adapters.host.child_processes import die_with_parent
from aiperf_svc.adapters.host.machine import raise_fd_limit
from benchmarks.service_stubs import __doc__ as DESCRIPTION
from benchmarks.service_stubs.stub_host import StubHost


def main() -> None:
    """Run the stubs whose numbers are this process's share."""
    parser = argparse.ArgumentParser(description=DESCRIPTION)
    for name in ("workers", "processors", "share", "of"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    die_with_parent()
    raise_fd_limit()
    processors = [n for n in range(options.processors) if n % options.of == options.share]
    mine = set(processors)
    workers = [n for n in range(options.workers) if n % options.processors in mine]
    host = StubHost([f"worker-{n}" for n in workers], [f"record-processor-{n}" for n in processors])
    host.run()
    options.result.write_text(json.dumps(host.result()))


main()
