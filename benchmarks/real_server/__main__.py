"""Measure a third-party server: llama.cpp's.

    python -m benchmarks.real_server                                   prompts, then conversations
    python -m benchmarks.real_server FLAGS OF aiperf-svc profile       a file of prompts, live
    python -m benchmarks.real_server --apis [NAME ...] [--json]        each API that it offers
    python -m benchmarks.real_server --sessions [--json]               conversations by a router

The first call compiles the server (ten minutes on two idle cores) and creates a small model with
random weights, both in the user's cache folder. Later calls start within seconds. Telemetry reads
the server's metrics page during the load. `--apis` compares tokens and times with that page.
`--sessions` sends conversations through SGLang's router, installed from a wheel, to two servers.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from aiperf_svc.domain.process_environment import OWN_PROGRAM
from benchmarks.real_server.apis import APIS, compare
from benchmarks.real_server.server import made, serving
from benchmarks.real_server.sessions import compare_policies

PROMPTS = Path(__file__).parent / "prompts.jsonl"
FLAGS = (
    *("--custom-dataset-type", "single_turn", "--input-file", str(PROMPTS)),
    *("--streaming", "--concurrency", "1", "--request-count", "40", "--osl", "32"),
    *("--warmup-request-count", "4", "--model", "tiny", "--no-force-output-length"),
    # The server advertises keep-alive but closes each connection after a stream.
    *("--connections", "per-request"),
)


def main() -> int:
    """Run the server, measure it, and return the exit code of the measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    names = [api.name for api in APIS]
    parser.add_argument("--apis", nargs="*", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--sessions", action="store_true", help="conversations by a router")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options, flags = parser.parse_known_args()
    if flags and (options.sessions or options.apis is not None):
        parser.error(f"--apis and --sessions have flags of their own; leave out {' '.join(flags)}")
    if options.sessions:
        return compare_policies(as_json=options.json)
    if options.apis is not None:
        chosen = options.apis or names
        return compare([api for api in APIS if api.name in chosen], as_json=options.json)
    has_all = not flags and not options.json
    flags = [*flags, "--json"] if options.json else flags
    _, model = made()
    with serving() as url:
        where = ("--url", url, "--tokenizer", str(model))
        command = [*OWN_PROGRAM, "profile", *FLAGS, *where, *flags]
        code = subprocess.run(command).returncode
    return code or (compare_policies(as_json=False) if has_all else 0)


if __name__ == "__main__":
    sys.exit(main())
