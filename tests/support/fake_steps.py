"""Fake runs of tools on ranks, for tests of verdicts, results, exports and reports."""

from pathlib import Path
from typing import Any, cast

import msgspec

from aiperf_svc.adapters.messaging.bus import Addresses
from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.results.tool_result import RankFacts, ToolResult
from aiperf_svc.plan.topology import Topology
from aiperf_svc.protocol.messages.steps import (
    CommandEnd,
    RankReport,
    RankWitness,
    StepOutput,
    StepRecord,
)
from aiperf_svc.services.context import RunContext
from aiperf_svc.workloads.command.workload import CommandSpec
from aiperf_svc.workloads.results import FinishedSteps, summarise_steps
from aiperf_svc.workloads.steps import Command, PlannedStep, Reading, Step
from aiperf_svc.workloads.tool import ToolWorkload

START_NS = 1_700_000_000_000_000_000
LENGTH_NS = 10_000_000_000
SENT = 1_000_000_000
SEEN = 1_045_000_000
"""Bytes on the network interfaces for SENT bytes of payload in packets of 1448 bytes."""


class FakeWorkload(ToolWorkload[CommandSpec]):
    """A workload that never runs and has the given metrics."""

    kind = "fake"
    summary = "made up"
    spec = CommandSpec

    def __init__(self, *metrics: MetricInfo) -> None:
        self._metrics = metrics

    def metrics_of(self, config: WorkloadConfig[CommandSpec]) -> tuple[MetricInfo, ...]:
        return self._metrics

    def roles(self, spec: CommandSpec) -> Any:
        raise NotImplementedError

    def steps(self, config: Any, ranks: Any) -> Any:
        raise NotImplementedError

    def read(self, config: Any, step: Any, outputs: Any) -> Any:
        raise NotImplementedError


BANDWIDTH = MetricInfo(tag="bandwidth", name="Bandwidth received", unit="bit/s", better="higher")
RTT = MetricInfo(tag="rtt", name="RTT under load", unit="us", better="lower")
WORKLOAD = FakeWorkload(BANDWIDTH, RTT)


def config(**keys: Any) -> WorkloadConfig[CommandSpec]:
    spec = {"kind": "command", "command": ["x"], "metrics": {"m": {"unit": "s", "pattern": "(.)"}}}
    workload = {**spec, **keys.pop("workload", {})}
    return WorkloadConfig[CommandSpec].model_validate({"workload": workload, **keys})


def step(name: str = "node-0 to node-1", **keys: Any) -> Step:
    commands = tuple(Command(rank=rank, argv=("x",)) for rank in (0, 1))
    values: dict[str, Any] = {"timeout_ns": 60 * 10**9, "expected_ns": LENGTH_NS}
    return Step(name=name, commands=commands, **{**values, **keys})


def witness(rank: int = 0, **keys: Any) -> RankWitness:
    """Return the witness of a rank on its own node that moved SENT bytes without disturbance."""
    values: dict[str, Any] = {
        "rank": rank,
        "node": f"node-{rank}",
        "due_wall_ns": START_NS,
        "started_wall_ns": START_NS + 1_000_000,
        "ended_wall_ns": START_NS + 1_000_000 + LENGTH_NS,
        "clock_uncertainty_ns": 100_000,
        "interface_rx_bytes": SEEN,
        "interface_tx_bytes": SEEN,
        "cpu_pressure": 0.0,
        "io_pressure": 0.0,
        "memory_pressure": 0.0,
        "courier_cpu_ns": 20_000_000,
    }
    return RankWitness(**{**values, **keys})


def reading(value: float = 9.4e9, **keys: Any) -> Reading:
    return Reading(values={"bandwidth": value, "rtt": 120.0}, **keys)


def record(
    read: Reading | None = None,
    *,
    number: int = 1,
    attempt: int = 1,
    repetition: int = 1,
    of: Step | None = None,
    witnesses: tuple[RankWitness, ...] = (witness(0), witness(1)),
    ends: tuple[CommandEnd, ...] = (),
    problem: str = "",
) -> StepRecord:
    plan = PlannedStep(number=number, attempt=attempt, repetition=repetition, step=of or step())
    read = read if read is not None or problem else reading()
    return StepRecord(
        run_id="run",
        sender="record-processor-0",
        epoch=1,
        step=number,
        plan=msgspec.json.encode(plan),
        problem=problem,
        reading=msgspec.json.encode(read) if read is not None else b"",
        witnesses=witnesses,
        ends=ends,
    )


def finished(*records: StepRecord, **keys: Any) -> FinishedSteps:
    values: dict[str, Any] = {
        "run_id": "0123456789ab",
        "version": "1.0",
        "config": config(repetitions=3),
        "records": records,
        "planned": len(records),
        "ranks": tuple(
            RankFacts(number=n, role="rank", node=f"node-{n}", address=f"10.0.0.{n}", cores=2.0,
                      memory_bytes=0) for n in range(2)
        ),
        "is_local": False,
        "start_wall_ns": START_NS - 10**9,
        "end_wall_ns": START_NS + 2 * LENGTH_NS,
    }  # fmt: skip
    return FinishedSteps(**{**values, **keys})


def result(*records: StepRecord, workload: ToolWorkload[Any] = WORKLOAD, **keys: Any) -> ToolResult:
    return summarise_steps(workload, finished(*(records or (record(),)), **keys))


def last_piece() -> StepOutput:
    """Return the last output of a rank that ran a step alone and printed nothing."""
    only = Step(name="only", commands=(Command(rank=0, argv=("x",)),), timeout_ns=60 * 10**9)
    plan = PlannedStep(number=1, attempt=1, repetition=1, step=only)
    report = RankReport(
        plan=msgspec.json.encode(plan),
        problem="",
        witness=RankWitness(rank=0),
        ends=(CommandEnd(index=0, exit_code=0, started_wall_ns=1, ended_wall_ns=2),),
    )
    return StepOutput(
        *("run", "rank-0", 1),
        step=1,
        rank=0,
        piece=0,
        command=-1,
        file="",
        data=b"",
        is_last=True,
        report=report,
    )


def context_of(instance: str, folder: Path) -> RunContext:
    """Return the context of a rank service, which needs no topology."""
    return RunContext(
        run_id="run",
        instance=instance,
        config=config(),
        topology=cast(Topology, None),
        addresses=Addresses(f"inproc://{folder.name}"),
        artifacts=folder / "artifacts",
        state=folder,
    )
