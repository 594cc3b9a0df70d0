"""The profiling phase of a finished run, and the metrics and evidence derived from it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from msgspec.structs import asdict

from aiperf_svc.config.dataset import DatasetKind
from aiperf_svc.config.load import Load
from aiperf_svc.config.prompts import Prefix
from aiperf_svc.core.events.disturbance import Disturbances
from aiperf_svc.core.records.accounts import Accounts
from aiperf_svc.core.results.summary import FinishedRun, MetricSummary
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.core.stats.concurrency import ClosedLoop, SlotUse, held_over_time, slot_use
from aiperf_svc.core.stats.histogram import Histogram
from aiperf_svc.core.stats.load_window import LoadWindow
from aiperf_svc.core.stats.totals import Totals
from aiperf_svc.core.verdict import inputs as ev
from aiperf_svc.core.verdict.cause_checks import is_busy
from aiperf_svc.core.verdict.chunk_times import blank_bounds, gap_bounds, single_reads
from aiperf_svc.core.verdict.inputs import Evidence
from aiperf_svc.core.verdict.token_agreement import TEMPLATE_TOKENS, TokenAgreement, token_agreement
from aiperf_svc.domain.endpoint_types import Feature
from aiperf_svc.domain.finish_reasons import named_reasons
from aiperf_svc.domain.metric_catalog import CATALOG, Population
from aiperf_svc.protocol.services import Service

_UNCOUNTED = {"tools", "functions", "system", "instructions"}
"""Members of `extra_inputs` that servers add to the prompt. The client does not count their
tokens."""
STANDARD_ERRORS = 3.0
"""Standard errors by which the mean of drawn lengths may differ from the distribution's mean."""


def median_ms(metrics: Mapping[str, MetricSummary]) -> float:
    """Return the median of the request latency; 0 without one."""
    latency = metrics.get("request_latency")
    return 0.0 if latency is None else latency.stat("p50") or 0.0


