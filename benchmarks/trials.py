"""Measures what an experiment costs beside its loads: the time between two loads, and memory.

    python -m benchmarks.trials --trials 50 --duration 2

A trial's load ends with its last response, and the next one's begins with its first request, by the
times in the results. The memory is that of all processes of the experiment, read once a second.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from benchmarks.suite import ROOT

PAGE = os.sysconf("SC_PAGESIZE")


def main() -> None:
    """Run the experiment and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--duration", type=float, default=2.0, help="seconds of load each")
    args = parser.parse_args()
    with (
        running(MockServerConfig(ttft="5ms", itl="1ms", tokens=10)) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        command = [sys.executable, "-m", "aiperf_svc", "profile", "-u", server.url, "-m", "m"]
        command += ["--streaming", "--concurrency", "4", "--isl", "32", "--ui", "none"]
        command += ["--benchmark-duration", str(args.duration)]
        command += ["--repetitions", str(args.trials), "--artifact-dir", folder]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        memory = []
        while process.poll() is None:
            memory.append(resident_mib(process.pid))
            time.sleep(1)
        assert process.returncode in (0, 5), process.returncode
        (artifacts,) = Path(folder).iterdir()
        gaps = gaps_s(artifacts)
    assert len(gaps) == args.trials - 1
    print(
        f"{args.trials} trials: {statistics.median(gaps):.2f} s from load to load (median; "
        f"longest {max(gaps):.2f} s)"
    )
    quarter = max(1, len(memory) // 4)
    early = statistics.median(memory[quarter : 2 * quarter])
    late = statistics.median(memory[-quarter:-1] or memory)
    print(f"memory {early:.0f} MiB in the second quarter, {late:.0f} MiB in the last one")


def gaps_s(artifacts: Path) -> list[float]:
    """Return the times between the loads of the trials of a finished experiment."""
    trials = json.loads((artifacts / "experiment.json").read_text())["trials"]
    spans = []
    for trial in trials:
        lines = (artifacts / "trials" / trial["folder"] / "profile_export.jsonl").read_text()
        metadata = [json.loads(line)["metadata"] for line in lines.splitlines()]
        starts = [each["request_start_ns"] for each in metadata]
        ends = [each["request_end_ns"] for each in metadata]
        spans.append((min(starts), max(ends)))
    return [(spans[i + 1][0] - spans[i][1]) / 1e9 for i in range(len(spans) - 1)]


def resident_mib(root: int) -> float:
    """Return the resident memory of a process and its descendants."""
    parents: dict[int, int] = {}
    pages: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)], pages[int(folder.name)] = int(fields[1]), int(fields[21])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sum(pages.get(pid, 0) for pid in found) * PAGE / 2**20


if __name__ == "__main__":
    main()
