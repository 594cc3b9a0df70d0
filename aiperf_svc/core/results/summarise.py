"""Computes the results of a finished run from its records. This module only orders the steps."""

import numpy as np
from msgspec.structs import asdict, replace

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import DatasetKind
from aiperf_svc.core.records.accounts import Accounts, balance
from aiperf_svc.core.results import slo
from aiperf_svc.core.results.by_group import Groups
from aiperf_svc.core.results.cache_use import cache_use
from aiperf_svc.core.results.distributions import distributions, network_metrics, pooled
from aiperf_svc.core.results.objective_batches import objective_batches
from aiperf_svc.core.results.scalars import (
    measured_scalars,
    scalars,
    steady_state_throughput,
)
from aiperf_svc.core.results.slices import steady_part
from aiperf_svc.core.results.slo import Failures
from aiperf_svc.core.results.summary import (
    FinishedRun,
    MetricSummary,
    Summary,
)
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.core.stats.concurrency import held_over_time
from aiperf_svc.core.stats.concurrency_held import (
    SlotUse,
    prefill_slot_use,
    slot_use,
)
from aiperf_svc.core.stats.histogram import Histogram
from aiperf_svc.core.stats.load_window import LoadWindow, load_window
from aiperf_svc.core.stats.timeline import timeline
from aiperf_svc.core.stats.totals import Totals, add_up
from aiperf_svc.core.verdict import inputs as ev
from aiperf_svc.core.verdict.cause_checks import is_busy
from aiperf_svc.core.verdict.chunk_times import blank_bounds, gap_bounds, single_reads
from aiperf_svc.core.verdict.inputs import Evidence
from aiperf_svc.core.verdict.judge import judge
from aiperf_svc.core.verdict.token_agreement import TokenAgreement, token_agreement
from aiperf_svc.domain.endpoint_types import Feature
from aiperf_svc.domain.finish_reasons import named_reasons
from aiperf_svc.domain.metric_catalog import CATALOG, Population
from aiperf_svc.domain.metric_formulas import Columns
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.services import Service

TIMELINE_TAGS = ("time_to_first_token", "request_latency")


def summarise(columns: Columns, chunk_gaps: Histogram | None, context: FinishedRun) -> Summary:
    """Return the results of the profiling phase.

    `columns` are the base columns of all records of the run, by METRIC_DTYPE's names; `chunk_gaps`
    are the pooled gaps between chunks. Uses memory for three columns of eight bytes at most.
    """
    rows = PhaseRows(columns, phase=Phase.PROFILING)
    clocks = ClockMap((w.rank, w.clocks) for w in context.workers)
    totals = add_up(rows, clocks)
    accounts = _accounts(context)
    window = load_window(context.profiling, totals, has_failed=bool(context.failure))
    rule = context.config.load.steady_state
    unsent_without_row = max(0, accounts.unsent - totals.unsent)
    metrics = distributions(rows, unsent_without_row=unsent_without_row)
    if chunk_gaps is not None and (gaps := pooled("inter_chunk_latency", chunk_gaps)):
        metrics["inter_chunk_latency"] = gaps
    metrics |= network_metrics(context.network)
    measured = measured_scalars(
        totals,
        accounts,
        requested_rate=context.requested_rate,
        window_ns=window.duration_ns,
    )
    measured |= slo.good_requests(rows, context.config.slo.goodput)
    steady = steady_state_throughput(
        rows,
        clocks,
        begin_ns=window.steady_ns,
        stop_ns=window.stop_ns or totals.last_tried,
    )
    if steady is not None:
        measured["steady_state_request_throughput"] = steady
    concurrency = _concurrency(rows, clocks, totals, window)
    if concurrency:
        measured["max_concurrency"] = concurrency["max"]
    use = _slot_use(rows, clocks, totals, metrics, context, window)
    measured |= _achieved(use, totals, accounts, context, window)
    numbers = scalars(rows, measured)
    found = _evidence(rows, clocks, totals, accounts, metrics, chunk_gaps, use, context, window)
    groups = Groups(columns, clocks, context, window, unsent_without_row=unsent_without_row)
    summary = Summary(
        context=context,
        metrics=metrics,
        scalars=numbers,
        concurrency=concurrency,
        accounts=accounts,
        objectives=(),
        verdict=judge(found),
        timeline=timeline(
            rows,
            clocks,
            tuple(tag for tag in TIMELINE_TAGS if tag in metrics),
            begin_ns=window.begin_ns,
            end_ns=window.end_ns,
            ramp_ns=window.ramp_ns,
            stop_ns=window.stop_ns,
            usual_ms=0.0 if context.config.load.is_open_loop else _median_ms(metrics),
        ),
        first_start_wall_ns=totals.first_start if totals.sent else window.begin_ns,
        last_end_wall_ns=window.end_ns,
        finish_reasons=named_reasons(totals.finish_reasons),
        targets=groups.by_target(),
        models=groups.by_model(),
        steady=None if rule is None else steady_part(columns, clocks, window, rule),
        cache=cache_use(rows) if totals.is_multi_turn and "cached_token_share" in numbers else None,
    )
    failures = Failures(
        completed=totals.completed,
        errored=totals.errored,
        timed_out=totals.timed_out,
        cancelled=totals.cancelled,
        unsent=accounts.unsent,
        lost=int(numbers["lost_request_count"]),
    )
    distributed = {tag: metric.distribution for tag, metric in metrics.items()}
    objectives = slo.judge(context.config.slo, summary.measured, distributed, failures)
    batches = (
        context.early_end.batches
        if context.early_end
        else objective_batches(
            rows,
            clocks,
            context.config.slo,
            window,
            without_row=unsent_without_row + failures.lost,
        )
    )
    due = failures.due - (totals.to_abandon - totals.abandoned)
    return replace(
        summary,
        objectives=objectives,
        objective_batches=batches,
        goodput_tiers=slo.judge_tiers(
            context.config.slo, rows, due=due, window_ns=window.duration_ns
        ),
    )


