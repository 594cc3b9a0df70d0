"""The 3-D lid-driven cavity with OpenFOAM's icoFoam, a benchmark of the OpenFOAM HPC committee."""

from aiperf_svc.workloads.openfoam.workload import OpenFoam as _OpenFoam

WORKLOAD = _OpenFoam()
