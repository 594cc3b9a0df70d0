"""Carries out the stages of a stack's run, in the order that `stages.StackLifecycle` decides."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.watching.contact import watched_contact
from aiperf_svc.adapters.pulumi.cli import PulumiCli
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.domain.errors import AiperfError, EnvironmentProblem, LeakError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner import trial_lists
from aiperf_svc.runner.common_start import GiveStart
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.resuming import Resumed
from aiperf_svc.runner.shape_trials import ShapeTrials
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack import bring_up, measure, results_folder, summary, terminal
from aiperf_svc.runner.stack.options import StackOptions
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.runner.stack.screen import Screen
from aiperf_svc.runner.stack.stages import StackLifecycle, Stage, StageResult
from aiperf_svc.runner.stack.state_home import RunRecord, StateHome
from aiperf_svc.runner.stack.teardown import Teardown

T = TypeVar("T")
ASKS_THE_CLUSTER = (Stage.UP, Stage.COLLECT, Stage.EVIDENCE, Stage.DESTROY, Stage.CHECK)
"""Stages that report a silent API server. `RunWatch` reports it during the run, and before a stack
exists the silence ends the command."""
OF_A_SHAPE = (Stage.UP, Stage.RUN, Stage.COLLECT, Stage.EVIDENCE)
"""Stages that are repeated for each shape."""
STOPPED = "stopped by the user before there was anything to report"
NOTHING_MADE = "nothing was created"


class Launch:
    """Runs a stack, stage by stage."""

    def __init__(
        self,
        request: StackRequest,
        options: StackOptions,
        home: StateHome,
        cluster: Cluster,
        cli: PulumiCli,
        interrupts: Interrupts,
        screen: Screen,
        *,
        give_start: GiveStart | None = None,
    ) -> None:
        self._request, self._options, self._home = request, options, home
        self._cluster, self._cli, self._interrupts = cluster, cli, interrupts
        experiment = request.config.experiment
        self._lifecycle = StackLifecycle(
            keep=options.keep,
            keep_on_failure=options.keep_on_failure,
            stops_on_failure=experiment is not None and experiment.on_failure == "stop",
            shapes=results_folder.shapes_left(request),
        )
        self._screen, self._say = screen, screen.say
        self._give_start = give_start
        self._failure: AiperfError | None = None
        """The first error."""
        self._shape_failure: AiperfError | None = None
        """The first error in the current shape."""
        self._unmade: dict[int, AiperfError] = {}
        """Shapes that cannot come up, as was found before anything was made."""
        self._trials: ShapeTrials | None = None
        """Of an experiment whose results do not come all at once: it has several shapes, or some of
        its trials have ended before."""
        self._running_shape: int | None = None
        """The shape whose trials a killed runner has left running."""
        self._prepared: RunRecord | None = None
        self._record: RunRecord | None = None
        """Set before the first object may be created."""
        self._artifacts: Path | None = None
        self._measuring: measure.Measuring | None = None
        self._unschedulable_s: dict[int, float] = {}
        """Time that a pod may stay unschedulable, for each shape."""
        self._deadline_mono_s: float | None = None
        self._artifact_error = ""
        self._is_destroyed = False
        """Whether `pulumi destroy` succeeded."""
        self._is_state_behind = False
        """Whether Pulumi's state may lag behind the cluster; then the record of the run stays for
        `gc`."""
        self._has_leak_report = False
        """Whether the leak check produced a report."""
        self._left: tuple[str, ...] = ()
        self._not_checked: tuple[str, ...] = ()
        self._evidence: tuple[Path, ...] = ()
        self._summary: dict[str, Any] | None = None
        """Of an experiment whose results do not come all at once."""
        self._uploaded_to = ""
        """Where the runner has uploaded them to."""
        self._took_s: dict[str, float] = {}

    async def run(self) -> RunOutcome:
        """Run all stages. Raises AiperfError when nothing was created."""
        stages: dict[Stage, Callable[[], Awaitable[StageResult]]] = {
            Stage.PREFLIGHT: self._preflight,
            Stage.PREVIEW: self._preview,
            Stage.UP: self._up,
            Stage.RUN: self._measure,
            Stage.COLLECT: self._collect,
            Stage.EVIDENCE: self._save_evidence,
            Stage.DESTROY: self._destroy,
            Stage.CHECK: self._check,
        }
        lifecycle = self._lifecycle
        try:
            while lifecycle.stage is not Stage.FINISHED:
                stage, shape, started_mono_s = lifecycle.stage, lifecycle.shape, time.monotonic()
                self._screen.begin(stage)
                result = await self._end_of(stage, stages[stage])
                if stage is Stage.COLLECT and result is StageResult.FAILED:
                    lifecycle.has_only_copy = not self._is_uploaded
                took_s = self._took_s.get(stage.value, 0.0) + time.monotonic() - started_mono_s
                self._took_s[stage.value] = round(took_s, 1)
                lifecycle.end(stage, result, interrupts=self._interrupts.count)
                if stage in OF_A_SHAPE and lifecycle.stage not in OF_A_SHAPE[1:]:
                    self._end_shape(shape)
        finally:
            await self._end_measuring()
            await self._write_trials()
            self._remove_if_empty()
        if self._record is None:
            if self._failure is not None:
                raise self._failure
            return self._outcome(None)
        self._say(summary.took(self._took_s))
        if lifecycle.is_kept and lifecycle.has_only_copy:
            self._say("the results could not be fetched: they are in the stack and nowhere else")
        if lifecycle.is_kept:
            self._say(summary.kept(self._request.plan, namespace=self._record.namespace))
        return self._outcome(self._measuring.status if self._measuring else None)

    async def _end_of(
        self, stage: Stage, work: Callable[[], Awaitable[StageResult]]
    ) -> StageResult:
        try:
            if stage not in ASKS_THE_CLUSTER:
                return await work()
            async with watched_contact(self._cluster, note=self._say):
                return await work()
        except AiperfError as error:
            return self._failed(error)
        except Exception as error:
            # The stack must be removed after any error.
            text = f"unexpected {type(error).__name__} in {stage}: {error}"
            return self._failed(EnvironmentProblem(text), cause=error)

    def _failed(self, error: AiperfError, *, cause: Exception | None = None) -> StageResult:
        if cause is not None:
            error.__cause__ = cause
        self._failure = self._failure or error
        self._shape_failure = self._shape_failure or error
        if self._record is not None:
            # The teardown takes a while, and the final message names the first error only.
            self._say(str(error))
        return StageResult.FAILED

    # --- before anything is made -----------------------------------------------------------------

    async def _preflight(self) -> StageResult:
        lifecycle, running = self._lifecycle, []
        if self._request.resumed is not None:
            if not lifecycle.shapes:
                return self._find_rest(self._request.resumed)
            finding = bring_up.running_shape(
                self._request, lifecycle.shapes, self._cluster, self._cli
            )
            found = await self._unless_interrupted(finding)
            running = [] if found is None else [found]
            self._running_shape = found
        fitting = await self._fitting([each for each in lifecycle.shapes if each not in running])
        if self._interrupts.count:
            return StageResult.INTERRUPTED
        if self._unmade and self._lifecycle.stops_on_failure:
            fitting = []
        if not fitting and not running and self._unmade:
            raise next(iter(self._unmade.values()))
        for number, cause in self._unmade.items():
            named = trial_lists.shape_name(self._request.shapes, number)
            self._say(f"{named}: its trials count as failed: {cause}")
        lifecycle.shapes = [*running, *fitting]
        return StageResult.DONE

    def _find_rest(self, resumed: Resumed) -> StageResult:
        """Look for what is left of a stack whose trials have all ended."""
        self._say(f"all trials have ended before; their results are in {resumed.folder}")
        self._artifacts = resumed.folder
        self._trials = results_folder.collected_trials(self._request, resumed.folder)
        self._record = self._home.load(self._request.stack)
        return StageResult.DECLINED if self._record is None else StageResult.DONE

    async def _fitting(self, shapes: Sequence[int]) -> list[int]:
        """Run the preflight checks of these shapes, until an interrupt; those that passed them."""
        fitting = []
        for number in shapes:
            plan = self._request.plans[number - 1]
            if number > 1:
                self._say(trial_lists.shape_name(self._request.shapes, number))
            try:
                checks = await self._unless_interrupted(
                    bring_up.check(self._cluster, plan, say=self._say)
                )
            except EnvironmentProblem as error:
                self._unmade[number] = error
                continue
            if checks is None:
                break
            self._unschedulable_s[number] = bring_up.unschedulable_limit_s(checks, plan)
            fitting.append(number)
        return fitting

    async def _preview(self) -> StageResult:
        request = self._request
        if self._running_shape is not None:
            self._say(f"stack {request.stack} is up and runs these trials: going on with it")
        elif (result := await self._review()) is not StageResult.DONE:
            return result
        # Errors that can be found before anything is made are raised here.
        record = await bring_up.first_record(request, self._cluster, self._home, self._cli)
        is_running = self._running_shape is not None
        self._artifacts = folder = results_folder.prepare(request, is_running=is_running)
        self._prepared = msgspec.structs.replace(record, artifacts=str(folder.resolve()))
        self._trials = results_folder.collected_trials(request, folder)
        if self._trials is not None:
            for number, error in self._unmade.items():
                self._trials.fail(number, str(error))
        return StageResult.DONE

    async def _review(self) -> StageResult:
        """Show what will be created, and ask."""
        text = await self._unless_interrupted(
            bring_up.preview(self._request, self._cluster, self._cli)
        )
        if text is None:
            return StageResult.INTERRUPTED
        self._screen.preview(text)
        if not self._options.yes and terminal.can_ask():
            agreed = await self._unless_interrupted(terminal.ask("Create this stack?"))
            if not agreed:
                return StageResult.INTERRUPTED if agreed is None else StageResult.DECLINED
        return StageResult.DONE

    # --- the stack and its run -------------------------------------------------------------------

    async def _up(self) -> StageResult:
        assert self._prepared is not None
        shape, is_change = self._lifecycle.shape, self._record is not None
        is_up, self._running_shape = shape == self._running_shape, None
        if is_change:
            await self._end_measuring()
        elif self._options.timeout_s is not None:
            self._deadline_mono_s = time.monotonic() + self._options.timeout_s
        earlier = self._home.load(self._request.stack)
        self._record = self._record or self._prepared
        self._home.save(self._record)
        if self._trials is not None:
            self._say(trial_lists.shape_name(self._request.shapes, shape))
        try:
            is_up = is_up or await bring_up.up(
                self._request,
                self._cluster,
                self._cli,
                shape=shape,
                upload_into=self._trials.upload_into if self._trials else "",
                is_change=is_change,
                unschedulable_s=self._unschedulable_s.get(shape, 0.0),
                interrupts=self._interrupts,
                deadline_mono_s=self._deadline_mono_s,
                say=self._say,
            )
        except bring_up.StateLocked as error:
            if is_change:
                raise
            self._record = None
            self._home.forget(self._request.stack)
            if earlier is not None:
                self._home.save(earlier)
            self._failed(error)
            return StageResult.DECLINED
        finally:
            # The teardown of a partly created stack needs these UIDs too.
            await self._find_own()
            if self._deadline_mono_s is not None and time.monotonic() > self._deadline_mono_s:
                self._lifecycle.end_shapes()
        return StageResult.DONE if is_up else StageResult.INTERRUPTED

    async def _find_own(self) -> None:
        if self._record is None:
            return
        try:
            self._record = await bring_up.find_own(self._record, self._cluster, self._cli)
        except AiperfError as error:
            self._say(f"what belongs to the stack is known by its label only: {error}")
            self._record = msgspec.structs.replace(self._record, own=None)
        self._home.save(self._record)

    async def _measure(self) -> StageResult:
        self._measuring = measure.Measuring(
            self._cluster,
            await self._cli.outputs(),
            self._plan,
            self._screen.display,
            self._give_start,
            self._options.run,
        )
        summary = await self._measuring.follow(
            interrupts=self._interrupts,
            deadline_mono_s=self._deadline_mono_s,
            timeout_s=self._options.timeout_s,
        )
        status = self._measuring.status
        if self._measuring.is_out_of_time:
            self._lifecycle.end_shapes()
        if self._measuring.failure is not None:
            self._failed(self._measuring.failure)
            self._lifecycle.fail_run()
        if status is not None and status.state == RunState.FAILED:
            self._lifecycle.fail_run()
        if self._measuring.has_losses:
            self._lifecycle.suspect_run()
        if summary is None and not self._measuring.has_results:
            return StageResult.INTERRUPTED if self._interrupts.count else StageResult.FAILED
        return StageResult.DONE

    async def _collect(self) -> StageResult:
        assert self._measuring is not None
        folder = self._folder
        fetched = asyncio.create_task(self._measuring.fetch(folder), name="fetch results")
        logs = asyncio.create_task(self._save_logs(), name="save logs")
        try:
            if not await self._ended_before(fetched, interrupts=2):
                return StageResult.INTERRUPTED
            try:
                self._say(f"collected {fetched.result()} into {self._artifacts}")
                if self._trials is not None:
                    self._trials.move(self._lifecycle.shape)
            except AiperfError as error:
                self._artifact_error = str(error)
                return StageResult.FAILED
            return (
                StageResult.DONE
                if await self._ended_before(logs, interrupts=2)
                else StageResult.INTERRUPTED
            )
        finally:
            logs.cancel()
            await asyncio.gather(logs, return_exceptions=True)

    async def _save_logs(self) -> None:
        """Collect the logs of the services. A missing log does not fail the run."""
        assert self._record is not None
        try:
            missing = await bring_up.save_logs(self._cluster, self._record, self._folder)
        except OSError as error:
            missing = (str(error),)
        for each in missing:
            self._say(f"not saved: {each}")

    async def _save_evidence(self) -> StageResult:
        assert self._record is not None
        folder = self._folder
        saving = asyncio.create_task(
            bring_up.save_evidence(self._cluster, self._cli, self._record, folder),
            name="save evidence",
        )
        if not await self._ended_before(saving, interrupts=2):
            return StageResult.INTERRUPTED
        try:
            self._evidence = saving.result()
        except OSError as error:
            # A full disk does not make the run fail.
            self._say(f"evidence could not be saved: {error}")
            return StageResult.FAILED
        self._say(f"saved {len(self._evidence)} files about the failure in {folder}")
        return StageResult.DONE

    def _end_shape(self, shape: int) -> None:
        """Record what became of the trials of a shape that is over."""
        error, self._shape_failure = self._shape_failure, None
        measuring = self._measuring
        is_stopped = self._lifecycle.was_interrupted or (measuring and measuring.is_out_of_time)
        if self._trials is not None and error is not None and not is_stopped:
            self._trials.fail(shape, str(error))

    async def _write_trials(self) -> None:
        """Write the files of an experiment whose results did not come all at once."""
        is_begun = self._record is not None or (self._trials and self._trials.is_complete)
        if self._trials is None or not is_begun:
            return
        try:
            self._summary = self._trials.write(self._request.plan.identity.run_id)
            if self._trials.upload_into:
                keys = await bring_up.upload_keys(self._request, self._cli)
                self._uploaded_to = await asyncio.to_thread(self._trials.upload, keys)
        except EnvironmentProblem as error:
            self._artifact_error = self._artifact_error or str(error)

    # --- the way down ----------------------------------------------------------------------------

    async def _destroy(self) -> StageResult:
        await self._end_measuring()
        notices = asyncio.create_task(self._report_teardown_running(), name="report interrupts")
        try:
            self._say("destroying the stack")
            self._is_destroyed = await self._teardown().destroy()
        finally:
            notices.cancel()
        return StageResult.DONE

    async def _check(self) -> StageResult:
        assert self._record is not None
        stack = self._record.stack
        try:
            report = await self._teardown().check()
        except Exception as error:
            self._not_checked = (f"everything ({error})",)
            self._say(f"whether anything is left is not known; look with: aiperf-svc gc {stack}")
            raise
        self._has_leak_report = True
        self._left = tuple(map(str, report.left))
        self._not_checked = report.not_checked
        for each in report.missing:
            self._say(f"gone from the namespace since the stack came: {each}")
        for each in report.others:
            self._say(f"not touched, of another stack with the same name: {each}")
        for each in report.strays:
            self._say(f"not touched, with the stack's label and not made by this run: {each}")
        if report.left:
            raise LeakError(f"{len(report.left)} objects of stack {stack} are left")
        self._say(f"leak check: {report.in_words}")
        if not self._is_destroyed and not await self._teardown().update_state():
            self._is_state_behind = True
            raise EnvironmentProblem(
                f"the state of stack {stack} still holds what is gone; `aiperf-svc gc {stack}` "
                "brings it up to date"
            )
        self._home.forget(stack)
        return StageResult.DONE

    def _remove_if_empty(self) -> None:
        """Remove the empty artifact folder of a run that was stopped early."""
        if self._artifacts is None or self._measuring is not None or self._summary is not None:
            return
        if results_folder.remove_if_empty(self._request, self._artifacts):
            self._artifacts = None

    def _teardown(self) -> Teardown:
        assert self._record is not None
        return Teardown(cluster=self._cluster, cli=self._cli, record=self._record, say=self._say)

    @property
    def _plan(self) -> StackPlan:
        """The plan of the current shape."""
        return self._request.plans[self._lifecycle.shape - 1]

    @property
    def _folder(self) -> Path:
        """Folder for what is fetched from the current shape."""
        assert self._artifacts is not None
        if self._trials is None:
            return self._artifacts
        return self._trials.folder_of(self._lifecycle.shape)

    async def _end_measuring(self) -> None:
        if self._measuring is not None:
            await self._measuring.close()

    # --- helpers ---------------------------------------------------------------------------------

    async def _unless_interrupted(self, work: Awaitable[T]) -> T | None:
        """Return the result of the work, or None when the user stops it."""
        task = asyncio.ensure_future(work)
        return task.result() if await self._ended_before(task, interrupts=1) else None

    async def _ended_before(self, task: "asyncio.Future[Any]", *, interrupts: int) -> bool:
        """Whether a task ends before this number of interrupts; otherwise it is cancelled."""
        stop = asyncio.create_task(self._interrupts.reached(interrupts), name="interrupts")
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        is_done = task.done()
        for each in (task, stop):
            each.cancel()
        await asyncio.gather(task, stop, return_exceptions=True)
        return is_done

    async def _report_teardown_running(self) -> None:
        while True:
            await self._interrupts.reached(self._interrupts.count + 1)
            self._say("already removing the stack: this goes on to its end")

    @property
    def _is_uploaded(self) -> bool:
        status = self._measuring.status if self._measuring else None
        return status is not None and bool(status.uploaded_to)

    def _outcome(self, status: Status | None) -> RunOutcome:
        lifecycle, measuring = self._lifecycle, self._measuring
        summary = self._summary or (measuring.summary if measuring else None)
        is_complete = self._trials is not None and self._trials.is_complete
        is_unmade = self._record is None and not is_complete
        state = RunState.CANCELLED if lifecycle.was_interrupted or is_unmade else RunState.FAILED
        reason = str(self._failure) if self._failure else ("" if summary else STOPPED)
        failure = self._failure.exit_code if self._failure else ExitCode.BENCHMARK_FAILED
        if is_unmade:
            reason = NOTHING_MADE
        if status is not None and RunState(status.state).is_final and self._failure is None:
            state, reason = RunState(status.state), status.reason
            failure = status.exit_code or failure
        if self._summary is not None and not lifecycle.was_interrupted:
            # What failed is in the trials, unless some of them were not begun.
            state = RunState.DONE if is_complete else RunState.FAILED
            failure = ExitCode.BENCHMARK_FAILED
        return RunOutcome(
            run_id=self._request.plan.identity.run_id,
            state=state,
            reason=reason,
            failure=failure,
            summary=summary,
            artifacts=self._artifacts,
            artifact_error=self._artifact_error or (status.artifact_error if status else ""),
            uploaded_to=self._uploaded_to or (status.uploaded_to if status else ""),
            was_interrupted=lifecycle.was_interrupted or is_unmade,
            left=self._left,
            is_unverified=self._is_state_behind
            or not (self._record is None or lifecycle.is_kept or self._has_leak_report),
            more={
                "stack": self._request.stack,
                "namespace": self._record.namespace if self._record else None,
                "kept": lifecycle.is_kept,
                "left": list(self._left),
                "not_checked": list(self._not_checked),
                "took_s": self._took_s,
            },
        )