def _accounts(context: FinishedRun) -> Accounts:
    """Return the accounts of the profiling phase. The warmup's are only checked."""
    accounts = balance(
        Phase.PROFILING, (w.account for w in context.workers), granted=context.credits_granted
    )
    warmup = balance(Phase.WARMUP, context.warmup)
    return replace(accounts, violations=accounts.violations + warmup.violations)


def _concurrency(
    rows: PhaseRows, clocks: ClockMap, totals: Totals, window: LoadWindow
) -> dict[str, float]:
    if not totals.sent:
        return {}
    edges = []
    for column in ("start_wall_ns", "end_wall_ns"):
        mapped, filled = np.empty(totals.sent, dtype=np.int64), 0
        for chunk in rows.chunks(Population.SENT):
            some = clocks.to_timing(chunk[column], chunk["worker"])
            mapped[filled : filled + len(some)] = some
            filled += len(some)
        edges.append(mapped)
    stats = held_over_time(
        *edges, begin_ns=window.begin_ns, stop_ns=window.stop_ns or window.end_ns
    )
    return {} if stats is None else asdict(stats)


def _evidence(
    rows: PhaseRows,
    clocks: ClockMap,
    totals: Totals,
    accounts: Accounts,
    metrics: dict[str, MetricSummary],
    chunk_gaps: Histogram | None,
    use: SlotUse | None,
    context: FinishedRun,
    window: LoadWindow,
) -> Evidence:
    load = context.config.load
    lag, stated = metrics.get("receive_lag"), metrics.get("usage_prompt_tokens")
    dataset = context.config.dataset
    is_synthetic = dataset.kind is DatasetKind.SYNTHETIC
    arrivals = _arrivals(accounts, context, window)
    counts = [worker.account.counts for worker in context.workers]
    workers = tuple(h for h in context.health if h.service is Service.WORKER)
    # A client that lacks CPU for its handshakes causes the wait itself.
    connecting = 0 if is_busy(workers) else accounts.connecting
    return Evidence(
        totals=totals,
        accounts=accounts,
        is_open_loop=load.is_open_loop,
        concurrency=load.concurrency,
        errors=ev.errors_by_kind(totals),
        connecting=connecting,
        connect_ms=ev.connect_ms(rows),
        unasked=sum(c.unasked for c in counts),
        history_defects=tuple(
            map(sum, zip(*(c.history_defects for c in counts if c.history_defects), strict=True))
        ),
        clock_jumps=totals.clock_jumps + sum(c.ended_near_steps for c in counts),
        clock_step_share=max(clocks.steps_ns, *(c.clock_steps_ns for c in counts), 0)
        / max(1, window.duration_ns),
        held_back_share=min(
            1.0, max((c.held_back_ns for c in counts), default=0) / max(1, window.duration_ns)
        ),
        finish_reasons=named_reasons(totals.finish_reasons),
        uncounted=_uncounted(totals, context.config),
        blank_bounds=blank_bounds(rows) if totals.with_blank_leads else (),
        tokenizer=context.config.counting_tokenizer,
        tokens=token_agreement(rows) if context.config.counting_tokenizer else TokenAgreement(),
        asked_input_tokens=0.0 if dataset.mix or not is_synthetic else dataset.input_tokens.mean,
        stated_input_tokens=(stated.stat("avg") or 0.0) if stated else 0.0,
        is_length_forced=context.config.endpoint.force_output_length,
        bounds=ev.latency_bounds(rows, totals),
        fastest_ms=ev.fastest_ms(rows),
        receive_lag_ms=(lag.stat("p99") or lag.stat("max") or 0.0) if lag else 0.0,
        held_ratio=use.ratio if use else None,
        prefill_concurrency=load.prefill_concurrency,
        rate_ratio=ev.client_share(totals, accounts.unsent, connecting=connecting)
        if load.is_open_loop
        else None,
        arrivals_ratio=arrivals[0] if arrivals else None,
        arrivals_tolerance=arrivals[1] if arrivals else 0.0,
        single_reads=single_reads(rows),
        gap_bounds=gap_bounds(rows, chunk_gaps),
        clock_uncertainty_ms=ev.clock_uncertainty_ms(clocks),
        workers=workers,
        lost_services=context.lost_services,
        failure=context.failure,
        early_end=context.early_end.text if context.early_end else "",
        error_budget=context.config.slo.error_budget,
    )


