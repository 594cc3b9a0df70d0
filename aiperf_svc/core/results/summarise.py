"""Computes the results of a finished run from its records. This module only orders the steps."""

import functools

from msgspec.structs import replace

from aiperf_svc.config.agentx import conformance
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.events.disturbance import Disturbances, DisturbedLoad, event_scalars
from aiperf_svc.core.records.accounts import Accounts, balance
from aiperf_svc.core.results import slo
from aiperf_svc.core.results.by_group import Groups
from aiperf_svc.core.results.cache_use import cache_use, context_overflows
from aiperf_svc.core.results.distributions import distributions, network_metrics, pooled
from aiperf_svc.core.results.measured_phase import MeasuredPhase, median_ms
from aiperf_svc.core.results.objective_batches import objective_batches
from aiperf_svc.core.results.scalars import measured_scalars, scalars, steady_state_throughput
from aiperf_svc.core.results.slices import steady_part
from aiperf_svc.core.results.slo import Failures
from aiperf_svc.core.results.summary import FinishedRun, Summary
from aiperf_svc.core.scaling.report import ScalingResult
from aiperf_svc.core.scaling.timeline import FollowedLoad, load_changes, scaling_of, scaling_scalars
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.core.stats.histogram import Histogram
from aiperf_svc.core.stats.load_window import LoadWindow, load_window
from aiperf_svc.core.stats.timeline import timeline
from aiperf_svc.core.stats.totals import Totals, add_up
from aiperf_svc.core.verdict.check_result import Verdict, note
from aiperf_svc.core.verdict.judge import judge
from aiperf_svc.domain.finish_reasons import named_reasons
from aiperf_svc.domain.metric_formulas import Columns
from aiperf_svc.domain.outcomes import Phase

TIMELINE_TAGS = ("time_to_first_token", "request_latency")


def summarise(columns: Columns, chunk_gaps: Histogram | None, context: FinishedRun) -> Summary:
    """Return the results of the profiling phase.

    `columns` are the base columns of all records of the run, by METRIC_DTYPE's names; `chunk_gaps`
    are the pooled gaps between chunks. Uses memory for at most three columns of eight bytes.
    """
    rows = PhaseRows(columns)
    clocks = ClockMap((w.rank, w.clocks) for w in context.workers)
    totals = add_up(rows, clocks)
    accounts = _accounts(context)
    window = load_window(context.profiling, totals, has_failed=bool(context.failure))
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
    if context.quality is not None and context.quality.score is not None:
        measured["quality_score"] = 100.0 * context.quality.score
    disturbed = _disturbances(rows, clocks, window, context)
    if context.config.events:
        measured |= event_scalars(disturbed.events)
    done = (each for each in disturbed.events if each.do == "scale" and each.is_verified)
    scaling = _scaling(rows, clocks, window, context, tuple(each.begin_s for each in done))
    measured |= scaling_scalars(scaling) if scaling is not None else {}
    throughput = steady_state_throughput(
        rows,
        clocks,
        begin_ns=window.steady_ns,
        stop_ns=window.sent_until_ns,
    )
    if throughput is not None:
        measured["steady_state_request_throughput"] = throughput
    phase = MeasuredPhase(context, rows, clocks, totals, accounts, window)
    concurrency = phase.concurrency()
    if concurrency:
        measured["max_concurrency"] = concurrency["max"]
    use = phase.slots_used(metrics)
    measured |= phase.achieved(use)
    numbers = scalars(rows, measured)
    steady = None
    if (rule := context.config.load.steady_state) is not None:
        limits, has_unsent = context.config.slo.goodput, accounts.unsent > 0
        steady = steady_part(columns, clocks, window, rule, limits, has_unsent=has_unsent)
    groups = Groups(columns, clocks, context, window, unsent_without_row=unsent_without_row)
    summary = Summary(
        context=context,
        metrics=metrics,
        scalars=numbers,
        concurrency=concurrency,
        accounts=accounts,
        verdict=_with_rules(
            judge(phase.evidence(metrics, chunk_gaps, use, disturbed)), context.config
        ),
        timeline=timeline(
            rows,
            clocks,
            tuple(tag for tag in TIMELINE_TAGS if tag in metrics),
            window,
            usual_ms=0.0 if context.config.load.is_open_loop else median_ms(metrics),
        ),
        first_start_wall_ns=totals.first_start if totals.sent else window.begin_ns,
        last_end_wall_ns=window.end_ns,
        finish_reasons=named_reasons(totals.finish_reasons),
        targets=groups.by_target(),
        models=groups.by_model(),
        scaling=scaling,
        steady_state=steady,
        events=disturbed.events,
        due_counts=disturbed.counts,
        cache=cache_use(rows) if totals.is_multi_turn and "cached_token_share" in numbers else None,
        context_overflows=context_overflows(rows)
        if totals.is_multi_turn and totals.context_overflows
        else (),
    )
    return _with_objectives(summary, rows, clocks, window, totals)


