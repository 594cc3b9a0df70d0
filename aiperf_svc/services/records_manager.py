"""The records manager counts every record once, computes the results and serves them.

It appends metric records to columns on disk as they arrive, adds chunk gaps to one histogram, and
keeps whole batches for the lines of requests. When the load has ended, it waits until every
numbered record has arrived or is declared lost. Then it computes the summary and writes the
artifacts.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import numpy as np
import zmq

from aiperf_svc import __version__
from aiperf_svc.adapters.datasets.inputs_copy import copy_inputs
from aiperf_svc.adapters.exports.aiperf_exports import result_of
from aiperf_svc.adapters.host.machine import host_facts
from aiperf_svc.adapters.inference.lm_eval_process import check_lm_eval, measure_lm_eval
from aiperf_svc.adapters.inference.quality_requests import check_gate, measure_quality
from aiperf_svc.adapters.messaging.bus import DOWN, Bus, ask, decode, encode, receive_each
from aiperf_svc.adapters.results_api.run_api import Events, RunnerMessage
from aiperf_svc.adapters.storage import artifacts
from aiperf_svc.adapters.storage.answers_file import write_answers
from aiperf_svc.adapters.storage.column_store import ColumnStore
from aiperf_svc.adapters.storage.jsonl_file import JsonlFile
from aiperf_svc.config.dataset import AGENT_TRACES
from aiperf_svc.core.control.clock_offset import ClockHistory
from aiperf_svc.core.control.control_intervals import acknowledge_interval_s, grant_interval_s
from aiperf_svc.core.events.report import EventReport
from aiperf_svc.core.experiments.early_end import EarlyEndDetector
from aiperf_svc.core.lines.batches import line_count
from aiperf_svc.core.lines.renderer import LineRenderer, RequestStreams
from aiperf_svc.core.load.target_addresses import add_up
from aiperf_svc.core.records.accounts import WorkerAccount, account_of_live
from aiperf_svc.core.records.arrived_records import ArrivedRecords, RecordLedger, count_arrived
from aiperf_svc.core.results.distributions import network_times
from aiperf_svc.core.results.inference_result import DatasetFacts, InferenceResult, RunLayout
from aiperf_svc.core.results.summarise import summarise
from aiperf_svc.core.results.summary import EarlyEnd, FinishedRun, Summary, WorkerRun
from aiperf_svc.core.results.telemetry import with_telemetry
from aiperf_svc.core.scaling.report import ScalingReport
from aiperf_svc.core.stats.histogram import Histogram
from aiperf_svc.core.stats.load_window import PhaseTimes
from aiperf_svc.core.telemetry.client_series import ClientSeries
from aiperf_svc.core.verdict.health_log import HealthLog
from aiperf_svc.domain.errors import AiperfError, EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.metric_formulas import Columns
from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.protocol.messages import AnyMessage
from aiperf_svc.protocol.messages.dataset import DatasetShape, DatasetShapeRequested
from aiperf_svc.protocol.messages.events import (
    Heartbeat,
    Member,
    RecordsAcknowledged,
    RosterPublished,
    RunStatePublished,
)
from aiperf_svc.protocol.messages.records import ErrorSample, MetricBatch
from aiperf_svc.protocol.messages.reports import (
    AddressUse,
    HistogramDelta,
    PhaseReport,
    WorkerCounts,
)
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.records import METRIC_DTYPE
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import every, is_set_within, mono_ns, wall_ns
from aiperf_svc.services.context import RunContext
from aiperf_svc.services.results_service import ResultsService
from aiperf_svc.services.run_progress import RunProgress
from aiperf_svc.services.telemetry_reader import TelemetryReader

PROGRESS_S = 0.5
INPUTS_SHARE = 4
"""inputs.json may take at most 1/n of the pod's storage, to leave room for the results."""
_ANY = 2**62
MISSING_S = 15.0
"""Missing records are declared lost after this many seconds of draining in which no record arrived
and no record processor read a batch. A long response consists of many batches and one record."""

