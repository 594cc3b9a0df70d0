"""Carries out the stages of a stack's run, in the order that its `StackLifecycle` decides."""

import time
from collections.abc import Awaitable, Callable

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.ownership import LeaseKeeper
from aiperf_svc.adapters.cluster.teardown.event_undo import undo_recorded
from aiperf_svc.adapters.cluster.teardown.leaks import find_roots
from aiperf_svc.adapters.cluster.watching.contact import watched_contact
from aiperf_svc.adapters.pulumi.cli import PulumiCli
from aiperf_svc.adapters.pulumi.state_home import RunRecord, StateHome
from aiperf_svc.adapters.storage.resuming import Resumed
from aiperf_svc.adapters.terminal import output
from aiperf_svc.core.cluster.lease import Holder
from aiperf_svc.core.cluster.stack_stages import StackLifecycle, Stage, StageResult
from aiperf_svc.domain.errors import AiperfError, EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.number_text import count
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner.options import StackOptions
from aiperf_svc.runner.outcome import NOTHING_MADE, RunEnd, RunOutcome
from aiperf_svc.runner.parts import PartContext
from aiperf_svc.runner.stack import bring_up, collection, measure
from aiperf_svc.runner.stack.collection import Collection
from aiperf_svc.runner.stack.discovery import pin_target
from aiperf_svc.runner.stack.preflight import CheckedShapes, check_shapes
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.runner.stack.teardown import StackRemoval
from aiperf_svc.workloads.previews import summary, trial_lists

