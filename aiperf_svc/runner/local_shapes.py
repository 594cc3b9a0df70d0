"""An experiment on this machine whose trials need other processes: new ones for each shape, one
shape after the other, and one folder for all."""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from aiperf_svc.adapters.exports.experiment_file import is_experiment
from aiperf_svc.adapters.host.machine import local_facts
from aiperf_svc.config.workload import Config
from aiperf_svc.domain.errors import BenchmarkFailed, EnvironmentProblem, LeakError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.topology import Facts
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner import (
    folders,
    fork_server,
    log_tails,
    resuming,
    trial_lists,
)
from aiperf_svc.runner.ending import errors_of, finish
from aiperf_svc.runner.environment import LocalRun, new_run_id
from aiperf_svc.runner.fork_server import ForkServer
from aiperf_svc.runner.local import SERVICE_COMMAND, LocalLaunch, show_warnings
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.shape_trials import ShapeTrials
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.workloads.shapes import Shape, shape_config
from aiperf_svc.workloads.stacks import plan_processes


def run_shapes(
    config: Config,
    shapes: Sequence[Shape],
    options: RunOptions,
    *,
    forks: ForkServer | None,
) -> ExitCode:
    """Run the trials of all shapes and print their results. The processes of the first shape are
    forks of `forks`. Raises AiperfError for what prevents the run; a run that went on to its end is
    told by the exit code."""
    if options.resume is not None:
        resuming.prepare(options.resume, config)
    run = _ShapesRun(config, shapes, options, local_facts())
    with errors_of(run.run_id):
        outcome = asyncio.run(run.run(forks))
    return finish(outcome, config.artifacts, options)


class _ShapesRun:
    """One experiment."""

    def __init__(
        self,
        config: Config,
        shapes: Sequence[Shape],
        options: RunOptions,
        facts: Facts,
    ) -> None:
        assert config.experiment is not None
        self._config, self._shapes, self._options = config, shapes, options
        self._stops_on_failure = config.experiment.on_failure == "stop"
        self._configs = [shape_config(config, each) for each in shapes]
        self._topologies = [plan_processes(each, facts) for each in shapes]
        for each, topology in zip(self._configs, self._topologies, strict=True):
            show_warnings(each, facts, topology)
        folder = options.resume
        if folder is None:
            folder = folders.make_artifact_folder(Path(config.artifacts.dir), config.name)
        self._trials = ShapeTrials(config, shapes, folder)
        self.run_id = new_run_id()
        """Id of the experiment; the run of each shape has one of its own."""

    async def run(self, forks: ForkServer | None) -> RunOutcome:
        """Run all shapes. Raises AiperfError."""
        if self._options.resume is not None:
            self._trials.add_finished()
        last: RunOutcome | None = None
        with Interrupts() as interrupts:
            for number in range(1, len(self._shapes) + 1):
                if self._trials.has_all(number):
                    continue
                print(trial_lists.shape_name(self._shapes, number), file=sys.stderr)
                given = nullcontext(forks) if number == 1 else fork_server.starting()
                with given as server:
                    last = await self._run_shape(number, server, interrupts)
                is_failed = last is None or last.state == RunState.FAILED
                if interrupts.count or (is_failed and self._stops_on_failure):
                    break
            return self._outcome(last, was_interrupted=interrupts.count > 0)

    async def _run_shape(
        self, number: int, forks: ForkServer | None, interrupts: Interrupts
    ) -> RunOutcome | None:
        """Run one shape; None if it could not be run to its end. Raises LeakError."""
        outcome, reason = None, ""
        with folders.private_folder() as private:
            run = self._run_of(number, private)
            try:
                run.write_files()
                launch = LocalLaunch(run, SERVICE_COMMAND, forks)
                outcome = await launch.run(counting=lambda: nullcontext(interrupts))
            except (BenchmarkFailed, EnvironmentProblem) as error:
                reason = str(error)
                print(f"shape {number} failed: {reason}", file=sys.stderr)
            finally:
                log_tails.remove_empty(run.logs)
        if private.exists():
            raise LeakError(f"still there: {private}")
        self._trials.add(self._trials.folder)
        if outcome is not None and outcome.state == RunState.FAILED and not self._stops_on_failure:
            reason = outcome.reason
        if reason and not interrupts.count:
            self._trials.fail(number, reason)
        return outcome

    def _run_of(self, number: int, private: Path) -> LocalRun:
        """The run of one shape. To its services, the trials of other shapes have ended before."""
        logs = self._trials.folder_of(number) / "logs"
        logs.mkdir(exist_ok=True)
        folder = self._trials.folder
        return LocalRun(
            config=self._configs[number - 1],
            topology=self._topologies[number - 1],
            options=replace(
                self._options,
                resume=folder if is_experiment(folder) else None,
                run=self._trials.run_values(self._options.run),
            ),
            private=private,
            artifacts=folder,
            logs=logs,
        )

    def _outcome(self, last: RunOutcome | None, *, was_interrupted: bool) -> RunOutcome:
        artifact_error = last.artifact_error if last is not None else ""
        results, uploaded_to = None, ""
        try:
            results = self._trials.write(self.run_id)
            uploaded_to = self._trials.upload(os.environ)
        except EnvironmentProblem as error:
            artifact_error = artifact_error or str(error)
        is_empty = folders.remove_if_empty(self._trials.folder)
        return RunOutcome(
            run_id=self.run_id,
            state=RunState.DONE if self._trials.is_complete else RunState.FAILED,
            reason=last.reason if last is not None else "",
            results=results,
            artifacts=None if is_empty else self._trials.folder,
            artifact_error=artifact_error,
            uploaded_to=uploaded_to,
            was_interrupted=was_interrupted,
        )
