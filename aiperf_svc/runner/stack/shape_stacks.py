"""Runs the shapes of an experiment at the same time: a stack for each, one folder for all."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aiperf_svc.adapters.cluster.api.connection import connect
from aiperf_svc.adapters.cluster.preflight.capacity import SharedRoom
from aiperf_svc.adapters.exports.experiment_file import is_experiment
from aiperf_svc.config.experiment import Experiment
from aiperf_svc.core.experiments.experiment_result import ExperimentResult
from aiperf_svc.core.experiments.trials import describe
from aiperf_svc.domain.errors import AiperfError, ConfigError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.identity import check_stack_name
from aiperf_svc.plan.service_pods import upload_keys
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner import folders, resuming, signals
from aiperf_svc.runner.ending import errors_of, finish
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.outlets import check_single
from aiperf_svc.runner.resuming import Resumed
from aiperf_svc.runner.shape_trials import SHAPES, ShapeTrials
from aiperf_svc.runner.stack import collection, preview, terminal
from aiperf_svc.runner.stack.options import StackOptions
from aiperf_svc.runner.stack.request import StackRequest, open_project
from aiperf_svc.runner.stack.side_by_side import Member, check_namespace, run_side_by_side
from aiperf_svc.runner.stack.stack_outcome import NOTHING_MADE
from aiperf_svc.runner.stack.state_home import StateHome
from aiperf_svc.runner.stack.turns import MOST_BY_ROOM, Turns
from aiperf_svc.workloads.shapes import is_side_by_side


def needs_stacks(request: StackRequest) -> bool:
    """Return whether the shapes of a request run side by side. Raises ConfigError."""
    return is_side_by_side(request.config) and len(request.shapes) > 1


def shape_members(request: StackRequest) -> list[Member]:
    """Return the stack of each shape, whose name ends with the shape's number. Raises
    ConfigError."""
    check_namespace(request.config.deployment, "experiment.parallel")
    members = []
    known = replace(request, resumed=None).all_shapes
    for number, shape in enumerate(known.shapes, start=1):
        stack = f"{request.stack}-{number}"
        check_stack_name(stack)
        own = replace(request, stack=stack, only_shape=number, known=known, resumed=None)
        members.append(
            Member(name=f"shape {number}", where=describe(shape.parameters), request=own)
        )
    return members


def run_shape_stacks(request: StackRequest, options: StackOptions) -> ExitCode:
    """Run all shapes and print the results of the experiment. Raises AiperfError for what is wrong
    before anything is made."""
    if options.keep:
        raise ConfigError(
            "--keep: stacks that stay take the room of those that follow (experiment.parallel); "
            "--keep-on-failure keeps one that failed"
        )
    check_single(options.run)
    members = shape_members(request)
    request.check_prerequisites()
    with terminal.ignore_closed_stderr():
        compared = preview.compare(request)
        terminal.say(preview.of_shapes(request, request.members, compared, is_markdown=False))
        is_asked = not options.yes and terminal.can_ask()
        if is_asked and not signals.run(terminal.ask("Create these stacks?")):
            terminal.say(NOTHING_MADE)
            return ExitCode.INTERRUPTED
        with errors_of(request.plan.identity.run_id):
            outcome = signals.run(_ShapeStacks(request, members, options).run())
    return finish(outcome, request.config.artifacts, options.run)


class _ShapeStacks:
    """One experiment."""

    def __init__(
        self, request: StackRequest, members: Sequence[Member], options: StackOptions
    ) -> None:
        assert request.config.experiment is not None
        self._request, self._options = request, options
        self._members = members
        self._experiment: Experiment = request.config.experiment
        self._error = ""
        """What kept the files of the experiment from being written."""

    async def run(self) -> RunOutcome:
        """Run all stacks. Raises AiperfError when nothing was created."""
        request, parallel = self._request, self._experiment.parallel
        connecting = connect(kubeconfig=request.used_kubeconfig, context=request.used_context)
        async with connecting as cluster:
            room = SharedRoom(cluster, is_auto=parallel == "auto")
            await room.find((), (request.plan,))
            self._trials = self._prepared()
            self._turns = Turns(MOST_BY_ROOM if parallel == "auto" else parallel, room.find)
            left = [self._placed(member) for member in self._left()]
            outcomes = []
            if left:
                outcomes = await run_side_by_side(
                    left, self._options, turns=self._turns, on_end=self._take
                )
        results, uploaded_to = await self._write()
        return self._outcome(outcomes, results, uploaded_to)

    def _prepared(self) -> ShapeTrials:
        """Make the folder, or make that of a resumed experiment ready for the shapes that are
        left. Raises ConfigError, EnvironmentProblem."""
        config, resumed = self._request.config, self._request.resumed
        shapes = [shape for member in self._members[:1] for shape in member.request.shapes]
        if resumed is None:
            folder = folders.make_artifact_folder(Path(config.artifacts.dir), config.name)
            resuming.begin(folder, config)
            return ShapeTrials(config, shapes, folder)
        trials = ShapeTrials(config, shapes, resumed.folder)
        trials.add_finished()
        resuming.set_aside(resumed.folder, trials.keep_whole_shapes())
        return trials

    def _left(self) -> list[Member]:
        """Return the stacks of shapes that have trials to run."""
        home, left = StateHome(self._request.environ), []
        for number, member in enumerate(self._members, start=1):
            if not self._trials.has_all(number):
                left.append(member)
            elif home.load(member.request.stack) is not None:
                terminal.say(
                    f"{member.name}: its trials have ended before; remove what may be left of its "
                    f"stack with: aiperf-svc gc {member.request.stack}"
                )
        return left

    def _placed(self, member: Member) -> Member:
        """Give a stack the folder of its shape. If it is there from a runner that was killed, the
        run of a stack that is up is followed to its end."""
        own = self._trials.folder / SHAPES / str(member.request.only_shape)
        run = self._trials.run_values(member.request.run)
        request = replace(member.request, folder=own, run=run)
        before = self._request.resumed
        if before is not None and own.is_dir():
            resumed = Resumed(own, frozenset(), before.namespace_mode)
            request = replace(request, resumed=resumed)
        return replace(member, request=request)

    def _take(self, member: Member, outcome: RunOutcome) -> None:
        """Take in the trials of a shape that is over."""
        shape = member.request.only_shape
        assert shape is not None
        is_failed = outcome.state == RunState.FAILED and not outcome.was_interrupted
        is_last = is_failed and self._experiment.on_failure == "stop"
        # Where a trial has ended its shape, those after it were not begun.
        was_ended_by_trial = is_last and outcome.results is not None
        try:
            if outcome.artifacts is not None and is_experiment(outcome.artifacts):
                self._trials.move(shape)
            if is_failed and not was_ended_by_trial:
                self._trials.fail(shape, outcome.reason)
                self._trials.write_progress()
        except Exception as error:
            # The other stacks must go on to their ends.
            self._error = self._error or f"shape {shape}: {error}"
        if is_last or outcome.more.get("kept"):
            self._turns.end()

    async def _write(self) -> tuple[ExperimentResult | None, str]:
        """Write the files of the experiment, and upload them if its trials are; its results, and
        where to."""
        request, results = self._request, None
        try:
            results = self._trials.write(request.plan.identity.run_id)
            if results is None or not self._trials.has_upload:
                return results, ""
            return results, await asyncio.to_thread(self._trials.upload, await self._keys())
        except AiperfError as error:
            self._error = self._error or str(error)
        return results, ""

    async def _keys(self) -> dict[str, str]:
        """Return the keys of the upload by environment variable: those that were given, else those
        in the stack's file."""
        request = self._request
        sources = upload_keys(request.config)
        if all(key in request.secrets for key in sources.values()):
            return {variable: request.secrets[key] for variable, key in sources.items()}
        home, content = StateHome(request.environ), request.file_content()
        with open_project(request.stack, content, home, request.environ) as cli:
            return await collection.upload_keys(request, cli)

    def _outcome(
        self,
        outcomes: Sequence[RunOutcome],
        results: ExperimentResult | None,
        uploaded_to: str,
    ) -> RunOutcome:
        folder = self._trials.folder
        if results is None and self._request.resumed is None:
            resuming.remove_beginning(folder)
        is_empty = folders.remove_if_empty(folder)
        failed = next((each for each in outcomes if each.state == RunState.FAILED), None)
        stopped = next((each for each in outcomes if each.state == RunState.CANCELLED), None)
        reasons = [each.reason for each in (failed, stopped) if each is not None]
        has_failed = failed is not None and not self._trials.finished
        is_whole = self._trials.is_complete and not has_failed
        errors = (each.artifact_error for each in outcomes if each.artifact_error)
        return RunOutcome(
            run_id=self._request.plan.identity.run_id,
            state=RunState.DONE if is_whole else RunState.FAILED,
            reason=next(iter(reasons), "") if not is_whole else "",
            # If nothing was measured, the reason is that of the first stack.
            failure=failed.failure if failed and has_failed else ExitCode.BENCHMARK_FAILED,
            results=results,
            artifacts=None if is_empty else folder,
            artifact_error=self._error or next(errors, ""),
            uploaded_to=uploaded_to,
            was_interrupted=any(each.was_interrupted for each in outcomes),
            left=tuple(left for each in outcomes for left in each.left),
            is_unlisted=any(each.is_unlisted for each in outcomes),
            is_unverified=any(each.is_unverified for each in outcomes),
            more={
                "stack": self._request.stack,
                "left": [left for each in outcomes for left in each.left],
                "stacks": [
                    {"state": each.state, "reason": each.reason, **each.more} for each in outcomes
                ],
            },
        )
