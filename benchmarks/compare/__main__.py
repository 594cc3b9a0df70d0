"""Measures the cost of comparing two large runs.

    python -m benchmarks.compare [--requests 1000000]

Creates two runs of this size, compares them like `aiperf-svc compare BASE NEW`, and prints time and
peak memory of that process: first with the text, then with the page that shows both distributions.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from aiperf_svc.adapters.storage.artifacts import write_all
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.results.summarise import summarise
from aiperf_svc.core.results.summary import FinishedRun
from aiperf_svc.core.stats.histogram import Histogram
from aiperf_svc.core.stats.load_window import PhaseTimes
from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.domain.process_environment import OWN_PROGRAM
from aiperf_svc.protocol.records import METRIC_DTYPE, Flag

START_WALL_NS = 1_795_227_878_000_000_000
RATE = 2_000
"""Requests per second of the fake runs."""
MS_NS = 10**6


def main() -> int:
    """Create the runs, compare them, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000, help="in each run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sides = [Path(folder) / name for name in ("base", "new")]
        for seed, side in enumerate(sides):
            make_run(side, args.requests, seed=seed)
        for flags in ([], ["--html", f"{folder}/page.html"]):
            seconds, peak = measure(["compare", *map(str, sides), *flags])
            name = " ".join(["compare", *flags[:1]])
            print(f"{name:<15} {args.requests:,} requests a side: {seconds:.2f} s, {peak:.0f} MiB")
    return 0


def make_run(folder: Path, requests: int, *, seed: int) -> None:
    """Write the artifact folder of a run with random latencies."""
    random = np.random.default_rng(seed)
    columns: dict[str, Any] = {
        name: np.zeros(requests, dtype=METRIC_DTYPE[name]) for name in METRIC_DTYPE.names or ()
    }
    start = START_WALL_NS + (random.exponential(1 / RATE, requests).cumsum() * 1e9).astype(np.int64)
    first = start + (random.lognormal(np.log(30), 0.3, requests) * MS_NS).astype(np.int64)
    tokens = random.integers(20, 60, requests)
    last = first + (random.normal(5.0, 0.2, requests) * MS_NS * (tokens - 1)).astype(np.int64)
    columns |= {
        "seq": np.arange(1, requests + 1, dtype=np.uint64),
        "index": np.arange(requests, dtype=np.uint64),
        "output_tokens": tokens.astype(np.int32),
    }
    columns |= dict.fromkeys(("due_wall_ns", "start_wall_ns", "sent_wall_ns"), start)
    columns |= dict.fromkeys(("ack_wall_ns", "first_token_wall_ns", "first_output_wall_ns"), first)
    columns |= dict.fromkeys(("last_token_wall_ns", "end_wall_ns"), last)
    columns["phase"][:] = Phase.PROFILING
    columns["outcome"][:] = Outcome.COMPLETED
    columns["flags"][:] = Flag.STREAMED | Flag.REUSED
    columns["status"][:] = 200
    config = BenchmarkConfig.model_validate(
        {
            "endpoint": {"url": "http://127.0.0.1:9100", "model": "mock", "streaming": True},
            "load": {"request_rate": RATE, "requests": requests},
        }
    )
    context = FinishedRun(
        run_id=f"made-up-{seed}",
        config=config,
        version="0",
        profiling=PhaseTimes(start_wall_ns=START_WALL_NS),
        workers=(),
        cli_command="",
    )
    folder.mkdir()
    write_all(folder, summarise(columns, Histogram(), context), columns)


def measure(arguments: list[str]) -> tuple[float, float]:
    """Run the command and return its seconds and its peak memory in MiB."""
    began = time.perf_counter()
    process = subprocess.Popen([*OWN_PROGRAM, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)}: exit code {process.returncode}")
    return time.perf_counter() - began, usage.ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
