"""The folders of a session: where the results of each part go, and how they are combined.

<name>-<time>/            the only member, or
<name>-<time>/<member>/   each member, beside the files of the joint result
    shapes/<n>/           a round: its logs, and until it is closed the trials that a stack has run
    trials/<trial>/       the trials of all rounds
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aiperf_svc.adapters.exports.experiment_file import is_experiment
from aiperf_svc.adapters.storage import folders
from aiperf_svc.adapters.terminal import output
from aiperf_svc.core.experiments.machine import BeginTrial
from aiperf_svc.core.experiments.schedule import Part, RoundClosed
from aiperf_svc.core.experiments.trials import SHAPES, TRIALS, folder_of
from aiperf_svc.domain.errors import AiperfError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.run_values import RunValues
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner.environment import new_run_id
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.parts import Expansion, JointRun, Member, Placement, Work
from aiperf_svc.runner.start_gate import Offset
from aiperf_svc.workloads.registry import workload_of
from aiperf_svc.workloads.shapes import Shape, shape_config

if TYPE_CHECKING:
    from aiperf_svc.adapters.storage.shape_trials import ShapeTrials
    from aiperf_svc.runner.driven_trials import DrivenTrials


@dataclass(kw_only=True)
class MemberResults:
    """The results of one member's parts."""

    member: Member
    shapes: tuple[Shape, ...]
    folder: Path
    trials: "ShapeTrials | None" = None
    """The trials of an experiment that several parts run; None if one part runs all of them."""
    ended: dict[int, RunOutcome] = field(default_factory=dict)
    """The outcomes of its finished parts, by round."""
    offsets: dict[int, Offset] = field(default_factory=dict)
    """Its clock offset at the start of each trial, by number."""
    error: str = ""
    """Why its files could not be written."""


