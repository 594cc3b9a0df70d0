"""Runs searches for the highest load that a queue with a known capacity holds.

    python -m benchmarks.searches --searches 20 --seconds 4

The server has a fixed number of slots and a fixed service time, and requests arrive at random. The
highest rate within the objective is computed independently of the product, from a long simulation
of that queue. A search passes if its bracket contains this rate. The width of each bracket is
printed, so that a wide one does not look good. On a busy machine the client can be the limit: such
searches are listed and count as missed.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from aiperf_svc.domain.process_environment import OWN_PROGRAM
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from benchmarks.suite import ROOT

SLOTS, TOKENS = 16, 2
TTFT_S, ITL_S = 0.1, 0.06
SERVICE_S = TTFT_S + (TOKENS - 1) * ITL_S
CAPACITY = SLOTS / SERVICE_S
LIMIT_S, ALLOWED = 0.16, 0.1
"""Objective: limit of the 90th percentile of the time to first token."""
LOW, HIGH = 30.0, 240.0
REQUIRED_SHARE = 0.95
"""Required share of searches whose bracket contains the knee."""
MAX_POINTS = 14
SEARCH_S = 300.0
"""Time limit of one search."""


class Found(NamedTuple):
    """Result of one search."""

    ending: str
    holds: float | None
    breaks: float | None
    points: int
    trials: int
    verdicts: str
    """Verdicts of its trials other than `valid` and that of an early end."""

    def contains(self, knee: float) -> bool:
        """Return whether the bracket has two ends and contains the knee."""
        return (
            self.holds is not None and self.breaks is not None and self.holds < knee < self.breaks
        )


def main() -> int:
    """Run the searches and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--searches", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a trial")
    parser.add_argument("--confirm", type=int, default=1, help="longer trials at each end")
    args = parser.parse_args()
    knee = true_knee()
    print(f"{SLOTS} slots, {SERVICE_S * 1e3:g} ms each: {CAPACITY:g} requests/s at most")
    print(f"holds {knee:.1f} requests/s (p90 time to first token at most {LIMIT_S * 1e3:g} ms)")
    found = []
    config = MockServerConfig(
        slots=SLOTS, ttft=f"{TTFT_S}s", itl=f"{ITL_S}s", tokens=TOKENS, force_tokens=True
    )
    with running(config) as server:
        for seed in range(args.searches):
            began = time.monotonic()
            one = search(server.url, seed, args.seconds, args.confirm)
            found.append(one)
            word = "contains it" if one.contains(knee) else "MISSES IT"
            print(
                f"{seed + 1:3}  {one.ending}: holds {one.holds}, breaks at {one.breaks}: {word}; "
                f"{one.points} points, {one.trials} trials, {time.monotonic() - began:.0f} s"
                f"{'; ' if one.verdicts else ''}{one.verdicts}",
                flush=True,
            )
    hits = sum(each.contains(knee) for each in found)
    widths = [each.breaks / each.holds - 1 for each in found if each.holds and each.breaks]
    max_points = max(each.points for each in found)
    print(
        f"{hits} of {len(found)} brackets contain the knee, {statistics.median(widths):.0%} wide "
        f"(median; widest {max(widths):.0%}), at most {max_points} points"
    )
    return 0 if hits >= math.floor(REQUIRED_SHARE * len(found)) and max_points <= MAX_POINTS else 1


def true_knee(requests: int = 1_000_000) -> float:
    """Return the highest rate at which the share of late first tokens is within the limit."""
    low, high = 1.0, CAPACITY
    for _ in range(12):
        rate = (low + high) / 2
        if late_share(rate, requests) <= ALLOWED:
            low = rate
        else:
            high = rate
    return low


def late_share(rate: float, requests: int) -> float:
    """Simulate the queue and return the share of late first tokens. With a fixed service time and
    FIFO order, request `i` follows request `i - SLOTS` on its slot (Lindley's recursion per
    slot)."""
    arrivals = np.cumsum(np.random.default_rng(1).exponential(1 / rate, requests))
    late = 0
    for slot in range(SLOTS):
        own = arrivals[slot::SLOTS]
        service = np.arange(len(own)) * SERVICE_S
        waits = np.maximum.accumulate(own - service) + service - own
        late += int(np.count_nonzero(waits + TTFT_S > LIMIT_S))
    return late / requests


def search(url: str, seed: int, seconds: float, confirm: int) -> Found:
    """Run one search in a separate process."""
    looked_for = {"parameter": "load.request_rate", "from": LOW, "to": HIGH}
    objective = {"metric": "time_to_first_token", "stat": "p90", "max": f"{LIMIT_S}s"}
    config: dict[str, Any] = {
        "name": "knee",
        "endpoint": {"url": url, "model": "mock-model", "streaming": True},
        "load": {"request_rate": LOW, "duration": f"{seconds}s"},
        "dataset": {"input_tokens": {"mean": 32}, "entries": 50},
        "slo": {"objectives": [objective]},
        "random_seed": seed,
        "experiment": {"search": {**looked_for, "precision": "10%", "confirm": confirm}},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "search.yaml"
        file.write_text(yaml.safe_dump(config))
        command = [*OWN_PROGRAM, "run", str(file), "--local", "--json"]
        command += ["--ui", "none", "--artifact-dir", folder]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=SEARCH_S, check=False)
    assert done.stdout, done.stderr.decode()
    results = json.loads(done.stdout)["results"]
    report = results["search"]
    labels = [each["left_out"] or each["verdict"] for each in results["trials"]]
    odd = [each for each in labels if each not in ("valid", "invalid: ended-early")]
    return Found(
        ending=report["ending"],
        holds=report["holds"],
        breaks=report["breaks"],
        points=len(report["points"]),
        trials=report["trials"],
        verdicts=", ".join(f"{odd.count(each)} {each}" for each in dict.fromkeys(odd)),
    )


if __name__ == "__main__":
    sys.exit(main())
