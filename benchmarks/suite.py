"""Runs every benchmark: `make benchmark`, or `make benchmark-quick` for short runs.

    python -m benchmarks.suite [--quick] [--only PART ...]

Writes benchmarks/results/<date>.json and generates the tables of docs/performance.md from it. Each
part is a separate command, which the page shows with its figures. A failing part is reported there
and does not stop the others.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from aiperf_svc.adapters.host.machine import cpu_model
from aiperf_svc.adapters.host.vitals import stolen_ns
from benchmarks.machine import describe
from benchmarks.performance_page import page, plots

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/performance.md"
TIMEOUT_S, QUICK_TIMEOUT_S = 3_600, 300


class Part(NamedTuple):
    """One benchmark: a module of this package and its flags."""

    name: str
    title: str
    module: str
    flags: str
    quick_flags: str | None
    """Flags of a quick run. None means that the part is skipped."""

    def command(self, *, is_quick: bool) -> str:
        """Return the command line that reproduces the part."""
        flags = self.quick_flags if is_quick else self.flags
        return f"python -m benchmarks.{self.module} {flags} --json".replace("  ", " ")


PARTS = (
    Part(
        "speed",
        "Speed, against wrk in the same run",
        "speed",
        "--only requests --only streams --only interpreted --only lifecycle --only exports",
        "--quick",
    ),
    Part("memory", "Memory of a held connection", "speed", "--only memory", None),
    Part("truth", "Truth, against the server's own log", "truth", "", "--only rate-300 rate-1000"),
    Part("apis", "Truth of each API that streams", "truth.apis", "", None),
    Part(
        "session_trees",
        "Session trees, against the server's own log",
        "truth.session_trees",
        "",
        "--requests 1000",
    ),
    Part("classifier", "The verdict as a classifier", "verdict_classifier", "--runs 60", None),
    Part(
        "connections",
        "100,000 held connections",
        "scale_connections",
        "--connections 100000 --duration 300s",
        None,
    ),
    Part(
        "control_plane",
        "The control plane",
        "control_plane",
        "--workers 2000 --seconds 20 --most-seconds 300",
        "--seconds 10",
    ),
    Part(
        "agent_traces",
        "The start of an agent trace",
        "agent_traces",
        "",
        "--requests 5000 --trees 4",
    ),
    Part("records", "Millions of records", "records_15m", "", None),
    Part("collecting", "Collecting results", "collect_results", "", "--size 64Mi --rounds 1"),
)


def main() -> int:
    """Run the parts and write the file and the page. Return 1 if a part failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short runs; leaves the page alone")
    names = [part.name for part in PARTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="PART")
    options = parser.parse_args()
    results: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": options.quick,
        "machine": describe(),
        "parts": {},
    }
    for part in PARTS:
        if part.name in options.only and (part.quick_flags is not None or not options.quick):
            results["parts"][part.name] = _run(part, is_quick=options.quick)
    RESULTS.mkdir(exist_ok=True)
    stem = results["date"][:10] + ("-quick" if options.quick else "")
    path = RESULTS / f"{stem}.json"
    if path.is_file():
        # Keep parts that were measured earlier on the same day.
        results["parts"] = json.loads(path.read_text())["parts"] | results["parts"]
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written: {path.relative_to(ROOT)}", file=sys.stderr)
    if not options.quick:
        for name, svg in plots(results).items():
            (PAGE.parent / "images" / name).write_text(svg)
        PAGE.write_text(page(PAGE.read_text(), results, source=path.name))
        print(f"written: {PAGE.relative_to(ROOT)}", file=sys.stderr)
    return int(any("failed" in results["parts"].get(name, {}) for name in options.only))


def _run(part: Part, *, is_quick: bool) -> dict[str, Any]:
    command = part.command(is_quick=is_quick)
    print(f"{part.name}: {command}", file=sys.stderr)
    found: dict[str, Any] = {"title": part.title, "command": command}
    began, stolen_before_ns = time.monotonic(), stolen_ns()
    try:
        done = subprocess.run(
            [sys.executable, *shlex.split(command)[1:]],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            timeout=QUICK_TIMEOUT_S if is_quick else TIMEOUT_S,
            check=False,
        )
        found["figures"] = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        found["failed"] = f"took longer than {error.timeout:g} s"
    except ValueError:
        found["failed"] = f"exit {done.returncode} without figures; run the command to see why"
    took_s = time.monotonic() - began
    found["took_s"] = round(took_s, 1)
    found["cpu"] = cpu_model()
    found["stolen_share"] = round((stolen_ns() - stolen_before_ns) / 1e9 / took_s, 3)
    return found


if __name__ == "__main__":
    sys.exit(main())
