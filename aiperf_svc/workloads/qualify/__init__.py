"""Finds the slow nodes and paths of a cluster with the tools of other kinds."""

from aiperf_svc.workloads.qualify.workload import Qualify

WORKLOAD = Qualify()
