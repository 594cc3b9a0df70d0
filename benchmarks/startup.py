"""Measures the phases of a run with one request, from the command's start to its end.

    python -m benchmarks.startup

The command runs several times against the mock server. The times of the states come from the log of
the system controller. Another run prints the import times of all its processes (`python -X
importtime`). Without other load, these are CPU times.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median

from aiperf_svc.domain.process_environment import OWN_PROGRAM
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from benchmarks.suite import ROOT

FLAGS = ("-m", "m", "--streaming", "--concurrency", "1", "--request-count", "1", "--ui", "none")
IMPORTED = re.compile(r"import time: +(\d+) \| +\d+ \| +(\w+)")
SHOWN_MS = 10.0


def run_once(url: str, folder: Path, **variables: str) -> tuple[dict[str, float], float, str]:
    """Return the wall time until each state and the end, the CPU time, and standard error."""
    command = [*OWN_PROGRAM, "profile", "-u", url, *FLAGS]
    cpu_before, start_s = cpu_s(), time.time()
    done = subprocess.run(
        [*command, "--artifact-dir", str(folder)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    end_s, cpu_after = time.time(), cpu_s()
    (artifacts,) = folder.iterdir()
    reached = {}
    for line in (artifacts / "logs" / "system-controller.log").read_text().splitlines():
        entry = json.loads(line)
        if not entry["message"].startswith("run is"):
            at = datetime.fromisoformat(entry["time"]).timestamp()
            reached[entry["message"].split()[0]] = at - start_s
    return reached | {"end of the command": end_s - start_s}, cpu_after - cpu_before, done.stderr


def cpu_s() -> float:
    """Return the CPU time of all ended children."""
    used = getrusage(RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def import_times_ms(stderr: str) -> list[tuple[str, float]]:
    """Return the self time of each package's imports, in descending order."""
    found: Counter[str] = Counter()
    for microseconds, package in IMPORTED.findall(stderr):
        found[package] += int(microseconds)
    return [(package, each / 1e3) for package, each in found.most_common()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="benchmarks.startup", description=__doc__)
    parser.add_argument("--runs", type=int, default=7, help="number of runs (default: 7)")
    runs = parser.parse_args(arguments).runs
    with (
        running(MockServerConfig(ttft="1ms", itl="1ms", tokens=3)) as mock,
        tempfile.TemporaryDirectory() as folder,
    ):
        found = [run_once(mock.url, Path(folder, str(number))) for number in range(runs)]
        imports = import_times_ms(
            run_once(mock.url, Path(folder, "imports"), PYTHONPROFILEIMPORTTIME="1")[2]
        )
    print(f"| medians of {runs} runs | reached after, ms | of it, ms |\n|---|---:|---:|")
    before = 0.0
    for name in found[0][0]:
        at = median(reached[name] for reached, _, _ in found)
        print(f"| {name} | {at * 1e3:,.0f} | {(at - before) * 1e3:,.0f} |")
        before = at
    print(f"| CPU of all processes | {median(cpu for _, cpu, _ in found) * 1e3:,.0f} | |\n")
    print("| imports of all processes | ms |\n|---|---:|")
    for package, ms in imports:
        if ms >= SHOWN_MS:
            print(f"| {package} | {ms:,.0f} |")
    print(f"| others | {sum(ms for _, ms in imports if ms < SHOWN_MS):,.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
