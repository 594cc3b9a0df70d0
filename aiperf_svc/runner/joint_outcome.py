"""The end of several runs at once: their joint result, its files, and one exit code."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import replace

from aiperf_svc.adapters.exports import joint_experiment_export
from aiperf_svc.adapters.storage.joint_artifacts import (
    join,
    write_joint,
    write_joint_experiment,
)
from aiperf_svc.core.experiments.experiment_result import ExperimentResult
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner import printing
from aiperf_svc.runner.joint_experiments import join_experiment
from aiperf_svc.runner.joint_runs import (
    JointRun,
    finished_member,
    joint_exit_code,
    with_unreadable,
)
from aiperf_svc.runner.joint_tables import print_joint, print_joint_experiment
from aiperf_svc.runner.options import RunOptions

if TYPE_CHECKING:
    from rich.console import Console


def finish(
    kind: Literal["clusters", "targets"],
    name: str,
    folder: Path,
    runs: Sequence[JointRun],
    options: RunOptions,
) -> ExitCode:
    """Write and print the joint result of the runs whose folders are in `folder`."""
    code = joint_exit_code([run.outcome for run in runs])
    content: dict[str, Any]
    write: Callable[[], None]
    show: Callable[[Console], None]
    if any(isinstance(run.outcome.results, ExperimentResult) for run in runs):
        experiment = join_experiment(kind, name, code, folder, runs)
        code = ExitCode(experiment.exit_code)
        content = joint_experiment_export.export(experiment)
        write = partial(write_joint_experiment, folder, experiment)
        show = partial(print_joint_experiment, experiment, folder)
    else:
        joint = join(kind, name, int(code), [finished_member(run, folder) for run in runs])
        code = with_unreadable(code, [joint])
        joint = replace(joint, exit_code=int(code))
        content = msgspec.to_builtins(joint)
        write, show = partial(write_joint, folder, joint), partial(print_joint, joint)
    try:
        write()
    except EnvironmentProblem as error:
        print(f"error: {error}", file=sys.stderr)
        code = ExitCode.ERROR if code is ExitCode.OK else code
    _print(show, content, folder, runs, options, code)
    return code


def _print(
    show: "Callable[[Console], None]",
    results: dict[str, Any],
    folder: Path,
    runs: Sequence[JointRun],
    options: RunOptions,
    code: ExitCode,
) -> None:
    with printing.console_on(sys.stderr if options.json else sys.stdout) as console:
        show(console)
        for run in runs:
            if run.outcome.left:
                console.print(f"{run.name}: left behind: {', '.join(run.outcome.left)}")
        console.print(f"results: {folder}", soft_wrap=True)
    if options.json:
        content = {
            "exit_code": int(code),
            "artifacts": str(folder),
            "members": [
                {**run.outcome.as_json(), "name": run.name, "results": None} for run in runs
            ],
            "results": results,
        }
        printing.print_json(content)
