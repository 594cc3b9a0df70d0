"""Prepares the case on every rank, then solves it with all processes together."""

import re
from collections.abc import Sequence
from importlib.resources import files as resources
from itertools import pairwise
from string import Template
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from aiperf_svc.config.base import HOUR_NS, MINUTE_NS
from aiperf_svc.config.workload import WorkloadConfig, WorkloadSpec
from aiperf_svc.core.results.measured import MetricInfo, Series
from aiperf_svc.core.verdict.check_result import Reason, graded
from aiperf_svc.workloads.mpi_launch import Transport, open_mpi, rdma_privilege, rdma_problems
from aiperf_svc.workloads.steps import (
    Command,
    Output,
    Plot,
    Rank,
    Reading,
    Role,
    Step,
    Tool,
    UnreadableOutput,
    timeout_of,
)
from aiperf_svc.workloads.tool import ToolWorkload


class OpenFoamSpec(WorkloadSpec):
    """One solution of the cavity by all processes together."""

    kind: Literal["openfoam"] = "openfoam"
    size: Literal["XS", "S", "M", "XL"] = "S"
    """Mesh cells and time steps: XS has 20³ and 20, S 100³ and 500, M 200³ and 2000, XL 400³
    and 100."""
    processes: Annotated[int, Field(ge=1, le=100_000)] = 2
    """Total number of MPI processes on all nodes."""
    nodes: Annotated[int, Field(ge=1, le=1_000)] = 2
    """Number of ranks over which the processes are distributed."""
    iterative_method: Literal["fixed-iter", "fixed-norm"] = "fixed-iter"
    """`fixed-iter`: every time step runs a fixed number of solver iterations, so the work is the
    same on all hardware; `fixed-norm`: every time step solves the pressure to a residual of
    1e-4."""
    transport: Transport = "tcp"
    """`rdma` needs `deployment.ranks.devices`."""

    @field_validator("size", mode="before")
    @classmethod
    def _has_a_definition(cls, value: object) -> object:
        if value == "XXL":
            raise ValueError("no published case defines this size; expected XS, S, M or XL")
        return value

    @model_validator(mode="after")
    def _uses_each_node(self) -> Self:
        if self.processes < self.nodes:
            raise ValueError(
                f"{{processes}} {self.processes} leaves some of {{nodes}} {self.nodes} without work"
            )
        return self


_FILES = (
    "prepare",
    "0/U",
    "0/p",
    "constant/transportProperties",
    "system/blockMeshDict",
    "system/controlDict",
    "system/decomposeParDict",
    "system/fvSchemes",
    "system/fvSolution",
)
_SOLVER_LIMITS = {
    # 250 and 5 are the numbers of the HPC committee's case.
    "fixed-iter": {
        "pressure": "tolerance 0; relTol 0; maxIter 250;",
        "velocity": "tolerance 0; relTol 0; maxIter 5;",
    },
    "fixed-norm": {
        "pressure": "tolerance 1e-4; relTol 0;",
        "velocity": "tolerance 1e-5; relTol 0;",
    },
}


class Size(NamedTuple):
    """One size of the case."""

    edge_cells: int
    step_s: float
    steps: int
    timeout_ns: int
    """Default timeout of the solution, for a few slow cores."""

    @property
    def cells(self) -> int:
        """Cells of the mesh."""
        return self.edge_cells**3


SIZES = {
    "XS": Size(20, 5e-3, 20, 10 * MINUTE_NS),
    "S": Size(100, 1e-3, 500, 6 * HOUR_NS),
    "M": Size(200, 2.5e-4, 2000, 48 * HOUR_NS),
    "XL": Size(400, 6.25e-5, 100, 48 * HOUR_NS),
}


def case_files(spec: OpenFoamSpec) -> dict[str, bytes]:
    """Return the files of the case, a cube of 0.1 m whose lid moves at 1 m/s with a viscosity of
    0.01 m²/s, and the script that prepares it, by relative path."""
    size = SIZES[spec.size]
    values = {
        "edge_cells": size.edge_cells,
        "step_s": f"{size.step_s:g}",
        "end_s": f"{size.step_s * size.steps:g}",
        "processes": spec.processes,
        "division": " ".join(map(str, division(spec.processes))),
        **_SOLVER_LIMITS[spec.iterative_method],
    }
    folder = resources(__package__) / "case"
    return {
        name: Template((folder / name).read_text()).substitute(values).encode() for name in _FILES
    }