CLUSTER_STAGES = (Stage.UP, Stage.COLLECT, Stage.EVIDENCE, Stage.DESTROY, Stage.CHECK)
"""Stages that report a silent API server. `RunWatch` reports it during the run, and before a stack
exists the silence ends the command."""
PER_SHAPE_STAGES = (Stage.UP, Stage.RUN, Stage.COLLECT, Stage.EVIDENCE)
"""Stages that are repeated for each shape."""


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
        """`me` is this process, as the Lease of the stack names it."""
        self._request, self._options, self._home = request, options, home
        self._cluster, self._cli, self._context = cluster, cli, context
        self._interrupts, screen = context.interrupts, context.screen
        experiment = request.config.experiment
        self._lifecycle = StackLifecycle(
            keep=options.keep,
            keep_on_failure=options.keep_on_failure,
            stops_on_failure=experiment is not None and experiment.on_failure == "stop",
            shapes=collection.shapes_left(request),
        )
        self._screen, self._say = screen, screen.say
        self._me = me
        self._keeper = LeaseKeeper(cluster, request.stack, me, screen.say)
        self._failure: AiperfError | None = None
        """The first error."""
        self._shape_failure: AiperfError | None = None
        """The first error in the current shape."""
        self._checked = CheckedShapes()
        self._collection = Collection(request, cluster, cli, self._interrupts, screen.say)
        self._removal = StackRemoval(home, cluster, cli, screen.say)
        self._running_shape: int | None = None
        """The shape whose trials a killed runner has left running."""
        self._node = ""
        """The node of the target in all visits of an experiment in blocks; empty: any."""
        self._prepared: RunRecord | None = None
        self._record: RunRecord | None = None
        """Set before the first object may be created."""
        self._measuring: measure.Measuring | None = None
        self._deadline_mono_s: float | None = None
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
                if self._keeper.loss is not None:
                    lifecycle.lose()
                    if result is StageResult.FAILED and self._failure is None:
                        self._failed(self._keeper.loss)
                if stage is Stage.COLLECT and result is StageResult.FAILED:
                    lifecycle.has_only_copy = not self._is_uploaded
                took_s = self._took_s.get(stage.value, 0.0) + time.monotonic() - started_mono_s
                self._took_s[stage.value] = round(took_s, 1)
                lifecycle.end(stage, result, interrupts=self._interrupts.count)
                if stage in PER_SHAPE_STAGES and lifecycle.stage not in PER_SHAPE_STAGES[1:]:
                    self._end_shape(shape)
        finally:
            await self._end_measuring()
            await self._keeper.close(is_kept=lifecycle.is_kept)
            if self._record is not None or self._collection.has_all_trials:
                await self._collection.write_trials()
            if self._measuring is None:
                self._collection.remove_if_empty()
        if self._record is None:
            if self._failure is not None:
                raise self._failure
            return self._outcome()
        self._say(summary.took(self._took_s))
        if lifecycle.is_kept and lifecycle.has_only_copy:
            self._say("The results could not be fetched. The stack holds the only copy of them.")
        if lifecycle.is_kept:
            self._say(
                summary.kept(
                    self._request.plan,
                    namespace=self._record.namespace,
                    expires=self._record.expires,
                )
            )
        return self._outcome()

    async def _end_of(
        self, stage: Stage, work: Callable[[], Awaitable[StageResult]]
    ) -> StageResult:
        try:
            if stage not in CLUSTER_STAGES:
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
        if self._keeper.loss is not None:
            # What fails after that follows from it.
            error = self._keeper.loss
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
            found = await self._interrupts.result_of(finding)
            running = [] if found is None else [found]
            self._running_shape = found
        rest = [each for each in lifecycle.shapes if each not in running]
        checked = self._checked = await check_shapes(
            self._request, rest, self._cluster, self._interrupts, say=self._say
        )
        if self._interrupts.count:
            return StageResult.INTERRUPTED
        fitting, refused = checked.fitting, checked.refused
        if refused and lifecycle.stops_on_failure:
            fitting = []
        if not fitting and not running and refused:
            texts = dict.fromkeys(map(str, refused.values()))
            raise EnvironmentProblem("\n".join(texts))
        for number, cause in refused.items():
            named = trial_lists.shape_name(self._request.shapes, number)
            self._say(f"{named}: its trials count as failed: {cause}")
        lifecycle.shapes = [*running, *fitting]
        return StageResult.DONE

    def _find_rest(self, resumed: Resumed) -> StageResult:
        """Look for what is left of a stack whose trials have all ended."""
        self._say(f"all trials have finished; their results are in {resumed.folder}")
        self._collection.open(resumed.folder)
        self._record = self._home.load(self._request.stack)
        return StageResult.DECLINED if self._record is None else StageResult.DONE

    async def _preview(self) -> StageResult:
        request = self._request
        await bring_up.refuse_in_use(request, self._cluster, self._me)
        if self._running_shape is not None:
            self._say(f"stack {request.stack} is up and runs these trials; continuing with it")
        elif (result := await self._review()) is not StageResult.DONE:
            return result
        # Errors that can be found before anything is made are raised here.
        record = await bring_up.first_record(request, self._cluster, self._home, self._cli)
        is_running = self._running_shape is not None
        if not is_running:
            pinning = pin_target(request, self._cluster, say=self._say)
            node = await self._interrupts.result_of(pinning)
            if node is None:
                return StageResult.INTERRUPTED
            self._node = node
        folder = collection.prepare(request, is_running=is_running)
        self._prepared = msgspec.structs.replace(record, artifacts=str(folder.resolve()))
        self._collection.open(folder)
        for number, error in self._checked.refused.items():
            self._collection.fail_trials(number, error)
        return StageResult.DONE

    async def _review(self) -> StageResult:
        """Show what will be created, and ask."""
        text = await self._interrupts.result_of(
            bring_up.preview(self._request, self._cluster, self._cli)
        )
        if text is None:
            return StageResult.INTERRUPTED
        self._screen.preview(text)
        if not self._options.yes and output.can_ask():
            agreed = await self._interrupts.result_of(output.ask("Create this stack?"))
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
        elif self._context.left_s is not None:
            self._deadline_mono_s = time.monotonic() + self._context.left_s
        earlier = self._home.load(self._request.stack)
        self._record = self._record or self._prepared
        self._home.save(self._record)
        trials, run = self._collection.trials, self._request.run
        if trials is not None:
            self._say(trial_lists.shape_name(self._request.shapes, shape))
            run = trials.run_values(run)
        try:
            if not is_up:
                start = bring_up.Start(
                    plan=self._request.visit_plan(shape, run, node=self._node),
                    is_change=is_change,
                    unschedulable_s=self._checked.unschedulable_s.get(shape, 0.0),
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
            self._say(f"the objects of the stack are known by their label only: {error}")
            self._record = msgspec.structs.replace(self._record, own=None)
        self._home.save(self._record)

    async def _measure(self) -> StageResult:
        outputs = await self._cli.outputs()
        self._keeper.begin(str(outputs.get("namespace", "")))
        self._measuring = measure.Measuring(
            self._cluster,
            outputs,
            self._request.plans[self._lifecycle.shape - 1],
            self._context,
            self._options.run,
            self._keeper,
        )
        summary = await self._measuring.follow(deadline_mono_s=self._deadline_mono_s)
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
        assert self._record is not None
        return await self._collection.fetch(self._measuring, self._record, self._lifecycle.shape)

    async def _save_evidence(self) -> StageResult:
        assert self._record is not None
        return await self._collection.save_evidence(self._record, self._lifecycle.shape)

    def _end_shape(self, shape: int) -> None:
        """Record the outcomes of the trials of an ended shape."""
        error, self._shape_failure = self._shape_failure, None
        measuring = self._measuring
        is_stopped = self._lifecycle.was_interrupted or (measuring and measuring.is_out_of_time)
        if error is not None and not is_stopped:
            self._collection.fail_trials(shape, error)

    # --- the way down ----------------------------------------------------------------------------

    async def _destroy(self) -> StageResult:
        assert self._record is not None
        await self._end_measuring()
        await self._undo_events(self._record)
        await self._removal.destroy(self._record, self._interrupts)
        return StageResult.DONE

    async def _undo_events(self, record: RunRecord) -> None:
        """Undo what an event has left, if it could not be undone when it ended."""
        config = self._request.config.inference
        if config is None or not config.events:
            return
        try:
            roots = await find_roots(
                self._cluster, stack=record.stack, or_namespace=record.namespace
            )
            ours = [each for each in roots if each.uid in (record.own or ())]
            await undo_recorded(self._cluster, ours, self._say)
        except AiperfError as error:
            self._say(f"whether an event is left to be undone is unknown: {error}")

    async def _check(self) -> StageResult:
        assert self._record is not None
        await self._removal.check(self._record)
        if gpus := max(plan.totals.gpus for plan in self._request.plans):
            # A pod that is ending is listed, and the check has waited for it.
            self._say(f"the pods with {count(gpus, 'GPU')} have ended on their nodes")
        return StageResult.DONE

    async def _end_measuring(self) -> None:
        if self._measuring is not None:
            await self._measuring.close()

    @property
    def _is_uploaded(self) -> bool:
        status = self._measuring.status if self._measuring else None
        return status is not None and bool(status.uploaded_to)

    def _outcome(self) -> RunOutcome:
        measuring, collection, removal = self._measuring, self._collection, self._removal
        lifecycle, is_made = self._lifecycle, self._record is not None
        is_unmade = not (is_made or collection.has_all_trials)
        cancelled = (RunState.CANCELLED, NOTHING_MADE, ExitCode.BENCHMARK_FAILED)
        return RunEnd(
            run_id=self._request.plan.identity.run_id,
            known=cancelled if is_unmade else None,
            is_whole=collection.has_all_trials if collection.results is not None else None,
            status=measuring.status if measuring else None,
            error=self._failure,
            results=collection.results or (measuring.results if measuring else None),
            artifacts=collection.folder,
            artifact_error=collection.error,
            uploaded_to=collection.uploaded_to,
            was_interrupted=lifecycle.was_interrupted or is_unmade,
            left=removal.left,
            is_unlisted=removal.is_unlisted,
            is_unverified=is_made and not lifecycle.is_kept and not removal.is_verified,
            more={
                "stack": self._request.stack,
                "namespace": self._record.namespace if self._record else None,
                "kept": lifecycle.is_kept,
                "left": list(removal.left),
                "not_checked": list(removal.not_checked),
                "took_s": self._took_s,
            },
        ).outcome()