def _with_objectives(
    summary: Summary, rows: PhaseRows, clocks: ClockMap, window: LoadWindow, totals: Totals
) -> Summary:
    """Return the summary with the results of its objectives and of the tiers of goodput."""
    context, unsent = summary.context, summary.accounts.unsent
    failures = Failures(
        completed=totals.completed,
        errored=totals.errored,
        timed_out=totals.timed_out,
        cancelled=totals.cancelled,
        unsent=unsent,
        lost=int(summary.scalars["lost_request_count"]),
    )
    distributed = {tag: metric.distribution for tag, metric in summary.metrics.items()}
    batches = (
        context.early_end.batches
        if context.early_end
        else objective_batches(
            rows,
            clocks,
            context.config.slo,
            window,
            without_row=max(0, unsent - totals.unsent) + failures.lost,
        )
    )
    due = failures.due - (totals.to_abandon - totals.abandoned)
    return replace(
        summary,
        slo=slo.judge(context.config.slo, summary.measured, distributed, failures),
        slo_batches=batches,
        goodput_tiers=slo.judge_tiers(
            context.config.slo, rows, due=due, window_ns=window.duration_ns
        ),
    )


def _disturbances(
    rows: PhaseRows, clocks: ClockMap, window: LoadWindow, context: FinishedRun
) -> Disturbances:
    """Return the effects of the config's events on the load."""
    limits = context.config.slo
    if not context.config.events:
        return Disturbances((), None)
    is_good = functools.partial(slo.is_good, limits=limits.goodput) if limits.goodput else None
    load = DisturbedLoad(rows, clocks, window, slo.first_token_limit_ms(limits), is_good)
    return load.measure(context.config.events, context.events)


def _with_rules(verdict: Verdict, config: BenchmarkConfig) -> Verdict:
    """Return the verdict with a note on the scenario's rules."""
    if config.scenario is None:
        return verdict
    found = note("scenario", conformance(config.model_dump(mode="json")))
    return replace(verdict, checks=(*verdict.checks, found))


def _scaling(
    rows: PhaseRows,
    clocks: ClockMap,
    window: LoadWindow,
    context: FinishedRun,
    requested_s: tuple[float, ...],
) -> ScalingResult | None:
    """Return how the server's replicas followed the load; None if the run did not watch them.
    `requested_s` are the times at which events requested another number of replicas."""
    if context.scaling is None:
        return None
    end_s = (window.sent_until_ns - window.begin_ns) / 1e9
    load = FollowedLoad(
        begin_ns=window.begin_ns,
        changes=load_changes(context.config.load, end_s),
        end_s=end_s,
        requested_s=requested_s,
    )
    recovered, limit = slo.recovery(rows, clocks, window, context.config.slo)
    return scaling_of(context.scaling, load, recovered, limit=limit)


def _accounts(context: FinishedRun) -> Accounts:
    """Return the accounts of the profiling phase. Those of the warmup are only checked."""
    accounts = balance(
        Phase.PROFILING, (w.account for w in context.workers), granted=context.credits_granted
    )
    warmup = balance(Phase.WARMUP, context.warmup)
    return replace(accounts, violations=accounts.violations + warmup.violations)
