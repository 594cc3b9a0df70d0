"""Scores of a server at the tasks of lm-evaluation-harness."""

from aiperf_svc.workloads.lm_eval.workload import LmEval as _LmEval

WORKLOAD = _LmEval()
