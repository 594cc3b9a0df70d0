"""Finds the nodes and paths of a cluster that are slow, by the tools of other kinds."""

from aiperf_svc.workloads.qualify.workload import Qualify

WORKLOAD = Qualify()
