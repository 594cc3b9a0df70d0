"""Truth: what the client measured against what the server did, request by request.

    python -m benchmarks.truth
    python -m benchmarks.truth --only rate-300 --json

Open loop at 100 to 3,000 requests/s and closed loop at 1 to 5,000 users, 50 tokens a response,
against the mock server on this machine, which notes the kernel's stamp of each request's arrival
and the clock before each send. Every run is bounded; all of it shares the machine's cores with the
server. docs/truth.md says how to read the table.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from benchmarks.machine import describe
from benchmarks.truth.client_runs import run_client
from benchmarks.truth.comparison import closed_loop_load, compare, open_loop_load

TOKENS = 50


@dataclass(frozen=True)
class Case:
    """One load against one pace of the server."""

    name: str
    rate: int = 0
    """Requests/s, constant arrivals; 0 is closed loop."""
    users: int = 0
    ttft_ms: int = 20
    itl_ms: int = 5
    duration_s: int = 6
    server_processes: int = 1

    @property
    def flags(self) -> list[str]:
        load = ["--concurrency", str(self.users)]
        if self.rate:
            load = ["--request-rate", str(self.rate), "--arrival-pattern", "constant"]
        return [*load, "--benchmark-duration", str(self.duration_s), "--isl", "100"]

    @property
    def pace(self) -> str:
        return f"{self.ttft_ms}+{TOKENS - 1}x{self.itl_ms} ms"


@dataclass(frozen=True)
class Target:
    """A promise about one figure."""

    case: str
    figure: str
    stat: str
    below_ms: float


CASES = (
    Case("rate-100", rate=100, duration_s=10),
    Case("rate-300", rate=300, duration_s=8),
    Case("rate-1000", rate=1_000),
    Case("rate-3000", rate=3_000, duration_s=5, server_processes=2),
    Case("users-1", users=1),
    Case("users-10", users=10),
    Case("users-100", users=100),
    # From here on the pace is such that the users together get about 40,000 tokens/s.
    Case("users-1000", users=1_000, ttft_ms=50, itl_ms=25, duration_s=8),
    Case("users-5000", users=5_000, ttft_ms=250, itl_ms=120, duration_s=10),
)
TARGETS = (
    Target("rate-300", "ttft_error_ms", "mean", 0.2),
    Target("rate-300", "ttft_error_ms", "p99", 1.0),
    Target("rate-1000", "ttft_error_ms", "p99", 5.0),
    Target("rate-1000", "schedule_lag_ms", "p99", 2.0),
)


def run_case(case: Case) -> dict[str, Any]:
    """Every figure of one case."""
    config = MockServerConfig(
        ttft=f"{case.ttft_ms}ms",
        itl=f"{case.itl_ms}ms",
        tokens=TOKENS,
        processes=case.server_processes,
        truth=True,
    )
    with tempfile.TemporaryDirectory() as folder, running(config) as server:
        run = run_client(
            server.url, case.flags, folder=Path(folder), longest_s=case.duration_s + 30
        )
        truth = server.truth(rows=True)
    rows = truth["rows"]
    if case.rate:
        due = float(case.rate * case.duration_s)
        load = open_loop_load(run, rows, due=due, duration_s=case.duration_s)
    else:
        load = closed_loop_load(run, rows, users=case.users, duration_s=case.duration_s)
    ours = run.results["aiperf_svc"]
    figures = compare(run, rows, tokens=TOKENS, ttft_ms=case.ttft_ms).as_json()
    return (
        {"case": case.name, "pace": case.pace, "load": asdict(load) | {"shortfall": load.shortfall}}
        | figures
        | {
            "server_requests": truth["requests"],
            "unstamped_arrivals": truth["unstamped_arrivals"],
            "rows_dropped": truth["rows_dropped"] + truth["chunk_times_dropped"],
            "verdict": ours["verdict"],
            "fired": [reason["check"] for reason in run.verdict["reasons"]],
        }
    )


def judge(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each target whose case was run, with what was measured."""
    by_name = {result["case"]: result for result in results}
    return [
        asdict(target)
        | {"measured_ms": (value := by_name[target.case][target.figure][target.stat])}
        | {"is_met": abs(value) < target.below_ms}
        for target in TARGETS
        if target.case in by_name
    ]


def main() -> int:
    """Run the cases, print; 0 when every target is met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [case.name for case in CASES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="CASE")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    results = []
    for case in CASES:
        if case.name in options.only:
            results.append(run_case(case))
            print(f"{case.name}: {results[-1]['verdict']}", file=sys.stderr)
    targets = judge(results)
    if options.json:
        print(json.dumps({"machine": describe(), "cases": results, "targets": targets}, indent=1))
    else:
        _show(results, targets)
    return 0 if all(target["is_met"] for target in targets) else 1


def _show(results: list[dict[str, Any]], targets: list[dict[str, Any]]) -> None:
    columns = ("mean", "p50", "p99", "p99.9")
    print(f"{'case':12}{'error of, ms':24}" + "".join(f"{name:>9}" for name in columns))
    lines = (
        ("TTFT", "ttft_error_ms"),
        ("inter-token latency", "inter_token_error_ms"),
        ("request latency", "request_error_ms"),
        ("arrival against due", "arrival_error_ms"),
        ("(schedule lag)", "schedule_lag_ms"),
        ("(receive lag)", "receive_lag_ms"),
        ("(stamp uncertainty)", "stamp_uncertainty_ms"),
        ("(server's own lateness)", "server_lag_ms"),
    )
    for result in results:
        name = result["case"]
        for title, key in lines:
            values = result[key]
            print(f"{name:12}{title:24}" + "".join(f"{values[c]:>9.3f}" for c in columns))
            name = ""
        load, shift = result["load"], result["ttft_shift"]
        print(
            f"{'':12}{result['joined']:,} requests at {result['pace']}; asked {load['asked']:,g}, "
            f"achieved {load['achieved']:,.1f}; TTFT p99 {shift['p99']:+.1%} of the truth; "
            f"{result['verdict']} {' '.join(result['fired'])}\n"
        )
    for target in targets:
        print(
            f"{target['case']:12}{target['figure']} {target['stat']}: {target['measured_ms']:.3f}, "
            f"target below {target['below_ms']:g}: {'met' if target['is_met'] else 'MISSED'}"
        )


if __name__ == "__main__":
    sys.exit(main())
