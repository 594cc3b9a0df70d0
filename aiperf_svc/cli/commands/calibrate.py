"""`aiperf-svc calibrate`: the highest load that this machine can generate."""

import argparse
import json
import os
import subprocess
import tempfile
from typing import Any

import msgspec

from aiperf_svc.adapters.host.machine import (
    Calibration,
    LagStep,
    cpu_model,
    machine_key,
    raise_fd_limit,
    save_calibration,
    usable_cores,
)
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.process_environment import OWN_PROGRAM
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.processes import MockServerError
from aiperf_svc.mock_server.running import running
from aiperf_svc.plan.topology import LOCAL_USERS_PER_WORKER, RESERVED_FDS

FLAGS = ("--streaming", "--isl", "50", "--num-dataset-entries", "200", "--ui", "none", "--json")
USERS = 200
"""Users in closed loop; more if several workers share them."""
STEPS = (0.25, 0.5, 0.75)
"""Open-loop rates to try, as shares of one worker's closed-loop rate."""
LAG_LIMIT_MS = 5.0
"""A worker sustains a rate if the p99 of its schedule lag stays below this."""
MIN_STEP = 0.25
"""Share of the closed-loop rate to assume if every step is late, as on busy cores."""
TOKENS = 100
TIMEOUT_S = 30.0


def calibrate(args: argparse.Namespace) -> int:
    """Measure, save and print the figures."""
    cores = usable_cores()
    one = ("--workers-max", "1", "--record-processors", "1")
    closed = ("--concurrency", str(USERS), "--duration", "3s")
    try:
        with running(MockServerConfig(tokens=1)) as server:
            worker = _rate(_measure(server.url, (*closed, *one)))
            steps = []
            for share in STEPS:
                rate = round(worker * share)
                load = ("--request-rate", str(rate), "--duration", "2s", *one)
                found = _measure(server.url, load)
                lag = (found.get("schedule_lag") or {}).get("p99") or 0.0
                steps.append(LagStep(rate, lag, found["aiperf_svc"]["verdict"]))
        # With two cores or fewer the plan has one worker, which was just measured.
        whole = max(worker, _rate_of_all(int(cores))) if cores > 2 else worker
        with running(MockServerConfig(tokens=TOKENS)) as server:
            found = _measure(server.url, ("--concurrency", "100", "--duration", "3s"))
            chunks = _rate(found) * TOKENS
    except MockServerError as error:
        raise EnvironmentProblem(f"mock server: {error}") from error
    calm = [step.rate for step in steps if step.schedule_lag_p99_ms < LAG_LIMIT_MS]
    calibration = Calibration(
        machine=machine_key(cpu_model(), cores),
        worker_requests_per_s=worker,
        requests_per_s=whole,
        chunks_per_s=chunks,
        worker_rate=max(calm, default=worker * MIN_STEP),
        connections=raise_fd_limit() - RESERVED_FDS,
        steps=tuple(steps),
    )
    path = save_calibration(calibration)
    if args.json:
        print(msgspec.json.encode(calibration).decode())
        return 0
    print(f"{calibration.machine}\n")
    rows = [
        ("requests/s of one worker", calibration.worker_requests_per_s),
        ("requests/s of all workers", calibration.requests_per_s),
        ("chunks/s, streams of 100 tokens", calibration.chunks_per_s),
        ("connections of one worker", calibration.connections),
        ("open-loop requests/s of one worker", calibration.worker_rate),
    ]
    for name, value in rows:
        print(f"  {name:38}{value:>12,.0f}")
    for step in calibration.steps:
        print(
            f"  at {step.rate:,.0f}/s: schedule lag p99 {step.schedule_lag_p99_ms:.2f} ms, "
            f"{step.verdict}"
        )
    print(f"\nsaved in {path}")
    return 0


def _rate_of_all(cores: int) -> float:
    """Measure workers on half of the cores. The server gets a process for each of them, because a
    single process would be the limit. Raises EnvironmentProblem, MockServerError."""
    half = cores // 2
    users = max(USERS, LOCAL_USERS_PER_WORKER * half)
    with running(MockServerConfig(tokens=1, processes=half)) as server:
        return _rate(_measure(server.url, ("--concurrency", str(users), "--duration", "3s")))


def _measure(url: str, load: tuple[str, ...]) -> dict[str, Any]:
    """Return the results of one run of `profile`. Raises EnvironmentProblem if it has none."""
    with tempfile.TemporaryDirectory(prefix="aiperf-calibrate-") as folder:
        command = (
            *(*OWN_PROGRAM, "profile", "--url", url),
            *("--model", "mock-model", "--artifact-dir", folder, *FLAGS, *load),
        )
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=TIMEOUT_S, env=os.environ, check=False
            )
            found: dict[str, Any] = json.loads(done.stdout)["results"]
        except subprocess.TimeoutExpired as error:
            raise EnvironmentProblem(
                f"a short run took longer than {error.timeout:g} s; is the machine busy?"
            ) from error
        except (ValueError, KeyError) as error:
            text = done.stderr.decode(errors="replace").strip()[-500:]
            raise EnvironmentProblem(f"a short run gave no results: {text}") from error
    if not found or not _rate(found):
        raise EnvironmentProblem("a short run completed no request; is the machine busy?")
    return found


def _rate(results: dict[str, Any]) -> float:
    return float((results.get("request_throughput") or {}).get("avg") or 0.0)
