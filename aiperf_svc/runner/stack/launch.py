"""Carries out the stages of a stack, in the order that its `StackLifecycle` decides.

    begin ──> run_part ──> run_part … ──> end

The session decides which part runs next on a stack that several parts share.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster, retried
from aiperf_svc.adapters.cluster.ownership import LeaseKeeper, StackInUse
from aiperf_svc.adapters.cluster.teardown.event_undo import POLL_S, RETRY_S, undo_recorded
from aiperf_svc.adapters.cluster.teardown.leaks import find_roots
from aiperf_svc.adapters.cluster.watching.contact import watched_contact
from aiperf_svc.adapters.pulumi.cli import PulumiCli
from aiperf_svc.adapters.pulumi.state_home import RunRecord, StateHome
from aiperf_svc.adapters.storage import folders
from aiperf_svc.adapters.terminal import output
from aiperf_svc.core.cluster.lease import Holder
from aiperf_svc.core.cluster.stack_stages import StackLifecycle, Stage, StageResult
from aiperf_svc.domain.errors import AiperfError, EnvironmentProblem, error_text
from aiperf_svc.domain.number_text import count
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner.options import StackOptions
from aiperf_svc.runner.outcome import RunEnd, RunOutcome
from aiperf_svc.runner.parts import PartContext, Work
from aiperf_svc.runner.stack import bring_up, measure, records
from aiperf_svc.runner.stack.discovery import pin_target
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.runner.stack.teardown import StackRemoval
from aiperf_svc.workloads.previews import summary, trial_lists

CLUSTER_STAGES = (Stage.UP, Stage.COLLECT, Stage.EVIDENCE, Stage.DESTROY, Stage.CHECK)
"""Stages that report an API server that does not respond. `RunWatch` reports it during the run.
Before a stack exists, it ends the command."""
_EndT = TypeVar("_EndT", RunEnd, RunOutcome)


class Launch:
    """Runs a stack, stage by stage."""

    def __init__(
        self,
        request: StackRequest,
        options: StackOptions,
        home: StateHome,
        cluster: Cluster,
        cli: PulumiCli,
        context: PartContext,
        *,
        me: Holder,
    ) -> None:
        """`me` identifies this process in the Lease of the stack."""
        self._request, self._options, self._home = request, options, home
        self._cluster, self._cli, self._context = cluster, cli, context
        self.run_id = request.plan.identity.run_id
        """Id of the run, or of the experiment whose parts share the stack."""
        self._interrupts, screen = context.interrupts, context.screen
        self._lifecycle = StackLifecycle(options.keep, options.keep_on_failure)
        self._screen, self._say, self._me = screen, screen.say, me
        self._keeper = LeaseKeeper(cluster, request.stack, me, screen.say)
        self.failure: AiperfError | None = None
        """The first error."""
        self._part_failure: AiperfError | None = None
        """The first error in the current part."""
        self._artifact_error = ""
        """Why results of the current part are missing."""
        self._parts: dict[int, Work] = {}
        """The remaining parts, by the number of their plan from 1."""
        self._number = 0
        """Number of the current part's plan."""
        self._checked = bring_up.CheckedShapes()
        self._collection = measure.Collection(request, cluster, cli, self._interrupts, screen.say)
        self._removal = StackRemoval(home, cluster, cli, screen.say)
        self._are_events_undone = True
        """False if it is unknown."""
        self._running: int | None = None
        """Number of the plan that a killed runner has left running."""
        self._node: str | None = None
        """The node of the target in all visits of an experiment in blocks; empty for any node, None
        before the choice."""
        self._prepared: RunRecord | None = None
        self._record: RunRecord | None = None
        """Set before the first object may be created."""
        self._measuring: measure.Measuring | None = None
        """The run of the current part; None before it is up."""
        self._deadline_mono_s: float | None = None
        self._took_s: dict[str, float] = {}

    async def begin(self, parts: Sequence[Work]) -> list[int]:
        """Check and preview the stack for these parts. Without parts, look for what is left of it.
        Returns the rounds to run in their order, none if the user stops it. Raises AiperfError if
        no part can run."""
        self._parts = {self._number_of(each): each for each in parts}
        self._lifecycle.has_parts = bool(parts)
        await self._run_until(Stage.UP, Stage.DESTROY, Stage.FINISHED)
        if self.failure is not None and self._record is None:
            raise self.failure
        may_run = self._lifecycle.stage is Stage.UP
        return [each.part.round for each in self._parts.values()] if may_run else []

    async def run_part(self, work: Work, context: PartContext) -> RunEnd:
        """Run a part, from `up` until its results are collected. Raises AiperfError if nothing was
        created."""
        self._number, self._context = self._number_of(work), context
        self._part_failure, self._artifact_error = None, ""
        lifecycle = self._lifecycle
        if (refused := self._checked.refused.get(self._number)) is not None:
            return RunEnd(run_id=self.run_id, error=refused)
        lifecycle.begin_part()
        await self._run_until(Stage.DESTROY, Stage.FINISHED)
        if self._record is None:
            assert self.failure is not None
            raise self.failure
        measuring = self._measuring
        return RunEnd(
            run_id=self.run_id,
            status=measuring.status if measuring else None,
            error=self._part_failure,
            results=measuring.results if measuring else None,
            artifacts=work.folder,
            artifact_error=self._artifact_error,
            was_interrupted=lifecycle.was_interrupted,
            is_out_of_time=measuring is not None and measuring.is_out_of_time,
            is_last=lifecycle.is_last,
        )

    async def end(self) -> None:
        """Remove the stack, unless it is kept. Interrupts do not stop the removal."""
        lifecycle = self._lifecycle
        if self._interrupts.count:
            lifecycle.stop()
        try:
            if lifecycle.stage is Stage.DESTROY:
                await self._run_until(Stage.FINISHED)
        finally:
            await self._end_measuring()
            await self._keeper.close(is_kept=lifecycle.is_kept)
            for each in self._parts.values():
                if not each.is_resumed:
                    folders.remove_if_empty(each.folder)
        record = self._record
        if record is None or lifecycle.stage is not Stage.FINISHED:
            return
        self._say(summary.took(self._took_s))
        if not lifecycle.is_kept or lifecycle.is_in_use:
            return
        if lifecycle.has_only_copy:
            self._say("The results could not be fetched. The stack holds the only copy of them.")
        plan, space = self._request.plan, record.namespace
        self._say(summary.kept(plan, namespace=space, expires=record.expires))

    @property
    def more(self) -> dict[str, Any]:
        """The additional keys of `--json`."""
        return {
            "stack": self._request.stack,
            "namespace": self._record.namespace if self._record else None,
            "kept": self._lifecycle.is_kept,
            "left": list(self._removal.left),
            "not_checked": list(self._removal.not_checked),
            "took_s": self._took_s,
        }

    def completed(self, end: _EndT) -> _EndT:
        """Add the result of the teardown to the end of a part, or of all parts of the stack."""
        lifecycle, removal, folder = self._lifecycle, self._removal, end.artifacts
        is_gone = self._record is not None and not lifecycle.is_kept
        return replace(
            end,
            run_id=self.run_id,
            artifacts=folder if folder is not None and folder.is_dir() else None,
            was_interrupted=end.was_interrupted or lifecycle.was_interrupted,
            is_last=lifecycle.is_kept,
            left=removal.left,
            is_unlisted=removal.is_unlisted,
            is_unverified=is_gone and not (removal.is_verified and self._are_events_undone),
            more=self.more,
        )

    def _number_of(self, part: Work) -> int:
        """Return the number of a part's plan, from 1."""
        return part.part.round if len(self._request.plans) > 1 else 1

    async def _run_until(self, *ends: Stage) -> None:
        """Run stages until one of `ends` is next."""
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
        while lifecycle.stage not in ends:
            stage, started_mono_s = lifecycle.stage, time.monotonic()
            self._screen.begin(stage)
            result = await self._run_stage(stage, stages[stage])
            if self._keeper.loss is not None:
                lifecycle.is_lost, lifecycle.is_in_use = True, self._keeper.loss.is_in_use
                if result is StageResult.FAILED and self.failure is None:
                    self._record_failure(self._keeper.loss)
            took_s = self._took_s.get(stage.value, 0.0) + time.monotonic() - started_mono_s
            self._took_s[stage.value] = round(took_s, 1)
            lifecycle.end(stage, result, interrupts=self._interrupts.count)

    async def _run_stage(
        self, stage: Stage, work: Callable[[], Awaitable[StageResult]]
    ) -> StageResult:
        try:
            if stage not in CLUSTER_STAGES:
                return await work()
            async with watched_contact(self._cluster, note=self._say):
                return await work()
        except AiperfError as error:
            return self._record_failure(error)
        except Exception as error:
            # The stack must be removed after any error.
            problem = EnvironmentProblem(f"{stage}: {error_text(error)}")
            problem.__cause__ = error
            return self._record_failure(problem)

    def _record_failure(self, error: AiperfError) -> StageResult:
        if self._keeper.loss is not None:
            # Later failures follow from the loss of the Lease.
            error = self._keeper.loss
        self.failure = self.failure or error
        self._part_failure = self._part_failure or error
        if self._record is not None:
            # The teardown takes a while, and the final message names the first error only.
            self._say(str(error))
        return StageResult.FAILED

    # --- before anything is created --------------------------------------------------------------

    async def _preflight(self) -> StageResult:
        request, numbers = self._request, list(self._parts)
        if not numbers:
            self._say(f"all trials have finished; their results are in {request.folder}")
            self._record = self._home.load(request.stack)
            return StageResult.DECLINED if self._record is None else StageResult.DONE
        if request.is_resumed:
            finding = bring_up.running_shape(request, numbers, self._cluster, self._cli)
            self._running = await self._interrupts.result_of(finding)
        running = [] if self._running is None else [self._running]
        rest = [each for each in numbers if each not in running]
        checking = bring_up.check_shapes(request, rest, self._cluster, say=self._say)
        checked = await self._interrupts.result_of(checking)
        if checked is None:
            return StageResult.INTERRUPTED
        self._checked = checked
        fitting, refused = [*checked.unschedulable_s], checked.refused
        experiment = request.config.experiment
        if refused and experiment is not None and experiment.on_failure == "stop":
            fitting = []
        if not fitting and not running and refused:
            texts = dict.fromkeys(map(str, refused.values()))
            raise EnvironmentProblem("\n".join(texts))
        for number, cause in refused.items():
            named = trial_lists.shape_name(request.shapes, number)
            self._say(f"{named}: its trials count as failed: {cause}")
        left = [*running, *sorted([*fitting, *refused])]
        self._parts = {each: self._parts[each] for each in left}
        return StageResult.DONE

    async def _preview(self) -> StageResult:
        request, folder = self._request, self._request.folder
        assert folder is not None
        await bring_up.refuse_in_use(request, self._cluster, self._me)
        if self._running is not None:
            self._say(f"stack {request.stack} is up and runs these trials; continuing with it")
        elif (result := await self._review()) is not StageResult.DONE:
            return result
        # Errors that can be found before anything is created are raised here.
        record = await records.first_record(request, self._cluster, self._home, self._cli)
        if self._running is None:
            pinning = pin_target(request, self._cluster, say=self._say)
            self._node = await self._interrupts.result_of(pinning)
            if self._node is None:
                return StageResult.INTERRUPTED
        for number, work in self._parts.items():
            measure.prepare(work, is_running=number == self._running)
        self._prepared = msgspec.structs.replace(record, artifacts=str(folder.resolve()))
        return StageResult.DONE

    async def _review(self) -> StageResult:
        """Show what will be created, and ask."""
        previewing = bring_up.preview(self._request, self._cluster, self._cli)
        text = await self._interrupts.result_of(previewing)
        if text is None:
            return StageResult.INTERRUPTED
        self._screen.preview(text)
        if not self._options.yes and output.can_ask():
            agreed = await self._interrupts.result_of(output.ask("Create this stack?"))
            if not agreed:
                return StageResult.INTERRUPTED if agreed is None else StageResult.DECLINED
        return StageResult.DONE

    # --- a part ----------------------------------------------------------------------------------

    async def _up(self) -> StageResult:
        assert self._prepared is not None
        is_change, is_up = self._record is not None, self._number == self._running
        self._running, left_s = None, self._context.left_s
        self._deadline_mono_s = None if left_s is None else time.monotonic() + left_s
        await self._end_measuring()
        earlier = self._home.load(self._request.stack)
        self._record = self._record or self._prepared
        self._home.save(self._record)
        try:
            if not is_up and not is_change and self._record.own:
                await records.remove_unfinished(self._record, self._cluster, self._cli, self._say)
            if not is_up:
                if self._node is None:  # A visit that was up has ended, and its node is known.
                    self._node = await pin_target(
                        self._request, self._cluster, say=self._say, has_pulled=True
                    )
                start = bring_up.Start(
                    plan=self._request.visit_plan(self._number, node=self._node),
                    is_change=is_change,
                    unschedulable_s=self._checked.unschedulable_s.get(self._number, 0.0),
                    deadline_mono_s=self._deadline_mono_s,
                )
                keeper, interrupts = self._keeper, self._interrupts
                is_up = await bring_up.up(
                    self._request, self._cli, start, keeper=keeper, interrupts=interrupts
                )
        except bring_up.StateLocked as error:
            if is_change:
                raise
            self._record = None
            self._home.forget(self._request.stack)
            if earlier is not None:
                self._home.save(earlier)
            self._record_failure(error)
            return StageResult.DECLINED
        finally:
            # The teardown of a partly created stack needs these UIDs too.
            await self._find_own()
        return StageResult.DONE if is_up else StageResult.INTERRUPTED

    async def _find_own(self) -> None:
        if self._record is None:
            return
        try:
            self._record = await records.find_own(self._record, self._cluster, self._cli)
        except Exception as error:
            # With the roots from before `up`, the leak check would miss new objects.
            self._say(f"it is unknown which objects are the stack's own: {error_text(error)}")
            self._record = msgspec.structs.replace(self._record, own=None)
        else:
            self._home.save(self._record)

    async def _measure(self) -> StageResult:
        plan, options = self._request.plans[self._number - 1], self._options.run
        assert self._record is not None
        # The next trial would treat the change of a killed runner's event as the original.
        await self._undo_events(self._record)
        outputs = await self._cli.outputs()
        self._keeper.begin(str(outputs.get("namespace", "")))
        measuring = self._measuring = measure.Measuring(
            self._cluster, outputs, plan, self._context, options, self._keeper
        )
        results = await measuring.follow(deadline_mono_s=self._deadline_mono_s)
        status = measuring.status
        if measuring.failure is not None:
            self._record_failure(measuring.failure)
            self._lifecycle.fail_run()
        if status is not None and status.state == RunState.FAILED:
            self._lifecycle.fail_run()
        if measuring.has_losses:
            self._lifecycle.is_suspect = True
        if results is None and (status is None or not status.results_ready):
            return StageResult.INTERRUPTED if self._interrupts.count else StageResult.FAILED
        return StageResult.DONE

    async def _collect(self) -> StageResult:
        measuring, folder = self._measuring, self._parts[self._number].folder
        assert measuring is not None
        assert self._record is not None
        status = measuring.status
        self._lifecycle.has_only_copy = status is None or not status.uploaded_to
        try:
            result = await self._collection.fetch(measuring, self._record, folder)
        except AiperfError as error:
            self._artifact_error = str(error)
            return StageResult.FAILED
        self._lifecycle.has_only_copy = False
        return result

    async def _save_evidence(self) -> StageResult:
        assert self._record is not None
        return await self._collection.save_evidence(self._record, self._parts[self._number].folder)

    # --- teardown --------------------------------------------------------------------------------

    async def _destroy(self) -> StageResult:
        assert self._record is not None
        await self._end_measuring()
        if self._record.own is None:
            await self._find_own()
        is_lost = self._keeper.loss is not None
        try:
            await records.refuse_used(
                self._record, self._cluster, self._cli, self._me, is_lost=is_lost
            )
        except StackInUse as error:
            if is_lost:  # Otherwise it is reported as the failure.
                self._say(str(error))
            self._record_failure(error)
            return StageResult.DECLINED
        except Exception as error:
            self._say(f"it is unknown whether another process uses the stack: {error_text(error)}")
        try:
            await self._undo_events(self._record)
        except Exception as error:
            self._are_events_undone = False
            self._say(f"it is unknown whether an event must be undone: {error_text(error)}")
        await self._removal.destroy(self._record, self._interrupts)
        return StageResult.DONE

    async def _undo_events(self, record: RunRecord) -> None:
        """Undo an event that was not undone when it ended. Raises EnvironmentProblem if that is
        unknown."""
        config, stack = self._request.config.inference, record.stack
        if config is None or not config.events:
            return
        if record.own is None:
            raise EnvironmentProblem(f"it is unknown which objects belong to stack {stack}")
        finding = partial(find_roots, self._cluster, stack=stack, or_namespace=record.namespace)
        roots = await retried(finding, within_s=RETRY_S, pause_s=POLL_S)
        ours = [each for each in roots if each.uid in record.own]
        await undo_recorded(self._cluster, ours, self._say)

    async def _check(self) -> StageResult:
        assert self._record is not None
        if self._record.own is None and not self._removal.is_destroyed:
            # Pulumi's state still lists the roots.
            await self._find_own()
        await self._removal.check(self._record)
        if not self._are_events_undone:
            stack = self._record.stack
            raise EnvironmentProblem(
                f"it is unknown whether an event of stack {stack} is undone; to undo it: "
                f"aiperf-svc gc {stack}"
            )
        if gpus := max(plan.totals.gpus for plan in self._request.plans):
            # A pod that is ending is listed, and the check has waited for it.
            self._say(f"the pods with {count(gpus, 'GPU')} have ended on their nodes")
        return StageResult.DONE

    async def _end_measuring(self) -> None:
        measuring, self._measuring = self._measuring, None
        if measuring is not None:
            await measuring.close()