SCALING_NS = 10_000_000_000
"""Longest time to wait after the load for the runner's report on replicas."""
EVENTS_S = 20.0
"""Longest time to wait after the load for the runner's reports on events."""
SHAPE_S = 10.0
"""Longest time to wait for the shape of the dataset."""


class RecordsManager(ResultsService[RunProgress]):
    """Collects the records of a run, summarises them, and writes and serves the results."""

    def __init__(self, context: RunContext, bus: Bus) -> None:
        super().__init__(context, bus)
        self._records = bus.bind(zmq.PULL, Port.RECORDS)
        self._ledger = RecordLedger()
        self._store = ColumnStore(context.state / f"records-{context.run_id}")
        self._streams: tuple[bytes, bytes] | None = None
        self._renderer = LineRenderer(
            run_id=context.run_id, has_warmup=context.inference.load.has_warmup
        )
        self._jsonl = JsonlFile(
            context.artifacts / "profile_export.jsonl",
            self._renderer,
            limit=context.inference.artifacts.jsonl_limit,
        )
        self._gaps = Histogram()
        self._errors: dict[tuple[Phase, int, int, int], ErrorSample] = {}
        self._takes_lines = True
        self._lost_records: dict[str, list[tuple[int, int]]] = {}
        self._health = HealthLog()
        self._counts: dict[str, tuple[WorkerCounts, ...]] = {}
        self._clocks: dict[str, ClockHistory] = {}
        self._address_uses: dict[str, tuple[AddressUse, ...]] = {}
        self._network: dict[str, tuple[tuple[HistogramDelta, ...], ...]] = {}
        self._phases: dict[Phase, PhaseReport] = {}
        self._dataset: DatasetFacts | None = None
        self._drained: set[str] = set()
        self._batches_read: dict[str, int] = {}
        """Number of batches that each record processor has read."""
        self._scaling: ScalingReport | None = None
        self._scaling_arrived = asyncio.Event()
        self._events: tuple[EventReport, ...] = ()
        self._events_reported = asyncio.Event()
        self._telemetry = TelemetryReader(context.inference, namespace=context.namespace)
        self._client_series = ClientSeries()
        search = self.experiment.search if self.experiment is not None else None
        self._detector = EarlyEndDetector(context.inference, search) if search else None
        self._early_end: EarlyEnd | None = None
        self.progress = RunProgress(context.inference, context.topology)
        self.work[RunState.CONFIGURING] = self._configure

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [
            receive_each(self._records, self._handle_batch),
            every(acknowledge_interval_s(self.context.topology.workers), self._acknowledge),
            every(PROGRESS_S, self._publish_progress),
            self._telemetry.run(),
        ]

    async def _configure(self) -> None:
        check_lm_eval(self.context.inference)
        await asyncio.to_thread(check_gate, self.context.inference)
        await self._telemetry.started()

    # --- arriving records ------------------------------------------------------------------------

    def _handle_batch(self, message: AnyMessage, frame: bytes) -> None:
        if message.run_id != self.context.run_id or not isinstance(message, MetricBatch):
            return
        for span in message.lost:
            if self._ledger.accept(span):
                self._lost_records.setdefault(span.worker, []).append((span.first, span.last))
        accepted = [span for span in message.spans if self._ledger.accept(span)]
        if len(accepted) != len(message.spans):
            if accepted:
                # A processor sends possible repeats one by one, so this is an error.
                self.fail("a batch of records was partly a repeat")
            return
        rows = np.frombuffer(message.rows, dtype=METRIC_DTYPE)
        self._store.append(rows)
        if message.details is not None and self._takes_lines:
            self._jsonl.append(frame, line_count(rows))
        for delta in message.histograms:
            if delta.phase is Phase.PROFILING:
                self._gaps.merge(delta)
        for sample in message.errors:
            self._add_error(sample)
        self.progress.add(rows, wall_ns())
        if self._detector is not None:
            self._detector.add(rows)
        self._last_arrival_mono_ns = mono_ns()
        self._arrived.set()

    def _add_error(self, sample: ErrorSample) -> None:
        key = (sample.phase, sample.kind, sample.status, sample.target)
        known = self._errors.get(key)
        if known is not None:
            sample = msgspec.structs.replace(known, count=known.count + sample.count)
        self._errors[key] = sample

    def on_heartbeat(self, beat: Heartbeat) -> None:
        now = wall_ns()
        self._client_series.add(beat.sender, beat.service, beat.vitals, at_wall_ns=now)
        if self.state is RunState.PROFILING:
            self._health.add(beat.sender, beat.service, beat.vitals, at_wall_ns=now)
        elif self.state is RunState.CONFIGURING:
            self.progress.set_configuring(beat.sender, beat.progress)
        match beat.service:
            case Service.WORKER:
                if beat.target_addresses:
                    self._address_uses[beat.sender] = beat.target_addresses
                if beat.network:
                    self._network[beat.sender] = beat.network
                if beat.counts:
                    self._counts[beat.sender] = beat.counts
                if self.state in (RunState.PROFILING, RunState.DRAINING):
                    self._clocks.setdefault(beat.sender, ClockHistory()).add(beat.clock)
                self.progress.set_counts(beat.sender, beat.counts)
                if beat.reached in (RunState.DRAINING, RunState.PROCESSING):
                    self._drained.add(beat.sender)
                    self._arrived.set()
            case Service.RECORD_PROCESSOR:
                if beat.batches_read > self._batches_read.get(beat.sender, 0):
                    self._batches_read[beat.sender] = beat.batches_read
                    self._last_arrival_mono_ns = mono_ns()
            case Service.TIMING_MANAGER if beat.phases:
                self._phases = {report.phase: report for report in beat.phases}
                self.progress.set_phases(beat.phases)
                if self._detector is not None and Phase.PROFILING in self._phases:
                    self._detector.begin(self._phases[Phase.PROFILING].start_wall_ns)
            case Service.DATASET_MANAGER if beat.dataset is not None:
                self._dataset = DatasetFacts.of(beat.dataset)
                self.progress.set_dataset(self._dataset)

    def on_roster(self, roster: RosterPublished) -> None:
        for member in roster.members:
            if member.lost and member.service is Service.WORKER:
                self._ledger.fence(member.id, member.epoch)
        self.progress.set_roster(roster)
        self._arrived.set()

    def on_state(self, state: RunStatePublished) -> None:
        self.progress.set_state(state)
        if state.state is RunState.PROFILING:
            self._telemetry.read_now()

    async def _acknowledge(self) -> None:
        highest = self._ledger.highest()
        if highest:
            await self.publish(DOWN, RecordsAcknowledged(*self.header, highest=highest))

    async def _publish_progress(self) -> None:
        self.progress.server = self._telemetry.server_load()
        self.progress.client = self._client_series.load(wall_ns())
        if self.state in (RunState.PROFILING, RunState.DRAINING):
            self._sample_client()
        self.progress.set_errors(self._errors.values())
        self.progress.tick(wall_ns())
        self._look_for_early_end()
        await self.repeat_requests()

    def _sample_client(self, *, is_last: bool = False) -> None:
        counts = (c for each in self._counts.values() for c in each)
        ended = self.progress.ended(Phase.PROFILING)
        self._client_series.sample(
            wall_ns(),
            in_flight=sum(c.in_flight for c in counts if c.phase is Phase.PROFILING),
            completed=int(ended[Outcome.COMPLETED]),
            errored=int(ended[Outcome.ERRORED]),
            is_last=is_last,
        )

    def _look_for_early_end(self) -> None:
        if self._detector is None or self._early_end or self.state is not RunState.PROFILING:
            return
        self._early_end = self._detector.early_end()
        if self._early_end is not None:
            self.log.info("the load can end early: %s", self._early_end.text)
            self.beat()

    def can_stop_early(self) -> bool:
        return self._early_end is not None

    # --- the end ---------------------------------------------------------------------------------

    async def _drain(self) -> None:
        self._last_arrival_mono_ns = mono_ns()
        while True:
            missing = self._missing()
            if not missing:
                return
            if self._silent_s > MISSING_S:
                self.log.error("records that did not arrive: %s", missing)
                return
            # Checking the records of every worker costs as much as checking its credits.
            await self._wait_for_arrival(then_s=grant_interval_s(self.context.topology.workers))

    def _workers(self) -> list[Member]:
        members = self.roster.members if self.roster is not None else ()
        return [m for m in members if m.service is Service.WORKER]

    def _missing(self) -> dict[str, int]:
        """Return the number of missing records of each live worker; -1 if it has not reported."""
        missing = {}
        for worker in self._workers():
            if worker.lost:
                continue
            if worker.id not in self._drained:
                missing[worker.id] = -1
                continue
            last = max((c.last_seq for c in self._counts.get(worker.id, ())), default=0)
            dropped = max((c.records_dropped for c in self._counts.get(worker.id, ())), default=0)
            count = self._ledger.missing(worker.id, last) - dropped
            if count > 0:
                missing[worker.id] = count
        return missing

    async def _process(self) -> None:
        # After a failure, batches may still arrive, so the lines end with the columns.
        self._takes_lines = False
        await self._telemetry.stop()
        self._sample_client(is_last=True)
        await self._fetch_streams()
        await asyncio.gather(self._await_scaling(), self._await_events())
        columns = self._store.open()
        if self._store.error:
            self.log.warning("%s", self._store.error)
        run = await asyncio.to_thread(self._finished_run, columns)
        run = await self._with_quality(run)
        summary = await asyncio.to_thread(summarise, columns, self._gaps, run)
        try:
            summary = await asyncio.to_thread(
                with_telemetry, summary, self._telemetry.logs, self._client_series.log
            )
        except Exception as error:
            # Bad data from other servers must not cost the results of the load.
            self.log.exception("the results are without the metrics of servers and GPUs")
            problem = one_line(f"{type(error).__name__}: {error}")
            self.progress.artifact_error = (
                f"the results are without the metrics of servers and GPUs: {problem}"
            )
        result = self.result = result_of(summary)
        self.progress.verdict = summary.verdict.verdict.value
        # Before the other files, which are more important if the disk is too small for all.
        await asyncio.to_thread(self._jsonl.write)
        await self._copy_inputs()
        try:
            await asyncio.to_thread(self._write, summary, result, columns)
        except EnvironmentProblem as error:
            self.log.error("%s", error)
            self.progress.artifact_error = str(error)

    def handle_message(self, message: RunnerMessage) -> None:
        match message:
            case ScalingReport():
                self._scaling = message
                self._scaling_arrived.set()
            case Events(start_wall_ns, reports):
                profiling = self._phases.get(Phase.PROFILING)
                if profiling is None or profiling.start_wall_ns != start_wall_ns:
                    return
                self._events, wanted = reports, len(self.context.inference.events)
                if len(reports) == wanted and all(report.is_over for report in reports):
                    self._events_reported.set()
            case _:
                super().handle_message(message)

    async def _await_scaling(self) -> None:
        """Wait for a report that covers the load. A living runner sends one each second."""
        if self.context.inference.scaling is None or self.state is not RunState.PROCESSING:
            return
        now_wall_ns, deadline_mono_ns = wall_ns(), mono_ns() + SCALING_NS
        while self._scaling is None or self._scaling.until_wall_ns < now_wall_ns:
            self._scaling_arrived.clear()
            left_s = (deadline_mono_ns - mono_ns()) / 1e9
            if left_s <= 0 or not await is_set_within(self._scaling_arrived, left_s):
                self.log.warning("scaling: the runner has not reported the end of the load")
                return

    async def _await_events(self) -> None:
        """Wait for the last report on the config's events. The runner sends it after the load
        unless it has ended."""
        if self.context.inference.events and self.state is RunState.PROCESSING:
            await is_set_within(self._events_reported, EVENTS_S)

    async def _with_quality(self, run: FinishedRun) -> FinishedRun:
        """Ask the gate's questions and write the answers, unless the run failed or was stopped."""
        if run.config.quality is None or run.failure or run.was_cancelled or run.early_end:
            return run
        try:
            if run.config.quality.lm_eval is not None:
                quality, answers = await measure_lm_eval(run.config)
            else:
                quality, answers = await measure_quality(run.config, run.run_id)
            await asyncio.to_thread(write_answers, self.context.artifacts, answers)
        except AiperfError as error:
            return msgspec.structs.replace(run, failure=f"quality: {error}")
        return msgspec.structs.replace(run, quality=quality)

    async def _fetch_streams(self) -> None:
        """Fetch the stream of each request in session trees, for the requests' ids."""
        is_tree = self.context.inference.dataset.kind in AGENT_TRACES
        if not is_tree or Phase.PROFILING not in self._phases:
            return
        sock = self.bus.connect(zmq.REQ, Port.DATASET_FRONT)
        try:
            async with asyncio.timeout(SHAPE_S):
                shape = decode(await ask(sock, encode(DatasetShapeRequested(*self.header))))
        except TimeoutError:
            self.log.warning(
                "the dataset manager has not sent its shape in %g s: profile_export.jsonl has the "
                "ids of session trees, and not those of their streams",
                SHAPE_S,
            )
            return
        finally:
            sock.close()
        assert isinstance(shape, DatasetShape)
        self._streams = shape.turns, shape.streams
        self._renderer.streams = RequestStreams(*self._streams)

    async def _copy_inputs(self) -> None:
        """Write the prompts to the results if the dataset manager cannot access that folder."""
        path = self.context.artifacts / "inputs.json"
        if not self.context.addresses.is_tcp or await asyncio.to_thread(path.exists):
            return
        limit_bytes = self.context.config.deployment.results.storage // INPUTS_SHARE
        sock = self.bus.connect(zmq.REQ, Port.DATASET_FRONT)
        try:
            await copy_inputs(sock, self.header, path, limit_bytes=limit_bytes)
        except EnvironmentProblem as error:
            self.log.warning("%s", error)
        finally:
            sock.close()

    def _write(self, summary: Summary, result: InferenceResult, columns: Columns) -> None:
        if self._jsonl.error:
            self.progress.artifact_error = self._jsonl.error
        folder, known = self.context.artifacts, (self._jsonl.entry(),)
        manifest = artifacts.write_all(folder, summary, columns, result=result, known=known)
        self.upload(manifest, summary.first_start_wall_ns)

    def _finished_run(self, columns: Columns) -> FinishedRun:
        has_trees = self.context.inference.dataset.kind in AGENT_TRACES
        arrived = count_arrived(columns, has_trees=has_trees)
        profiling = self._phases.get(Phase.PROFILING)
        lost = [m.id for m in (self.roster.members if self.roster is not None else ()) if m.lost]
        return FinishedRun(
            run_id=self.context.run_id,
            config=self.context.inference,
            version=__version__,
            profiling=_times(profiling),
            workers=tuple(
                WorkerRun(
                    rank=worker.rank,
                    account=self._account(worker, Phase.PROFILING, arrived),
                    clocks=self._clocks[worker.id].estimates
                    if worker.id in self._clocks
                    else (worker.clock,),
                )
                for worker in self._workers()
            ),
            warmup=tuple(self._account(w, Phase.WARMUP, arrived) for w in self._workers()),
            credits_granted=profiling.granted if profiling is not None else None,
            scheduled_rate=profiling.scheduled_rate if profiling is not None else 0.0,
            lost_services=tuple(lost),
            health=self._health.report(),
            errors=tuple(self._errors.values()),
            failure=self.progress.failure,
            was_cancelled=self.is_cancelling,
            early_end=self._early_end if self.ends_early else None,
            is_complete=not self.is_cancelling and not self.ends_early,
            cli_command=self.context.run.cli_command,
            streams=self._streams,
            host=host_facts(),
            topology=RunLayout(
                layout=self.context.topology.layout,
                workers=self.context.topology.workers,
                record_processors=self.context.topology.record_processors,
                raw_route=self.context.topology.raw_route,
                dataset=self._dataset,
            ),
            target_addresses=add_up(use for uses in self._address_uses.values() for use in uses),
            scaling=self._scaling,
            events=self._events,
            hooks=tuple(call for each in self._phases.values() for call in each.hooks),
            network=network_times(self._network.values()),
        )

    def _account(self, worker: Member, phase: Phase, arrived: ArrivedRecords) -> WorkerAccount:
        counts = next(
            (c for c in self._counts.get(worker.id, ()) if c.phase is phase), WorkerCounts(phase)
        )
        records = arrived.sent.get((worker.rank, phase), 0)
        if not worker.lost:
            before = self._last_seq(worker, Phase.WARMUP) if phase is Phase.PROFILING else 0
            lost = self._lost_until(worker, max(before, self._last_seq(worker, phase)))
            return account_of_live(
                worker.id,
                counts,
                records=records,
                whole=arrived.whole.get((worker.rank, phase), 0),
                lost=lost - self._lost_until(worker, before),
            )
        report = self._phases.get(phase)
        granted = report.granted_to_lost.get(worker.id, 0) if report is not None else 0
        outcomes = arrived.outcomes.get((worker.rank, phase), {})
        counts = msgspec.structs.replace(
            counts,
            granted=max(granted, counts.granted),
            completed=outcomes.get(Outcome.COMPLETED, 0),
            errored=outcomes.get(Outcome.ERRORED, 0),
            cancelled=outcomes.get(Outcome.CANCELLED, 0),
            abandoned=outcomes.get(Outcome.ABANDONED, 0),
        )
        declared = self._declared_lost(worker, _ANY) if phase is Phase.PROFILING else 0
        return WorkerAccount(
            worker=worker.id, counts=counts, records=records, records_lost=declared, is_lost=True
        )

    def _last_seq(self, worker: Member, phase: Phase) -> int:
        """Return the number of a worker's last request in a phase; 0 if it had none."""
        counts = self._counts.get(worker.id, ())
        return max((c.last_seq for c in counts if c.phase is phase), default=0)

    def _lost_until(self, worker: Member, last: int) -> int:
        """Return how many of a worker's records up to this one are lost."""
        return self._ledger.missing(worker.id, last) + self._declared_lost(worker, last)

    def _declared_lost(self, worker: Member, last: int) -> int:
        """Return how many of a worker's records the processors have declared lost."""
        spans = self._lost_records.get(worker.id, ())
        return sum(min(end, last) - first + 1 for first, end in spans if first <= last)

    @property
    def _has_records(self) -> bool:
        return self._store.count > 0

    async def _end(self) -> None:
        await self._telemetry.stop()
        await super()._end()

    async def close(self) -> None:
        await super().close()
        self._store.remove()
        self._jsonl.close()


def _times(report: PhaseReport | None) -> PhaseTimes:
    if report is None:
        return PhaseTimes(start_wall_ns=0)
    return PhaseTimes(
        start_wall_ns=report.start_wall_ns,
        stop_wall_ns=report.stop_wall_ns,
        ramp_ns=report.ramp_ns,
    )
