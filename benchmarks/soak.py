"""Endurance test: flat memory, flat lag and exact accounts for half an hour.

    make soak
    python -m benchmarks.soak --duration 3m

Runs the product against the mock server at a steady closed-loop load and judges by slopes. A robust
line (Theil-Sen: the median of the slopes between all pairs, which one busy moment does not move) is
fitted to the memory of each process, and to the receive lag, the schedule lag and the time to first
token of each window of the run. Its increase from the first window to the last must stay below the
printed limit. The first part of the run, in which caches fill, is not judged. The accounts must be
exact: every request that the server counted has exactly one record.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.adapters.exports.parquet_export import read_records
from aiperf_svc.config.units import parse_duration_ns
from aiperf_svc.domain.process_environment import OWN_PROGRAM
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from benchmarks import machine_use

ROOT = Path(__file__).parents[1]
WINDOWS = 24
"""Number of windows in the judged part of the run."""
SETTLING_SHARE = 0.2
MEMORY_GROWTH, MEMORY_GROWTH_BYTES = 0.05, 4 * 2**20
"""Allowed growth of each process over the judged part: the larger of a share and bytes."""
LAG_GROWTH, LAG_GROWTH_MS = 0.5, 0.2
"""Allowed growth of a lag's median, and of the time to first token."""
ACCOUNTS_CHECKS = ("accounts", "records", "lost_processes")
MIB = 2**20


class Line(NamedTuple):
    """One quantity over the judged part of the run."""

    name: str
    unit: str
    middle: float
    growth: float
    """Increase of the line from the first window to the last."""
    allowed: float

    @property
    def is_flat(self) -> bool:
        return self.growth <= self.allowed


def fitted_growth(at: NDArray[Any], values: NDArray[Any]) -> float:
    """Return the increase of a Theil-Sen line through the points from the first to the last."""
    i, j = np.triu_indices(len(at), k=1)
    slopes = (values[j] - values[i]) / (at[j] - at[i])
    return float(np.median(slopes) * (at[-1] - at[0]))


def memory_lines(samples: list[tuple[float, dict[str, int]]], begin_s: float) -> list[Line]:
    """Return one line for each process that lived through the judged part."""
    judged = [(at, sizes) for at, sizes in samples if at >= begin_s]
    at = np.array([at for at, _ in judged])
    lines = []
    for name in sorted(judged[0][1].keys() & judged[-1][1].keys()):
        sizes = np.array([found.get(name, 0) for _, found in judged]) / MIB
        middle = float(np.median(sizes))
        allowed = max(MEMORY_GROWTH * middle, MEMORY_GROWTH_BYTES / MIB)
        lines.append(Line(f"memory of {name}", "MiB", middle, fitted_growth(at, sizes), allowed))
    return lines


def lag_lines(records: dict[str, NDArray[Any]]) -> list[Line]:
    """Return lines through the medians of windows of equal length."""
    is_measured = (records["phase"] == 1) & (records["outcome"] == 0)
    start = records["start_wall_ns"][is_measured]
    values = {
        "receive lag (worst read of a request)": records["receive_lag_ns"][is_measured],
        "schedule lag": start - records["due_wall_ns"][is_measured],
        "time to first token": records["first_token_wall_ns"][is_measured] - start,
    }
    begin = start.min() + SETTLING_SHARE * (start.max() - start.min())
    edges = np.linspace(begin, start.max(), WINDOWS + 1)
    window = np.searchsorted(edges, start, side="right") - 1
    lines = []
    for name, found in values.items():
        medians = np.array([np.median(found[window == number]) / 1e6 for number in range(WINDOWS)])
        middle = float(np.median(medians))
        allowed = max(LAG_GROWTH * middle, LAG_GROWTH_MS)
        growth = fitted_growth(np.arange(WINDOWS, dtype=float), medians)
        lines.append(Line(name, "ms", middle, growth, allowed))
    return lines


def name_of(pid: int) -> str:
    """Return the name of a service process, or an empty text for others."""
    command = machine_use.command_line(pid)
    _, found, names = command.partition("/aiperf_svc/__main__.py service ")
    if not found:
        return ""
    return f"{'control' if ' ' in names else names} ({pid})"


