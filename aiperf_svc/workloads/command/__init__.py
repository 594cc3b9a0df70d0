"""Any container: the user says what runs and how its metrics are read."""

from aiperf_svc.workloads.command.workload import Command as _Command

WORKLOAD = _Command()