class SessionResults:
    """The folders of all members."""

    def __init__(self, expansion: Expansion, placement: Placement, options: RunOptions) -> None:
        """Create the folders, or prepare those of a resumed session for the remaining trials.
        Raises AiperfError."""
        config, resume = expansion.first.config, options.resume
        self._expansion, self._placement, self._options = expansion, placement, options
        self._experiment, self._is_resumed = config.experiment, resume is not None
        self._has_search = config.search is not None
        self._is_collected = expansion.is_driven or len(expansion.rounds) > 1
        """Whether the trials of a member come from several parts or commands."""
        parent = Path(config.artifacts.dir)
        self._new_parent = None if parent.exists() else parent
        self.folder = resume or folders.make_dated_folder(parent, config.name)
        self.members = {
            each.name: MemberResults(
                member=each,
                shapes=expansion.shapes[each.name],
                folder=self.folder / each.name,
            )
            for each in expansion.members
        }
        self.finished: frozenset[int] = frozenset()
        """Numbers of the trials that all members have finished, which need not run again."""
        self._open_trials()
        self.driven: DrivenTrials | None = None
        if expansion.is_driven:
            # It imports numpy, which other runs do not need.
            from aiperf_svc.runner import driven_trials

            own = {name: each.folder for name, each in self.members.items()}
            self.driven = driven_trials.DrivenTrials(config, own)

    def _open_trials(self) -> None:
        """Find the trials that need not run again. Raises AiperfError."""
        is_local = self._placement.where == "local"
        is_new = is_local and not self._is_resumed and not self._is_collected
        if self._experiment is None or is_new:
            return
        # They import the writers of all experiment files, which is slow.
        from aiperf_svc.adapters.storage import resuming
        from aiperf_svc.adapters.storage.shape_trials import ShapeTrials

        opened = {
            name: ShapeTrials(each.member.config, each.shapes, each.folder)
            for name, each in self.members.items()
        }
        if self._is_resumed:
            first, in_one_stack = self._expansion.first, not is_local and not self._is_collected
            # A stack of its own runs all trials of its shape.
            has_stacks = self._expansion.is_split and not self._expansion.is_driven
            self.finished = resuming.keep_finished(
                list(opened.values()),
                first.config,
                may_split_shapes=is_local or not has_stacks,
                in_one_stack=in_one_stack,
            )
            self._is_collected |= in_one_stack and bool(self.finished)
            for each in self.members.values():
                image = self._placement.image(each.member)
                for line in resuming.image_notes(each.folder, self.finished, image):
                    output.say(line)
            self._add_unnecessary(opened[first.name], is_local=is_local)
        elif not is_local:
            for each in self.members.values():
                folders.make_folder(each.folder)
                resuming.begin(each.folder, each.member.config)
        if self._is_collected or self.is_complete:
            for name, each in self.members.items():
                each.trials = opened[name]
                each.trials.add_finished()

    def _add_unnecessary(self, trials: "ShapeTrials", *, is_local: bool) -> None:
        """Count trials as finished if the finished ones have made them unnecessary."""
        config = self._expansion.first.config
        if self.finished:
            trials.add_finished()
            planned = [each.trial for each in self._expansion.first.trials]
            workload = workload_of(config)
            trials.unnecessary_trials = workload.unnecessary_trials(
                config, planned, trials.rows, is_local=is_local
            )
            self.finished |= trials.unnecessary_trials

    @property
    def is_complete(self) -> bool:
        """Whether no trial is left to run. False for a search, whose trials are unknown."""
        if self._experiment is None or self._has_search:
            return False
        return all(each.trial.number in self.finished for each in self._expansion.first.trials)

    @property
    def rounds_left(self) -> list[int]:
        """Numbers of the rounds that have trials to run."""
        if self.is_complete or self._expansion.is_driven:
            return []
        if self._experiment is None or self._has_search:
            return [1]
        shapes = self._expansion.shapes[self._expansion.first.name]
        return [
            number
            for number, shape in enumerate(shapes, start=1)
            if any(trial.number not in self.finished for trial in shape.trials)
        ]

    @property
    def shared_parts(self) -> list[Work] | None:
        """The remaining parts, if they share one stack; None if each has its own. Without parts,
        the session only looks for a stack that is left."""
        if not (self._expansion.is_in_turn and self._is_collected) or self.driven is not None:
            return None
        return [self.work(Part(number)) for number in self.rounds_left]

    # --- a part ----------------------------------------------------------------------------------

    def work(self, part: Part, trial: BeginTrial | None = None) -> Work:
        """Return what a part measures, and where its results go."""
        results = self.members[part.member]
        folder, trials = results.folder, results.trials
        run = RunValues(
            is_held=bool(part.member),
            member=part.member,
            cli_command=self._options.cli_command,
        )
        logs = folder / "logs"
        if trials is not None:
            run, logs = trials.run_values(run), folder / SHAPES / str(part.round) / "logs"
        if trial is not None:
            name = folder_of(trial.trial, trial.attempt)
            folder = folder / TRIALS / name
            logs = folder / "logs"
            assert trials is not None
            assert self.driven is not None
            run = trials.run_values(run, name)
            shape = self.driven.shape_of(results.member.config, trial)
            config = shape.configs[0]
        else:
            shape = results.shapes[part.round - 1]
            config = shape_config(results.member.config, shape)
            if self._is_collected and self._placement.where == "cluster":
                folder = folder / SHAPES / str(part.round)
        # The folder of a round exists if a runner was killed while its stack was up.
        is_there = self._is_resumed and folder.is_dir()
        return Work(
            part=part,
            member=results.member,
            config=config,
            shape=shape,
            trial=trial,
            folder=folder,
            logs=logs,
            is_resumed=is_experiment(folder) if self._placement.where == "local" else is_there,
            finished=self.finished,
            run=run,
            run_id=self._placement.run_id if self._expansion.is_single else new_run_id(),
        )

    def close(self, round_: int, started: BeginTrial | None) -> RoundClosed:
        """Add the results of a round's parts to the folders of their members."""
        for results in self.members.values():
            try:
                self._add_trials(results, round_, started)
            except Exception as error:
                # The other parts must continue.
                prefix = f"shape {round_}: " if started is None else ""
                results.error = results.error or f"{prefix}{error}"
        if started is None:
            return RoundClosed(round_)
        assert self.driven is not None
        ended, total = {name: each.ended[round_] for name, each in self.members.items()}, None
        if len(ended) > 1:
            from aiperf_svc.runner import joining

            total = joining.total_of(self.joint_runs(ended), self.folder, started.trial)
        return RoundClosed(round_, self.driven.end(started, ended, total))

    def _add_trials(self, results: MemberResults, round_: int, started: BeginTrial | None) -> None:
        """Add the trials of a finished part, or the one that a driver chose."""
        trials, outcome = results.trials, results.ended[round_]
        if trials is None:
            return
        if started is not None:
            assert self.driven is not None
            trials.add_outcome(self.driven.outcome_of(started, outcome))
            return
        # Trials after the time limit were not started.
        is_failed = outcome.has_failed and not outcome.is_out_of_time
        stops = self._experiment is not None and self._experiment.on_failure == "stop"
        # If a failed trial ended its shape, the later ones were not started.
        was_ended_by_trial = is_failed and stops and outcome.results is not None
        if outcome.artifacts is not None:
            trials.collect(round_, outcome.artifacts)
        if is_failed and not was_ended_by_trial:
            trials.fail_unfinished(round_, outcome.reason)
            trials.write_progress()

    # --- all parts -------------------------------------------------------------------------------

    async def outcomes(self) -> dict[str, RunOutcome]:
        """Write the files of each member's experiment, and return the outcome of each."""
        found = {}
        for name, each in self.members.items():
            outcome = await self._outcome(each)
            if self._remove_empty(each):
                outcome = replace(outcome, artifacts=None)
            found[name] = outcome
        return found

    async def _outcome(self, results: MemberResults) -> RunOutcome:
        trials = results.trials
        outcomes = [results.ended[number] for number in sorted(results.ended)]
        run_id = self._placement.run_id
        if trials is None:
            (outcome,) = outcomes
            return outcome
        written, uploaded_to = None, ""
        try:
            search = self.driven.search_report if self.driven is not None else None
            written = trials.write(run_id, search)
            if written is not None and trials.has_upload:
                keys = await self._placement.upload_keys(results.member)
                uploaded_to = await asyncio.to_thread(trials.upload, keys)
        except AiperfError as error:
            results.error = results.error or str(error)
        failed = next((each for each in outcomes if each.state == RunState.FAILED), None)
        stopped = next((each for each in outcomes if each.state == RunState.CANCELLED), None)
        ended_by = failed or stopped
        # A driver and a shared stack continue after failed trials, as services do.
        is_one = self.driven is not None or self._expansion.is_in_turn
        has_failed = failed is not None and not trials.finished and not is_one
        is_complete = self.driven.is_done if self.driven is not None else trials.is_complete
        is_whole = is_complete and not has_failed
        was_interrupted = any(each.was_interrupted for each in outcomes)
        early = RunState.CANCELLED if was_interrupted else RunState.FAILED
        errors = (each.artifact_error for each in outcomes if each.artifact_error)
        outcome = RunOutcome(
            run_id=run_id,
            state=RunState.DONE if is_whole else early,
            reason=ended_by.reason if ended_by is not None and not is_whole else "",
            # If nothing was measured, the first failed part decides the exit code.
            failure=failed.failure if failed and has_failed else ExitCode.BENCHMARK_FAILED,
            results=written,
            artifacts=results.folder,
            artifact_error=results.error or next(errors, ""),
            uploaded_to=uploaded_to,
            was_interrupted=was_interrupted,
            left=tuple(left for each in outcomes for left in each.left),
            is_unlisted=any(each.is_unlisted for each in outcomes),
            is_unverified=any(each.is_unverified for each in outcomes),
        )
        return self._placement.completed(results.member, outcome, outcomes)

    def joint_runs(self, outcomes: Mapping[str, RunOutcome]) -> list[JointRun]:
        """Return the members as parts of a joint result."""
        return [
            JointRun(
                name=name, where=each.member.where, outcome=outcomes[name], offsets=each.offsets
            )
            for name, each in self.members.items()
        ]

    def remove_empty(self) -> None:
        """Remove empty folders, unless an experiment is resumed."""
        for each in self.members.values():
            self._remove_empty(each)
        if not self._is_resumed:
            folders.remove_if_empty(self.folder)
        if self._new_parent is not None:
            with suppress(OSError):
                self._new_parent.rmdir()

    def _remove_empty(self, results: MemberResults) -> bool:
        """Remove the folder of a member if it is empty. Returns whether it is gone."""
        if self._is_resumed:
            return False
        if results.trials is not None:
            results.trials.remove_empty()
        return folders.remove_if_empty(results.folder) or not results.folder.exists()
