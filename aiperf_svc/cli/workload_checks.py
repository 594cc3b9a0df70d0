"""Checks of a benchmark on ranks beyond its models: what the workload and this machine know."""

import shutil
from collections.abc import Mapping
from typing import Any

from aiperf_svc.cli.checks import tracker_problems
from aiperf_svc.config.problems import Problem
from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.core.results.run_objectives import check_objectives
from aiperf_svc.workloads.registry import workload_of


def workload_problems(config: WorkloadConfig[Any]) -> list[Problem]:
    """What is wrong wherever the config is run."""
    workload = workload_of(config)
    lines = [*workload.problems(config), *check_objectives(config.slo, workload.metrics_of(config))]
    return [_problem(line) for line in lines]


def local_workload_problems(
    config: WorkloadConfig[Any], environ: Mapping[str, str]
) -> list[Problem]:
    """What is wrong with running the config on this machine, now."""
    workload = workload_of(config)
    found = [_problem(line) for line in workload.local_problems(config)]
    for variable in config.workload.secret_env:
        if not environ.get(variable):
            text = f"the environment variable {variable!r} is not set"
            found.append(Problem(f"workload.secret_env.{variable}", text))
    path = environ.get("PATH") if "PATH" not in config.workload.env else config.workload.env["PATH"]
    found += tracker_problems(config.artifacts, environ)
    for tool in workload.tools_of(config):
        if shutil.which(tool.name, path=path) is None:
            text = f"needs {tool.name}, which is not on this machine; {tool.source}"
            found.append(Problem("workload.kind", f"{config.workload.kind}: {text}"))
    return found


def _problem(line: str) -> Problem:
    key, _, text = line.partition(": ")
    return Problem(key, text)
