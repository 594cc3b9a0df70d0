"""Any container: the user specifies the command and how to read its metrics."""

from aiperf_svc.workloads.command.workload import Command as _Command

WORKLOAD = _Command()
