"""Compares the client's measurements with the server's record, request by request.

    python -m benchmarks.truth
    python -m benchmarks.truth --only rate-300 --json

Open loop at 100 to 3,000 requests/s and closed loop with 1 to 5,000 users, 50 tokens per response,
against the local mock server. It records the kernel's stamp of each request's arrival and the clock
before each send. Every run has a time limit and shares the machine's cores with the server.
docs/truth.md explains the table.
"""

import sys
from typing import Any

from benchmarks.truth.cases import Case, Target, run_cases

CASES = (
    Case("rate-100", rate=100, duration_s=10),
    Case("rate-300", rate=300, duration_s=8),
    Case("rate-1000", rate=1_000),
    Case("rate-3000", rate=3_000, duration_s=5, server_processes=2),
    Case("users-1", users=1),
    Case("users-10", users=10),
    Case("users-50", users=50),
    Case("users-100", users=100),
    # From here on the pace lets all users together receive about 40,000 tokens/s.
    Case("users-1000", users=1_000, ttft_ms=50, itl_ms=25, duration_s=8),
    Case("users-5000", users=5_000, ttft_ms=250, itl_ms=120, duration_s=10),
)
TARGETS = (
    Target("rate-300", "ttft_error_ms", "mean", 0.2),
    Target("rate-300", "ttft_error_ms", "p99", 1.0),
    Target("rate-1000", "ttft_error_ms", "p99", 5.0),
    Target("rate-1000", "schedule_lag_ms", "p99", 2.0),
    # Users of a server with fixed times stay in lockstep: they are all due together, repeatedly.
    Target("users-10", "schedule_lag_ms", "p99", 0.8),
    Target("users-50", "schedule_lag_ms", "p99", 0.8),
)


def main() -> int:
    """Run the cases and print them. Return 0 if every target is met."""
    return run_cases(CASES, TARGETS, _show, description=__doc__, word="CASE")


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
