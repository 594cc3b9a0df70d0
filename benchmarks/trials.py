"""Measures the overhead of an experiment: the time between two loads, memory, and open files.

    python -m benchmarks.trials --trials 50 --duration 2

A trial's load ends with its last response, and the next load begins with its first request,
according to the results. Memory and open files (including sockets and pipes) are the totals of all
processes of the experiment, sampled once per second.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from aiperf_svc.domain.process_environment import OWN_PROGRAM
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
        command = [*OWN_PROGRAM, "profile", "-u", server.url, "-m", "m"]
        command += ["--streaming", "--concurrency", "4", "--isl", "32", "--ui", "none"]
        command += ["--benchmark-duration", str(args.duration)]
        command += ["--repetitions", str(args.trials), "--artifact-dir", folder]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        memory, files = [], []
        while process.poll() is None:
            processes = descendants(process.pid)
            memory.append(resident_mib(processes))
            files.append(open_files(processes))
            time.sleep(1)
        assert process.returncode in (0, 5), process.returncode
        (artifacts,) = Path(folder).iterdir()
        gaps = gaps_s(artifacts)
    assert len(gaps) == args.trials - 1
    print(
        f"{args.trials} trials: {statistics.median(gaps):.2f} s from load to load (median; "
        f"longest {max(gaps):.2f} s)"
    )
    for name, series in (("memory in MiB", memory), ("open files", files)):
        quarter = max(1, len(series) // 4)
        early = statistics.median(series[quarter : 2 * quarter])
        late = statistics.median(series[-quarter:-1] or series)
        print(f"{name}: {early:.0f} in the second quarter, {late:.0f} in the last one")


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


def descendants(root: int) -> dict[int, int]:
    """Return the ids of a process and its descendants, with their resident pages."""
    parents: dict[int, int] = {}
    pages: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)], pages[int(folder.name)] = int(fields[1]), int(fields[21])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: pages.get(pid, 0) for pid in found}


def resident_mib(processes: dict[int, int]) -> float:
    """Return the resident memory of these processes."""
    return sum(processes.values()) * PAGE / 2**20


def open_files(processes: dict[int, int]) -> int:
    """Return the number of files, sockets and pipes that these processes have open."""
    count = 0
    for pid in processes:
        with suppress(OSError):
            count += sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return count


if __name__ == "__main__":
    main()
