"""Computes the live status of a run: counts, rates and approximate percentiles of the last seconds.

The results contain none of this. It is computed from heartbeats and the latest records.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from time import monotonic_ns, time_ns
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from aiperf_svc.adapters.exports.inference_file import dataset_json
from aiperf_svc.adapters.results_api.status import LiveObjective, Status
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.control.control_intervals import batch_interval_s
from aiperf_svc.core.results.inference_result import DatasetFacts
from aiperf_svc.core.results.slo_results import limit_of
from aiperf_svc.core.telemetry.series import ServerLoad
from aiperf_svc.domain.finish_reasons import FinishReason, named_reasons
from aiperf_svc.domain.metric_catalog import CATALOG
from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.plan.topology import Topology
from aiperf_svc.protocol.messages.events import RunStatePublished
from aiperf_svc.protocol.messages.records import ErrorSample
from aiperf_svc.protocol.messages.reports import PhaseReport, WorkerCounts
from aiperf_svc.protocol.records import Flag, Rows
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.services.base_progress import BaseProgress

RECENT_RECORDS = 20_000
RATE_WINDOW_NS = 5_000_000_000
RATE_BIN_NS = 100_000_000
RECORD_DELAY_NS = 500_000_000
"""Time until the record of an ended request arrives, in addition to the time over which records are
gathered. The rate is computed for the time before it."""

Times = NDArray[np.int64]


class _Latencies(NamedTuple):
    """Latencies of completed requests, in ns; negative if there was no token."""

    ttft_ns: Times
    latency_ns: Times
    lag_ns: Times
    """From due time to start; never negative."""


class RunProgress(BaseProgress):
    def __init__(self, config: BenchmarkConfig, topology: Topology) -> None:
        super().__init__()
        self._config = config
        self._counts: dict[str, dict[Phase, WorkerCounts]] = {}
        self._dataset = msgspec.Raw(b"{}")
        self._configuring: dict[str, str] = {}
        """Description of slow configuration work, by service."""
        self._recent: deque[_Latencies] = deque()
        """Latencies of the completed requests of the profiling phase."""
        self._recent_count = 0
        self._finish_reasons = np.zeros(len(FinishReason), dtype=np.int64)
        self._outcomes = {phase: np.zeros(len(Outcome), dtype=np.int64) for phase in Phase}
        self._ends: Counter[int] = Counter()
        """Completed requests of the current phase by end time, in bins."""
        self._begin_wall_ns = 0
        """Start of the current phase; 0 if it is not known yet."""
        self._rate = 0.0
        self._delay_ns = RECORD_DELAY_NS + round(batch_interval_s(topology.workers) * 1e9)
        self._main_error = ""
        self._output_tokens = 0
        self.server = ServerLoad()
        """Load that the servers report."""

    # --- inputs ----------------------------------------------------------------------------------

    def add(self, rows: Rows, now_wall_ns: int) -> None:
        is_profiling = rows["phase"] == int(Phase.PROFILING)
        for phase, is_of_phase in ((Phase.WARMUP, ~is_profiling), (Phase.PROFILING, is_profiling)):
            codes = rows["outcome"][is_of_phase]
            self._outcomes[phase] += np.bincount(codes, minlength=len(Outcome))
        codes = rows["finish_reason"][is_profiling]
        self._finish_reasons += np.bincount(codes, minlength=len(FinishReason))
        is_completed = rows["outcome"] == int(Outcome.COMPLETED)
        ends = rows["end_wall_ns"][is_completed & (rows["phase"] == int(self._phase))]
        # Clocks of machines may differ by more, and records may arrive later.
        ends = np.clip(ends, now_wall_ns - self._delay_ns, now_wall_ns)
        first = (now_wall_ns - self._delay_ns) // RATE_BIN_NS
        counts = np.bincount(ends // RATE_BIN_NS - first)
        self._ends.update(dict(enumerate(counts.tolist(), first)))
        is_good = is_profiling & is_completed
        self._output_tokens += int(np.maximum(0, rows["output_tokens"][is_good]).sum())
        # As in the results, latencies exclude clients that may leave early.
        is_good &= (rows["flags"] & np.uint16(Flag.ABANDONS)) == 0
        # Copy only columns, and only of the latest rows: copying whole rows would cost more than
        # everything else.
        starts = rows["start_wall_ns"][is_good][-RECENT_RECORDS:]
        if not len(starts):
            return
        ttft, latency = (
            rows[until][is_good][-RECENT_RECORDS:] - starts
            for until in ("first_token_wall_ns", "last_token_wall_ns")
        )
        lag = np.maximum(0, starts - rows["due_wall_ns"][is_good][-RECENT_RECORDS:])
        self._recent.append(_Latencies(ttft, latency, lag))
        self._recent_count += len(starts)
        while self._recent_count - len(self._recent[0].ttft_ns) > RECENT_RECORDS:
            self._recent_count -= len(self._recent.popleft().ttft_ns)

    def set_counts(self, worker: str, counts: tuple[WorkerCounts, ...]) -> None:
        if counts:
            self._counts[worker] = {c.phase: c for c in counts}

    def set_dataset(self, dataset: DatasetFacts) -> None:
        """Set the report of the dataset manager."""
        self._dataset = msgspec.Raw(dataset_json(dataset))
        self._changes.note()

    def set_configuring(self, sender: str, text: str) -> None:
        """Set a service's description of slow configuration work; empty for none."""
        if self._configuring.pop(sender, "") != text:
            self._changes.note()
        if text:
            self._configuring[sender] = text

    def set_state(self, state: RunStatePublished) -> None:
        if state.state is not self._state:
            self._ends.clear()
            self._begin_wall_ns, self._rate, self._main_error = 0, 0.0, ""
        super().set_state(state)

    def set_phases(self, reports: tuple[PhaseReport, ...]) -> None:
        if self._state not in (RunState.WARMUP, RunState.PROFILING):
            return
        for report in reports:
            if report.phase is self._phase and report.start_wall_ns != self._begin_wall_ns:
                self._begin_wall_ns = report.start_wall_ns
                self._phase_mono_ns = monotonic_ns() + report.start_wall_ns - time_ns()

    def set_errors(self, samples: Iterable[ErrorSample]) -> None:
        mine = [sample for sample in samples if sample.phase is self._phase]
        if mine:
            self._main_error = max(mine, key=lambda sample: sample.count).message

    def tick(self, now_wall_ns: int) -> None:
        """Update the rate of completed requests, twice a second, and wake the waiting clients."""
        end = (now_wall_ns - self._delay_ns) // RATE_BIN_NS
        begin = end - RATE_WINDOW_NS // RATE_BIN_NS
        for bin_number in [each for each in self._ends if each < begin]:
            del self._ends[bin_number]
        length_ns = end * RATE_BIN_NS - max(begin * RATE_BIN_NS, self._begin_wall_ns)
        self._rate = 0.0
        if self._begin_wall_ns and length_ns > 0:
            ended = sum(count for each, count in self._ends.items() if each < end)
            self._rate = ended / (length_ns / 1e9)
        self._changes.note()

    @property
    def _phase(self) -> Phase:
        return Phase.WARMUP if self._state is RunState.WARMUP else Phase.PROFILING

    # --- output ----------------------------------------------------------------------------------

    def ended(self, phase: Phase) -> NDArray[np.int64]:
        """Return the number of requests of a phase by `Outcome`, from their records: a worker
        counts complete responses, and only their records show whether they are good."""
        return self._outcomes[phase]

    def status(self) -> Status:
        phase = self._phase
        counts = [by_phase[phase] for by_phase in self._counts.values() if phase in by_phase]
        load, warmup = self._config.load, self._config.load.warmup
        limits = warmup if phase is Phase.WARMUP and warmup is not None else load
        is_priming = phase is Phase.WARMUP and load.agentic is not None
        ttft_p50_ms, ttft_p99_ms = _percentiles_ms([r.ttft_ns for r in self._recent], 50, 99)
        latency_p50_ms, latency_p99_ms = _percentiles_ms(
            [r.latency_ns for r in self._recent], 50, 99
        )
        lag_p50_ms, lag_p99_ms = _percentiles_ms([r.lag_ns for r in self._recent], 50, 99)
        outcomes = self.ended(phase)
        common = super().status()
        message = common.message
        if self._state is RunState.CONFIGURING and self._configuring:
            message = next(iter(self._configuring.values()))
        return replace(
            common,
            phase=phase.name.lower(),
            load_start_wall_ns=self._begin_wall_ns if self._state is RunState.PROFILING else 0,
            requested_requests=None if is_priming else limits.requests,
            requested_duration_s=limits.duration / 1e9
            if limits.duration and not is_priming
            else None,
            grace_s=self._config.endpoint.grace_ns(limits.grace_period) / 1e9,
            completed=int(outcomes[Outcome.COMPLETED]),
            errored=int(outcomes[Outcome.ERRORED]),
            main_error=self._main_error,
            cancelled=sum(c.cancelled for c in counts),
            abandoned=sum(c.abandoned for c in counts),
            in_flight=sum(c.in_flight for c in counts),
            requests_per_s=self._rate,
            ttft_p50_ms=ttft_p50_ms,
            ttft_p99_ms=ttft_p99_ms,
            latency_p50_ms=latency_p50_ms,
            dataset=self._dataset,
            message=message,
            server_running=self.server.running,
            server_waiting=self.server.waiting,
            server_kv_usage=self.server.kv_usage,
            credits_granted=sum(c.granted for c in counts),
            requests_sent=sum(c.requests_sent for c in counts),
            unsent=sum(c.unsent for c in counts),
            retries=sum(c.retries for c in counts),
            schedule_lag_p50_ms=lag_p50_ms,
            schedule_lag_p99_ms=lag_p99_ms,
            latency_p99_ms=latency_p99_ms,
            output_tokens_per_s=self._tokens_per_s(),
            objectives=tuple(self._live_objectives()),
            finish_reasons=named_reasons(self._finish_reasons),
        )

    def _tokens_per_s(self) -> float | None:
        """Return the output tokens per second: the request rate times the mean number of output
        tokens so far."""
        if self._phase is not Phase.PROFILING or not self._output_tokens:
            return None
        completed = int(self.ended(Phase.PROFILING)[Outcome.COMPLETED])
        return self._rate * self._output_tokens / completed

    def _live_objectives(self) -> Iterator[LiveObjective]:
        """Yield the latency objectives with known recent values."""
        known = {
            "time_to_first_token": [r.ttft_ns for r in self._recent],
            "request_latency": [r.latency_ns for r in self._recent],
        }
        for each in self._config.slo.objectives:
            value = _statistic_ms(known.get(each.metric, []), each.stat)
            if value is None:
                continue
            metric = CATALOG[each.metric]
            for bound, limit in each.bounds:
                yield LiveObjective(
                    metric=metric.tag,
                    stat=each.stat,
                    bound=bound,
                    limit=limit_of(metric.shown_unit, limit),
                    value=value,
                    unit=metric.unit,
                )


def _statistic_ms(parts_ns: list[Times], stat: str) -> float | None:
    """Return a statistic over all parts, like `_percentiles_ms`."""
    if stat == "avg":
        values = np.concatenate(parts_ns) if parts_ns else np.empty(0, dtype=np.int64)
        values = values[values >= 0]
        return float(values.mean()) / 1e6 if len(values) else None
    name = {"min": "p0", "max": "p100"}.get(stat, stat)
    return _percentiles_ms(parts_ns, float(name.removeprefix("p")))[0]


def _percentiles_ms(parts_ns: list[Times], *wanted: float) -> list[float | None]:
    """Return percentiles over all parts, without missing latencies; None if there are no values."""
    values = np.concatenate(parts_ns) if parts_ns else np.empty(0, dtype=np.int64)
    values = values[values >= 0]
    if not len(values):
        return [None] * len(wanted)
    return [float(at_ns) / 1e6 for at_ns in np.percentile(values, wanted)]