@dataclass(frozen=True, slots=True)
class MeasuredPhase:
    """The rows of the phase, their sums, the accounts and the time span of the load."""

    context: FinishedRun
    rows: PhaseRows
    clocks: ClockMap
    totals: Totals
    accounts: Accounts
    window: LoadWindow

    @property
    def load(self) -> Load:
        return self.context.config.load

    def concurrency(self) -> dict[str, float]:
        """Return the statistics of the requests in flight; empty if nothing was sent."""
        if not self.totals.sent:
            return {}
        edges = []
        for column in ("start_wall_ns", "end_wall_ns"):
            mapped, filled = np.empty(self.totals.sent, dtype=np.int64), 0
            for chunk in self.rows.chunks(Population.SENT):
                some = self.clocks.to_timing(chunk[column], chunk["worker"])
                mapped[filled : filled + len(some)] = some
                filled += len(some)
            edges.append(mapped)
        stats = held_over_time(
            *edges, begin_ns=self.window.begin_ns, stop_ns=self.window.stop_ns or self.window.end_ns
        )
        return {} if stats is None else asdict(stats)

    def slots_used(self, metrics: Mapping[str, MetricSummary]) -> SlotUse | None:
        """Return the use of the concurrency slots, or of those for prefill. None in open loop, and
        for a run shorter than one typical request, whose slots had no time to be refilled."""
        load = self.load
        latency = metrics.get("request_latency")
        if load.is_open_loop or load.concurrency is None or latency is None:
            return None
        counts = [worker.account.counts for worker in self.context.workers]
        loop = ClosedLoop(
            concurrency=load.concurrency,
            prefill_concurrency=load.prefill_concurrency,
            worker_count=max(1, len(counts)),
            begin_ns=max(self.window.steady_ns, self.window.begin_ns + load.prefill_ramp),
            stop_ns=self.window.stop_ns,
            longest_pause_ns=max((each.longest_pause_ns for each in counts), default=0),
            begun=load.concurrency if load.agentic is not None else 0,
        )
        use = slot_use(self.rows, self.totals, self.clocks, loop)
        return use if use is not None and use.window_s * 1e3 >= median_ms(metrics) else None

    def achieved(self, use: SlotUse | None) -> dict[str, float]:
        """Return the shares of the requested rate and concurrency that the client achieved."""
        numbers: dict[str, float] = {}
        if use is not None and self.load.prefill_concurrency is None:
            numbers["concurrency_achievement"] = use.ratio
        share, rate = (
            ev.achieved_share(self.totals, self.accounts.unsent),
            self.context.requested_rate,
        )
        if share is not None and rate is not None:
            if self.load.user_centric is not None:
                # A turn is only due after the previous response, and a conversation that is cut has
                # no more turns. So fewer requests may be due than requested.
                times = {"begin_ns": self.window.begin_ns, "stop_ns": self.window.stop_ns}
                due_share = (
                    ev.turns_share(self.totals, rate=rate, **times)
                    if self.window.stop_ns
                    else share
                )
                share = min(share, due_share)
            elif self.totals.is_multi_turn and self.accounts.issued:
                rate = self._rate_of_turns(rate)
            numbers["rate_achievement"] = share
            # The arrivals of a random schedule do not exactly match its rate.
            arrivals = self._arrivals()
            numbers["achieved_rate"] = rate * share * (arrivals[0] if arrivals else 1.0)
        return numbers

    def evidence(
        self,
        metrics: Mapping[str, MetricSummary],
        chunk_gaps: Histogram | None,
        use: SlotUse | None,
        disturbed: Disturbances,
    ) -> Evidence:
        load = self.load
        lag, stated = metrics.get("receive_lag"), metrics.get("usage_prompt_tokens")
        first = metrics.get("time_to_first_token") or metrics.get("request_latency")
        dataset, api = self.context.config.dataset, self.context.config.endpoint.type
        is_synthetic = dataset.kind is DatasetKind.SYNTHETIC
        is_known = is_synthetic and not (dataset.mix or api.has(Feature.SOUND_ALONE))
        requested_tokens = (
            dataset.input_tokens.mean_within_limits * dataset.batch_size if is_known else 0.0
        )
        prompts = max(1, self.totals.with_prompt)
        draws = min(prompts, dataset.entries or prompts) / dataset.batch_size
        requested_error = dataset.input_tokens.max_deviation / math.sqrt(draws)
        arrivals = self._arrivals()
        counts = [worker.account.counts for worker in self.context.workers]
        workers = tuple(h for h in self.context.health if h.service is Service.WORKER)
        # A client without enough CPU for its handshakes causes the wait itself.
        connecting = 0 if is_busy(workers) else self.accounts.connecting
        return Evidence(
            totals=self.totals,
            accounts=self.accounts,
            is_open_loop=load.is_open_loop,
            concurrency=load.concurrency,
            errors=ev.errors_by_kind(self.totals),
            error_status=ev.most_frequent_status(self.context.errors),
            connecting=connecting,
            connect_ms=ev.connect_ms(self.rows),
            unasked=sum(c.unasked for c in counts),
            history_defects=tuple(
                map(
                    sum, zip(*(c.history_defects for c in counts if c.history_defects), strict=True)
                )
            ),
            clock_jumps=self.totals.clock_jumps + sum(c.ended_near_steps for c in counts),
            clock_step_share=max(self.clocks.steps_ns, *(c.clock_steps_ns for c in counts), 0)
            / max(1, self.window.duration_ns),
            held_back_share=min(
                1.0,
                max((c.held_back_ns for c in counts), default=0) / max(1, self.window.duration_ns),
            ),
            finish_reasons=named_reasons(self.totals.finish_reasons),
            uncounted=self._uncounted(),
            blank_bounds=blank_bounds(self.rows) if self.totals.with_blank_leads else (),
            tokenizer=self.context.config.counting_tokenizer,
            tokens=token_agreement(self.rows, are_prompts_whole=self._are_prompts_whole())
            if self.context.config.counting_tokenizer
            else TokenAgreement(),
            requested_input_tokens=requested_tokens,
            requested_tolerance=STANDARD_ERRORS * requested_error,
            longest_input_tokens=requested_tokens + TEMPLATE_TOKENS
            if requested_tokens and self._are_prompts_alone()
            else 0.0,
            stated_input_tokens=(stated.stat("avg") or 0.0) if stated else 0.0,
            is_length_forced=self.context.config.endpoint.force_output_length,
            bounds=ev.latency_bounds(self.rows, self.totals),
            fastest_ms=first.stat("p5") if first else None,
            receive_lag_ms=(lag.stat("p99") or lag.stat("max") or 0.0) if lag else 0.0,
            held_ratio=use.ratio if use else None,
            prefill_concurrency=load.prefill_concurrency,
            rate_ratio=ev.client_share(self.totals, self.accounts.unsent, connecting=connecting)
            if load.is_open_loop
            else None,
            capped=sum(c.capped for c in counts),
            arrivals_ratio=arrivals[0] if arrivals else None,
            arrivals_tolerance=arrivals[1] if arrivals else 0.0,
            single_reads=single_reads(self.rows),
            gap_bounds=gap_bounds(self.rows, chunk_gaps),
            clock_uncertainty_ms=ev.clock_uncertainty_ms(self.clocks),
            workers=workers,
            timing=tuple(h for h in self.context.health if h.service is Service.TIMING_MANAGER),
            lost_services=self.context.lost_services,
            failure=self.context.failure,
            was_cancelled=self.context.was_cancelled,
            early_end=self.context.early_end.text if self.context.early_end else "",
            # Such a run measures the cost of its events.
            error_budget=self.context.config.slo.error_budget
            + disturbed.lost / max(1, self.totals.requests),
            events=tuple((each.do, each.problem) for each in disturbed.events),
        )

    def _are_prompts_whole(self) -> bool:
        """Return whether the client counts all tokens of a prompt except a chat template's."""
        dataset, endpoint = self.context.config.dataset, self.context.config.endpoint
        is_text = not (dataset.mix or dataset.images.number or dataset.sounds.number)
        has_more = endpoint.type.has(Feature.CUSTOM) or _UNCOUNTED & endpoint.extra_inputs.keys()
        return dataset.kind is DatasetKind.SYNTHETIC and is_text and not has_more

    def _are_prompts_alone(self) -> bool:
        """Return whether prompts consist of `dataset.input_tokens` and the chat template."""
        config = self.context.config
        is_text = config.endpoint.type.has(Feature.TEXT) and config.dataset.prefix == Prefix()
        return is_text and self._are_prompts_whole() and not self.totals.is_multi_turn

    def _uncounted(self) -> str:
        """Return the names of the metrics that need token counts, if no response has one."""
        config = self.context.config
        is_counted = self.totals.has_output_tokens or not self.totals.without_output_tokens
        if is_counted or config.counting_tokenizer or not config.endpoint.type.has(Feature.TEXT):
            return ""
        tags = ["output_sequence_length", "output_token_throughput"]
        if self.totals.is_streaming:
            tags.insert(0, "inter_token_latency")
        if not self.totals.has_input_tokens:
            tags.insert(0, "input_sequence_length")
        return ", ".join(CATALOG[tag].name for tag in tags)

    def _arrivals(self) -> tuple[float, float] | None:
        """Return the arrivals ratio of a run that ends by time. A run that ends by count always has
        its count."""
        load = self.load
        if (
            self.context.requested_rate is None
            or not self.window.stop_ns
            or load.user_centric is not None
        ):
            return None
        spread = {"constant": 0.0, "poisson": 1.0, "gamma": load.arrival.burstiness**-0.5}
        return ev.arrivals_ratio(
            self.accounts.issued,
            rate=self.context.requested_rate,
            duration_s=(self.window.stop_ns - self.window.begin_ns) / 1e9,
            ramp_s=self.window.ramp_ns / 1e9,
            variation=0.0 if load.fixed_schedule else spread[load.arrival.pattern],
        )

    def _rate_of_turns(self, rate: float) -> float:
        """Return the rate of due requests of a load whose rate is that of conversations. Unless a
        stop cuts the last conversations, their later turns come when no new ones begin."""
        due = self.totals.requests - self.totals.unsent + self.accounts.unsent
        begun_s = self.accounts.issued / rate
        due_s = (self.totals.last_due - self.window.begin_ns - self.window.ramp_ns / 2) / 1e9
        return due / (begun_s if self.window.stop_ns else max(begun_s, due_s))