def division(processes: int) -> tuple[int, int, int]:
    """Return the parts of the cube along its three edges, as equal as the number allows."""
    factors = [
        (x, y, processes // x // y)
        for x in range(1, processes + 1)
        if processes % x == 0
        for y in range(1, x + 1)
        if processes // x % y == 0 and processes // x // y <= y
    ]
    return min(factors)


_BUILD = re.compile(r"^Build\s*: (?:OPENFOAM=)?(.+)$", re.MULTILINE)
_PROCESSES = re.compile(r"^nProcs : (\d+)$", re.MULTILINE)
_STEP = re.compile(r"^Time = \S+$", re.MULTILINE)
_TIMES = re.compile(r"^ExecutionTime = ([\d.]+) s +ClockTime = (\d+) s$", re.MULTILINE)
_PRESSURE = re.compile(r"Solving for p, .* No Iterations (\d+)$", re.MULTILINE)
_END = re.compile(r"^End$", re.MULTILINE)
_NOT_A_NUMBER = re.compile(r"residual = -?(?:nan|inf)")


class Solution(NamedTuple):
    """The values in the log of one solution."""

    tool: str
    execution_s: tuple[float, ...]
    """CPU time of the first process at the end of each time step."""
    clock_s: int
    """Wall time of the whole program, in full seconds."""
    pressure_iterations: int
    errors: tuple[str, ...]


def read_log(text: str, *, processes: int, steps: int) -> Solution:
    """Return the times of a complete solution. Raises UnreadableOutput."""
    ends_with = f"the log ends with {text[-300:]!r}"
    build, started = _BUILD.search(text), _PROCESSES.search(text)
    if build is None or started is None:
        raise UnreadableOutput(f"expected the header of icoFoam; it begins with {text[:200]!r}")
    if int(started[1]) != processes:
        raise UnreadableOutput(f"icoFoam has {started[1]} processes; expected {processes}")
    times = _TIMES.findall(text)
    begun = len(_STEP.findall(text))
    if begun != steps or len(times) != steps or not _END.search(text):
        raise UnreadableOutput(
            f"expected {steps} time steps and the line 'End', found {begun} steps of which "
            f"{len(times)} have an ExecutionTime; {ends_with}"
        )
    pressure = [int(count) for count in _PRESSURE.findall(text)]
    if not pressure:
        raise UnreadableOutput(f"expected lines 'Solving for p, … No Iterations'; {ends_with}")
    return Solution(
        tool=f"OpenFOAM {build[1].strip()}",
        execution_s=tuple(float(execution) for execution, _ in times),
        clock_s=int(times[-1][1]),
        pressure_iterations=sum(pressure),
        errors=("a residual is not a number: the solution diverged",)
        if _NOT_A_NUMBER.search(text)
        else (),
    )


Config = WorkloadConfig[OpenFoamSpec]
_WAITED_SHARE = 0.05
"""Maximum share of the wall time that the first process may spend without a CPU."""
_CLOCK_RESOLUTION_S = 2
"""The log counts wall time in full seconds, start and end included."""


class OpenFoam(ToolWorkload[OpenFoamSpec]):
    """The kind `openfoam`."""

    kind = "openfoam"
    summary = "solution time of a 3-D lid-driven cavity in parallel, by OpenFOAM's icoFoam"
    spec = OpenFoamSpec
    tools = (
        Tool("icoFoam", "openfoam"),
        Tool("blockMesh", "openfoam"),
        Tool("decomposePar", "openfoam"),
        Tool("mpirun", "openmpi-bin"),
    )
    metrics = (
        MetricInfo(
            tag="solver_time",
            name="Solver time",
            unit="s",
            better="lower",
            formula="last ExecutionTime of the log: CPU time of the first process",
        ),
        MetricInfo(
            tag="step_time",
            name="Time per time step",
            unit="s",
            better="lower",
            formula="(last - first ExecutionTime) / (time steps - 1)",
        ),
        MetricInfo(
            tag="rate",
            name="Solver rate",
            unit="cell-steps/s",
            better="higher",
            formula="cells of the mesh / step_time",
            scales_with=("workload.processes",),
        ),
        MetricInfo(
            tag="clock_time",
            name="Wall time",
            unit="s",
            better="lower",
            formula="last ClockTime of the log, in whole seconds",
        ),
        MetricInfo(
            tag="pressure_iterations",
            name="Iterations of the pressure solver",
            unit="count",
            formula="sum of `No Iterations` over all lines `Solving for p`",
        ),
    )

    def roles(self, spec: OpenFoamSpec) -> tuple[Role, ...]:
        return (Role("rank", spec.nodes),)

    def files(self, config: Config) -> dict[str, bytes]:
        return case_files(config.workload)

    def steps(self, config: Config, ranks: Sequence[Rank]) -> tuple[Step, ...]:
        """Return the steps. The case lies on the ranks' volumes, because work folders are emptied.
        All ranks use the path of rank 0."""
        spec = config.workload
        case = f"{ranks[0].volume}/cavity"
        env = {} if spec.image else {"WM_PROJECT_DIR": "/usr/share/openfoam"}
        share, rest = divmod(spec.processes, len(ranks))
        hosts = [(rank, share + (index < rest)) for index, rank in enumerate(ranks)]
        program = ["icoFoam", "-case", case, *(["-parallel"] if spec.processes > 1 else [])]
        prepare = Step(
            name="prepare",
            commands=tuple(
                Command(rank=rank.number, argv=("./prepare", case), env={**env, **spec.env})
                for rank in _with_own_volume(config, ranks)
            ),
            is_measured=False,
            timeout_ns=timeout_of(spec, HOUR_NS),
        )
        solve = Step(
            name="solve",
            commands=(open_mpi(hosts, program, spec, spec.transport, shares_memory=True, env=env),),
            agent_ranks=tuple(rank.number for rank in ranks[1:]),
            timeout_ns=timeout_of(spec, SIZES[spec.size].timeout_ns),
        )
        return (prepare, solve)

    def read(self, config: Config, step: Step, outputs: Sequence[Output]) -> Reading:
        spec, size = config.workload, SIZES[config.workload.size]
        log = read_log(outputs[0].text, processes=spec.processes, steps=size.steps)
        ends = log.execution_s
        step_s = (ends[-1] - ends[0]) / (size.steps - 1)
        if step_s <= 0:
            raise UnreadableOutput(f"ExecutionTime does not grow: from {ends[0]} to {ends[-1]} s")
        return Reading(
            values={
                "solver_time": ends[-1],
                "step_time": step_s,
                "rate": size.cells / step_s,
                "clock_time": float(log.clock_s),
                "pressure_iterations": float(log.pressure_iterations),
            },
            series=(
                Series(
                    name="step_time",
                    unit="s",
                    times_s=tuple((start + end) / 2 for start, end in pairwise(ends)),
                    values=tuple(end - start for start, end in pairwise(ends)),
                ),
            ),
            tool=log.tool,
            errors=log.errors,
            facts={"cells": str(size.cells), "transport": spec.transport},
        )

    def problems(self, config: Config) -> list[str]:
        return rdma_problems(config, config.workload.transport)

    def needs_privilege(self, config: Config) -> tuple[str, ...]:
        return rdma_privilege(config.workload.transport)

    def plots(self, config: Config) -> tuple[Plot, ...]:
        return (Plot(title="Time per time step", kind="series", name="step_time"),)

    def checks(self, config: Config, readings: Sequence[Reading]) -> tuple[Reason, ...]:
        """Report waits for a CPU, which ExecutionTime does not include."""
        waited = max((_wait_share(reading) for reading in readings), default=0.0)
        return (
            graded(
                "solver-wall-time",
                waited,
                _WAITED_SHARE,
                text=f"the first process spent {waited:.1%} of the wall time off the CPU, which "
                "the solver time does not include",
                remedy="give each process its own core; until then use clock_time",
            ),
        )

    def progress(self, config: Config, line: str) -> str:
        if not line.startswith("Time = "):
            return ""
        size = SIZES[config.workload.size]
        return f"{line.strip()} of {size.step_s * size.steps:g} s"


def _wait_share(reading: Reading) -> float:
    clock_s = reading.values["clock_time"]
    waited_s = clock_s - reading.values["solver_time"] - _CLOCK_RESOLUTION_S
    return max(0.0, waited_s) / clock_s if clock_s else 0.0


def _with_own_volume(config: Config, ranks: Sequence[Rank]) -> Sequence[Rank]:
    """Return one rank for each copy of the case. Local ranks are all processes of the first."""
    volume = config.deployment.ranks.volume
    if volume is not None and volume.kind == "shared-claim":
        return ranks[:1]
    is_of_node = volume is not None and volume.kind == "host-path"
    places = {rank.node if is_of_node else rank.address: rank for rank in reversed(ranks)}
    return tuple(places.values())[::-1]
