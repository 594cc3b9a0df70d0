"""A case of the comparison: one load against one pace of the mock server, and its figures."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from benchmarks.machine import describe
from benchmarks.truth.client_runs import run_client
from benchmarks.truth.comparison import closed_loop_load, compare, open_loop_load

TOKENS = 50
ISL = ("--isl", "100")


@dataclass(frozen=True)
class Case:
    """One load against one pace of the server."""

    name: str
    rate: int = 0
    """Requests/s with constant arrivals. 0 means closed loop."""
    users: int = 0
    ttft_ms: int = 20
    itl_ms: int = 5
    duration_s: int = 6
    server_processes: int = 1
    http2: bool = False
    api: tuple[str, ...] = ()
    """Flags that choose an API other than chat completions."""

    @property
    def flags(self) -> list[str]:
        load = ["--concurrency", str(self.users)]
        if self.rate:
            load = ["--request-rate", str(self.rate), "--arrival-pattern", "constant"]
        version = ["--http2"] if self.http2 else []
        length = ["--benchmark-duration", str(self.duration_s)]
        return [*load, *length, *version, *(self.api or ISL)]

    @property
    def pace(self) -> str:
        return f"{self.ttft_ms}+{TOKENS - 1}x{self.itl_ms} ms"


@dataclass(frozen=True)
class Target:
    """A limit for one figure."""

    case: str
    figure: str
    stat: str
    below_ms: float


def run_case(case: Case) -> dict[str, Any]:
    """Run one case and return all of its figures."""
    config = MockServerConfig(
        ttft=f"{case.ttft_ms}ms",
        itl=f"{case.itl_ms}ms",
        tokens=TOKENS,
        processes=case.server_processes,
        truth=True,
        http2=case.http2,
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


def judge(results: list[dict[str, Any]], targets: Iterable[Target]) -> list[dict[str, Any]]:
    """Return each target whose case was run, with the measured value."""
    by_name = {result["case"]: result for result in results}
    return [
        asdict(target)
        | {"measured_ms": (value := by_name[target.case][target.figure][target.stat])}
        | {"is_met": abs(value) < target.below_ms}
        for target in targets
        if target.case in by_name
    ]


def run_cases(
    cases: Sequence[Case],
    targets: Sequence[Target],
    show: Callable[[list[dict[str, Any]], list[dict[str, Any]]], None],
    *,
    description: str | None,
    word: str,
) -> int:
    """Run the cases that the command line names, and print them. The help calls each case a `word`.
    Return 0 if every target is met."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [case.name for case in cases]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar=word)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    results = []
    for case in cases:
        if case.name in options.only:
            results.append(run_case(case))
            print(f"{case.name}: {results[-1]['verdict']}", file=sys.stderr)
    judged = judge(results, targets)
    if options.json:
        print(json.dumps({"machine": describe(), "cases": results, "targets": judged}, indent=1))
    else:
        show(results, judged)
    return 0 if all(target["is_met"] for target in judged) else 1
