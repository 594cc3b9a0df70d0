"""The case: a cube of 0.1 m whose lid moves at 1 m/s, viscosity 0.01 m²/s."""

from importlib.resources import files as resources
from string import Template
from typing import NamedTuple

from aiperf_svc.config.base import HOUR_NS, MINUTE_NS
from aiperf_svc.workloads.openfoam.spec import OpenFoamSpec

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
_STOPS = {
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
    """Usual timeout of the solution, for a few slow cores."""

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
    """The files of the case and the script that prepares it, by relative path."""
    size = SIZES[spec.size]
    values = {
        "edge_cells": size.edge_cells,
        "step_s": f"{size.step_s:g}",
        "end_s": f"{size.step_s * size.steps:g}",
        "processes": spec.processes,
        "division": " ".join(map(str, division(spec.processes))),
        **_STOPS[spec.iterative_method],
    }
    folder = resources(__package__) / "case"
    return {
        name: Template((folder / name).read_text()).substitute(values).encode() for name in _FILES
    }


def division(processes: int) -> tuple[int, int, int]:
    """Parts of the cube along its three edges, as near to each other as the number allows."""
    factors = [
        (x, y, processes // x // y)
        for x in range(1, processes + 1)
        if processes % x == 0
        for y in range(1, x + 1)
        if processes // x % y == 0 and processes // x // y <= y
    ]
    return min(factors)
