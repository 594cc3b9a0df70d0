"""Compares a tool's results through the product and by hand, and measures the cost of a step.

    python -m benchmarks.workloads [--rounds N] [--seconds N] [--repetitions N] [--json]
    python -m benchmarks.workloads --run ARTIFACTS [--json]

iperf3 and fio run alternately through the product and by hand, with the same arguments, and the
same code parses their output. Every second round begins with the product. Steps of a command that
ends at once, on two ranks, show the overhead of a step. The CPU of a courier is its own measurement
while a step runs. `--run` prints the step costs of an existing run, for example on a cluster.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from aiperf_svc.adapters.ranks.counters import listens
from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.domain.process_environment import OWN_PROGRAM
from aiperf_svc.workloads.registry import parse_benchmark, tool_of
from aiperf_svc.workloads.step_machine import START_AHEAD_NS
from aiperf_svc.workloads.steps import Command, Output, Rank

LISTEN_S = 10.0
RAMP_S = 1
SAME = 0.03
"""Limit of the difference between the product's value and the value by hand."""
COURIER_SHARE = 0.02
STEP_MS = 100.0

Data = dict[str, Any]
Process = subprocess.Popen[bytes]


class Case(NamedTuple):
    """A tool with the compared metric."""

    name: str
    metric: str
    spec: Data


def cases(seconds: int) -> tuple[Case, ...]:
    """Return the tools. Without a rate limit, the result depends on the cores, which other load
    shares; with a bit rate it depends on the sender's clock."""
    times = {"duration": f"{seconds}s", "omit": f"{RAMP_S}s", "port": 15201}
    iperf = {"kind": "iperf", **times}
    fio = {"kind": "fio", "rw": "randread", "bs": "4Ki", "iodepth": 4, "size": "256Mi"}
    return (
        Case("iperf3", "bandwidth", iperf),
        Case("iperf3, 2 Gbit/s", "bandwidth", {**iperf, "bitrate": "2G"}),
        Case("fio", "iops", {**fio, "runtime": f"{seconds}s", "ramp": f"{RAMP_S}s"}),
    )


def by_hand(case: Case, folder: Path) -> float:
    """Return the metric that the tool prints when this process starts it."""
    config = parse_benchmark({"workload": case.spec}, case.name)
    assert isinstance(config, WorkloadConfig)
    workload = tool_of(config)
    ranks = [_rank(n, folder) for n in range(sum(r.count for r in workload.roles(config.workload)))]
    found = 0.0
    for step in workload.steps(config, ranks):
        servers = [_start(command, folder) for command in step.servers]
        for command in step.servers:
            _until_listening(command.listens_on)
        clients = [_start(command, folder) for command in step.commands]
        outputs = [
            _output(command, process, folder)
            for command, process in zip(
                (*step.commands, *step.servers), (*clients, *servers), strict=True
            )
        ]
        if step.is_measured:
            found = workload.read(config, step, outputs).values[case.metric]
    return found


def _rank(number: int, folder: Path) -> Rank:
    place = str(folder)
    return Rank(
        number=number,
        role="rank",
        address="127.0.0.1",
        node="here",
        work=place,
        volume=place,
        agent="",
    )


def _start(command: Command, folder: Path) -> Process:
    pipe = subprocess.PIPE
    # Own sessions like the ranks' commands, because the kernel shares busy cores among sessions.
    return subprocess.Popen(
        command.argv, cwd=folder, stdout=pipe, stderr=pipe, start_new_session=True
    )


def _until_listening(port: int) -> None:
    deadline = time.monotonic() + LISTEN_S
    while not listens(port):
        assert time.monotonic() < deadline, f"nothing listens on port {port}"
        time.sleep(0.01)


def _output(command: Command, process: Process, folder: Path) -> Output:
    stdout, stderr = process.communicate()
    if process.returncode:
        raise SystemExit(f"{command.argv[0]} ended with {process.returncode}: {stderr.decode()}")
    return Output(
        rank=command.rank,
        is_server=bool(command.listens_on),
        exit_code=0,
        stdout=stdout,
        files={
            path.name: path.read_bytes()
            for pattern in command.keeps
            for path in folder.glob(pattern)
        },
    )


def by_product(folder: Path, workload: Data, repetitions: int = 1) -> Data:
    """Run the command and return the results of the run."""
    config = folder / "config.json"
    config.write_text(json.dumps({"workload": workload, "repetitions": repetitions}))
    flags = ("--config", str(config), "--artifact-dir", str(folder), "--json", "--ui", "none")
    process = subprocess.run(
        [*OWN_PROGRAM, "profile", *flags],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder)},
        capture_output=True,
        check=False,
    )
    results: Data = json.loads(process.stdout)["results"]
    failed = [step["problem"] for step in results["steps"] if step["problem"]]
    if failed:
        raise SystemExit(f"{workload['kind']}: {failed[0]}")
    return results