def follow(client: "subprocess.Popen[bytes]", every_s: float) -> list[tuple[float, dict[str, int]]]:
    """Sample the memory by process until the client has ended."""
    samples, began = [], time.monotonic()
    while client.poll() is None:
        named = {pid: name_of(pid) for pid in machine_use.family(client.pid)}
        sizes = {name: machine_use.pss_bytes([pid]) for pid, name in named.items() if name}
        samples.append((time.monotonic() - began, sizes))
        time.sleep(every_s)
    return samples


def main() -> int:
    """Run, judge and print. Return 0 if everything is flat and exact."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--duration", default="30m")
    parser.add_argument("--concurrency", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--itl", default="30ms", help="of the server")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    machine_use.end_orderly()
    duration_s = parse_duration_ns(options.duration) / 1e9
    server_config = MockServerConfig(ttft="50ms", itl=options.itl, tokens=options.tokens)
    with tempfile.TemporaryDirectory() as folder, running(server_config) as server:
        client = _start(options, server.url, Path(folder))
        try:
            samples = follow(client, every_s=max(0.5, duration_s / 200))
        finally:
            if client.poll() is None:
                client.send_signal(signal.SIGINT)
                client.wait()
        truth = server.truth()
        artifacts = next(Path(folder).glob("*/records.parquet"), None)
        if artifacts is None:
            print(f"the run ended with exit code {client.returncode}", file=sys.stderr)
            return 1
        records = read_records(artifacts)
        own = json.loads((artifacts.parent / "profile_export_aiperf.json").read_text())
    own = own["aiperf_svc"]
    settled_s = SETTLING_SHARE * samples[-1][0]
    end_s = samples[-1][0] - 5.0
    kept = [sample for sample in samples if sample[0] <= end_s]
    lines = memory_lines(kept, settled_s) + lag_lines(records)
    sent = int((records["start_wall_ns"] > 0).sum())
    repeated = sent - len(np.unique(records["seq"] * 65_536 + records["worker"]))
    # Whether latencies are valid also depends on other load of the machine. Accounts do not.
    broken = [r["check"] for r in own["reasons"] if r["check"] in ACCOUNTS_CHECKS]
    is_exact = sent == truth["requests"] and repeated == 0 and not broken
    found = {
        "duration_s": duration_s,
        "requests_by_server": truth["requests"],
        "records": sent,
        "repeated": repeated,
        "verdict": own["verdict"],
        "reasons": own["reasons"],
        "lines": [line._asdict() | {"is_flat": line.is_flat} for line in lines],
        "is_exact": is_exact,
        "passed": is_exact and all(line.is_flat for line in lines),
    }
    print(json.dumps(found, indent=1)) if options.json else _show(found, lines)
    return 0 if found["passed"] else 1


def _start(options: argparse.Namespace, url: str, folder: Path) -> "subprocess.Popen[bytes]":
    command = [*OWN_PROGRAM, "profile", "-u", url, "-m", "mock-model"]
    command += ["--streaming", "--concurrency", str(options.concurrency)]
    command += ["--benchmark-duration", options.duration, "--isl", "100"]
    command += ["--num-dataset-entries", "1000", "--artifact-dir", str(folder), "--ui", "plain"]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )


def _show(found: dict[str, Any], lines: list[Line]) -> None:
    print(f"{'':44}{'middle':>10}{'growth':>10}{'allowed':>10}")
    for line in lines:
        print(
            f"{line.name:44}{line.middle:>10.2f}{line.growth:>+10.2f}{line.allowed:>10.2f} "
            f"{line.unit:4}{'flat' if line.is_flat else 'GROWS'}"
        )
    print(
        f"accounts: {found['requests_by_server']:,} requests by the server, {found['records']:,} "
        f"records, {found['repeated']:,} twice; verdict {found['verdict']}"
    )
    print("passed" if found["passed"] else "FAILED")


if __name__ == "__main__":
    sys.exit(main())