def _uncounted(totals: Totals, config: BenchmarkConfig) -> str:
    """Return the names of the metrics that need token counts, where no response has one."""
    is_counted = totals.has_output_tokens or not totals.without_output_tokens
    if is_counted or config.counting_tokenizer or not config.endpoint.type.has(Feature.TEXT):
        return ""
    tags = ["output_sequence_length", "output_token_throughput"]
    if totals.is_streaming:
        tags.insert(0, "inter_token_latency")
    if not totals.has_input_tokens:
        tags.insert(0, "input_sequence_length")
    return ", ".join(CATALOG[tag].name for tag in tags)


def _slot_use(
    rows: PhaseRows,
    clocks: ClockMap,
    totals: Totals,
    metrics: dict[str, MetricSummary],
    context: FinishedRun,
    window: LoadWindow,
) -> SlotUse | None:
    """Return the use of the concurrency slots, or of those for prefill. None in open loop, and if a
    run is shorter than one typical request: its slots had no time to be refilled."""
    load = context.config.load
    latency = metrics.get("request_latency")
    if load.is_open_loop or load.concurrency is None or latency is None:
        return None
    given: dict[str, int] = {
        "concurrency": load.concurrency,
        "worker_count": max(1, len(context.workers)),
        "stop_ns": window.stop_ns,
        "longest_pause_ns": max(
            (worker.account.counts.longest_pause_ns for worker in context.workers), default=0
        ),
    }
    if load.prefill_concurrency is None:
        use = slot_use(rows, totals, clocks, begin_ns=window.steady_ns, **given)
    else:
        use = prefill_slot_use(
            rows,
            totals,
            clocks,
            prefill_concurrency=load.prefill_concurrency,
            begin_ns=max(window.steady_ns, window.begin_ns + load.prefill_ramp),
            **given,
        )
    return use if use is not None and use.window_s * 1e3 >= _median_ms(metrics) else None


def _median_ms(metrics: dict[str, MetricSummary]) -> float:
    latency = metrics.get("request_latency")
    return 0.0 if latency is None else latency.stat("p50") or 0.0


def _arrivals(
    accounts: Accounts, context: FinishedRun, window: LoadWindow
) -> tuple[float, float] | None:
    """Return the arrivals ratio of a run that ends by time. A run that ends by count has its count
    by definition."""
    load = context.config.load
    if context.requested_rate is None or not window.stop_ns or load.user_centric is not None:
        return None
    spread = {"constant": 0.0, "poisson": 1.0, "gamma": load.arrival.burstiness**-0.5}
    return ev.arrivals_ratio(
        accounts.issued,
        rate=context.requested_rate,
        duration_s=(window.stop_ns - window.begin_ns) / 1e9,
        ramp_s=window.ramp_ns / 1e9,
        variation=0.0 if load.fixed_schedule else spread[load.arrival.pattern],
    )


def _achieved(
    use: SlotUse | None,
    totals: Totals,
    accounts: Accounts,
    context: FinishedRun,
    window: LoadWindow,
) -> dict[str, float]:
    numbers: dict[str, float] = {}
    if use is not None and context.config.load.prefill_concurrency is None:
        numbers["concurrency_achievement"] = use.ratio
    share, rate = ev.achieved_share(totals, accounts.unsent), context.requested_rate
    if share is not None and rate is not None:
        if context.config.load.user_centric is not None:
            # A turn is due only when the response before it is there, and a conversation that is
            # cut short has no further ones, so what was due may be less than was asked for.
            times = {"begin_ns": window.begin_ns, "stop_ns": window.stop_ns}
            asked = ev.turns_share(totals, rate=rate, **times) if window.stop_ns else share
            share = min(share, asked)
        elif totals.is_multi_turn and accounts.issued:
            rate = _rate_of_turns(rate, totals, accounts, window)
        numbers["rate_achievement"] = share
        # The arrivals of a random schedule are not exactly those of the rate that it is drawn from.
        arrivals = _arrivals(accounts, context, window)
        numbers["achieved_rate"] = rate * share * (arrivals[0] if arrivals else 1.0)
    return numbers


def _rate_of_turns(rate: float, totals: Totals, accounts: Accounts, window: LoadWindow) -> float:
    """Return the rate of due requests of a load whose rate is that of conversations. Where no stop
    cuts the last conversations, their later turns come when no further ones begin."""
    due = totals.requests - totals.unsent + accounts.unsent
    begun_s = accounts.issued / rate
    due_s = (totals.last_due - window.begin_ns - window.ramp_ns / 2) / 1e9
    return due / (begun_s if window.stop_ns else max(begun_s, due_s))
