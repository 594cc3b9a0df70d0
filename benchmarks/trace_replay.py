"""Measures the cost of a trace with a million rows: memory of all processes, time before the load,
and the accuracy of send times.

    python -m benchmarks.trace_replay [--rows N] [--rate R] [--seconds S] [--tokenizer FILE]

The trace has prompts of 300 to 1,000 tokens, the first 512 of which are shared with other rows, and
Poisson arrivals. The same part is replayed twice: from a file that contains only this part, and
from the whole file.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from aiperf_svc.domain.process_environment import OWN_PROGRAM
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from benchmarks.machine_use import family, pss_bytes
from benchmarks.suite import ROOT

POLL_S = 0.1


def rows(count: int, rate: float) -> Iterator[str]:
    """Yield the lines of the trace."""
    random = np.random.default_rng(1)
    times_ms = np.cumsum(random.exponential(1000 / rate, size=count))
    lengths = random.integers(300, 1000, size=count)
    for number, (at_ms, length) in enumerate(zip(times_ms, lengths, strict=True)):
        ids = [number % 5000, number][: 1 + (length > 512)]
        row = {"timestamp": round(at_ms, 3), "input_length": int(length), "output_length": 2}
        yield json.dumps(row | {"hash_ids": ids}) + "\n"


def replay(file: Path, url: str, seconds: float, folder: Path, more: list[str]) -> dict[str, Any]:
    """Replay the beginning of a file and return its cost and its results."""
    command = [*OWN_PROGRAM, "profile", "-u", url, "-m", "m", "--streaming"]
    command += ["--input-file", str(file), "--custom-dataset-type", "mooncake_trace"]
    command += ["--fixed-schedule", "--benchmark-duration", f"{seconds:g}s", "--ui", "none"]
    command += ["--json", "--artifact-dir", str(folder), *more]
    begun_s = time.time()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    ) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, pss_bytes(family(process.pid)))
            time.sleep(POLL_S)
        assert process.stdout is not None
        results = json.loads(process.stdout.read())["results"]
    lag, started = results["schedule_lag"], datetime.fromisoformat(results["start_time"])
    return {
        "rows": sum(1 for _ in file.open()),
        "sent": int(results["aiperf_svc"]["accounts"]["completed"]),
        "peak_mib": peak / 2**20,
        "start_s": started.timestamp() - begun_s,
        "lag_p50_ms": lag["p50"],
        "lag_p99_ms": lag["p99"],
        "verdict": results["aiperf_svc"]["verdict"],
    }


def main() -> None:
    """Replay both files and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--tokenizer")
    args = parser.parse_args()
    more = ["--tokenizer", args.tokenizer] if args.tokenizer else []
    needed = int(args.rate * args.seconds * 1.1)
    server = MockServerConfig(ttft="5ms", tokens=2)
    with tempfile.TemporaryDirectory() as folder, running(server) as mock:
        part, whole = Path(folder) / "part.jsonl", Path(folder) / "whole.jsonl"
        with part.open("w") as first, whole.open("w") as all_rows:
            for number, line in enumerate(rows(args.rows, args.rate)):
                all_rows.write(line)
                if number < needed:
                    first.write(line)
        found = [
            replay(f, mock.url, args.seconds, Path(folder) / f.stem, more) for f in (part, whole)
        ]
    print("| rows | sent | peak MiB | until the load, s | lag p50, ms | lag p99, ms | verdict |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for each in found:
        print(
            f"| {each['rows']:,} | {each['sent']:,} | {each['peak_mib']:.0f} "
            f"| {each['start_s']:.1f} | {each['lag_p50_ms']:.3f} | {each['lag_p99_ms']:.3f} "
            f"| {each['verdict']} |"
        )


if __name__ == "__main__":
    main()
