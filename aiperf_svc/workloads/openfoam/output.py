"""Reads the log of icoFoam."""

import re
from typing import NamedTuple

from aiperf_svc.workloads.steps import UnreadableOutput

_BUILD = re.compile(r"^Build\s*: (?:OPENFOAM=)?(.+)$", re.MULTILINE)
_PROCESSES = re.compile(r"^nProcs : (\d+)$", re.MULTILINE)
_STEP = re.compile(r"^Time = \S+$", re.MULTILINE)
_TIMES = re.compile(r"^ExecutionTime = ([\d.]+) s +ClockTime = (\d+) s$", re.MULTILINE)
_PRESSURE = re.compile(r"Solving for p, .* No Iterations (\d+)$", re.MULTILINE)
_END = re.compile(r"^End$", re.MULTILINE)
_NOT_A_NUMBER = re.compile(r"residual = -?(?:nan|inf)")


class Solution(NamedTuple):
    """What the log says of one solution."""

    tool: str
    execution_s: tuple[float, ...]
    """CPU time of the first process at the end of each time step."""
    clock_s: int
    """Wall time of the whole program, in full seconds."""
    pressure_iterations: int
    errors: tuple[str, ...]


def read_log(text: str, *, processes: int, steps: int) -> Solution:
    """The times of a whole solution. Raises UnreadableOutput."""
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