def compare(case: Case, rounds: int) -> Data:
    """Return the metric both ways, measured alternately, and the couriers' CPU use."""
    hand, product, shares = [], [], []
    for number in range(rounds):
        order = ("hand", "product") if number % 2 else ("product", "hand")
        for way in order:
            with tempfile.TemporaryDirectory(prefix="aiperf-bench-") as scratch:
                if way == "hand":
                    hand.append(by_hand(case, Path(scratch)))
                    continue
                results = by_product(Path(scratch), case.spec)
            (values,) = (m["values"] for m in results["metrics"] if m["info"]["tag"] == case.metric)
            product.append(values[0]["value"])
            shares += _courier_shares(results)
    ratios = [p / h for p, h in zip(product, hand, strict=True)]
    return {
        "case": case.name,
        "metric": case.metric,
        "by_hand": median(hand),
        "by_product": median(product),
        "ratio": median(ratios),
        "ratio_least": min(ratios),
        "ratio_most": max(ratios),
        "spread_by_hand": (max(hand) - min(hand)) / median(hand),
        "courier_cpu_share_max": max(shares),
    }


def _courier_shares(results: Data) -> list[float]:
    """Return the CPU of each courier as a share of each measured step that is long enough."""
    return [
        witness["courier_cpu_ns"] / 1e9 / step["duration_s"]
        for step in results["steps"]
        if step["is_measured"] and step["duration_s"] > 1
        for witness in step["witnesses"]
    ]


def step_costs(repetitions: int) -> Data:
    """Return the overhead of a step on two ranks."""
    metrics = {"done": {"unit": "count", "pattern": "(1)"}}
    spec = {"kind": "command", "command": ["echo", "1"], "ranks": 2, "metrics": metrics}
    with tempfile.TemporaryDirectory(prefix="aiperf-bench-") as scratch:
        return costs_of(by_product(Path(scratch), spec, repetitions))


def costs_of(results: Data) -> Data:
    """Return the overhead of the steps of a run."""
    steps = results["steps"]
    late = [
        (w["started_wall_ns"] - w["due_wall_ns"]) / 1e6
        for step in steps
        for w in step["witnesses"]
        if w["started_wall_ns"]  # A rank that only serves has started earlier.
    ]
    between = [
        (after["due_wall_ns"] - before["ended_wall_ns"] - START_AHEAD_NS) / 1e6
        for before, after in pairwise(steps)
    ]
    return {
        "steps": len(steps),
        "start_ahead_ms": START_AHEAD_NS / 1e6,
        **_spread("due_to_started_ms", late),
        **_spread("ended_to_next_ordered_ms", between),
        **_spread("start_skew_ms", [step["start_skew_ms"] or 0.0 for step in steps]),
    }


def _spread(name: str, values: Sequence[float]) -> Data:
    return {f"{name}_p50": median(values), f"{name}_max": max(values)}


def targets(compared: Sequence[Data], steps: Data) -> list[Data]:
    """Return the targets and whether they were met."""
    found = [
        (f"{each['case']}: difference", abs(each["ratio"] - 1), SAME, "at most 3%")
        for each in compared
    ]
    shares = max(each["courier_cpu_share_max"] for each in compared)
    found.append(("CPU of a courier", shares, COURIER_SHARE, "at most 2% of a core"))
    cost = steps["due_to_started_ms_p50"] + steps["ended_to_next_ordered_ms_p50"]
    found.append(("cost of a step, ms", cost, STEP_MS, "at most 100 ms"))
    return [
        {"name": name, "measured": value, "wanted": wanted, "met": value <= limit}
        for name, value, limit, wanted in found
    ]


def _line(values: Data) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=5, help="measured time of each run")
    parser.add_argument("--repetitions", type=int, default=20, help="steps that end at once")
    parser.add_argument("--run", type=Path, help="artifacts of a run: what its steps cost")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.run:
        results = json.loads((options.run / "results.json").read_bytes())
        shares = _courier_shares(results)
        costs = costs_of(results) | {"courier_cpu_share_max": max(shares, default=0.0)}
        print(json.dumps(costs) if options.json else _line(costs))
        return
    steps = step_costs(options.repetitions)
    compared = [compare(case, options.rounds) for case in cases(options.seconds)]
    wanted = targets(compared, steps)
    if options.json:
        print(json.dumps({"compared": compared, "steps": steps, "targets": wanted}))
        return
    for each in compared:
        print(f"{each['case']}: {_line(dict(list(each.items())[2:]))}")
    print("steps:", _line(steps))
    for target in wanted:
        met = "met" if target["met"] else "missed"
        print(f"{target['name']}: {target['measured']:.4g}, {target['wanted']}: {met}")


if __name__ == "__main__":
    main()
