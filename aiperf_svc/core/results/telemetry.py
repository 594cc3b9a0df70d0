"""Adds the metrics of servers, GPU exporters and this program's own services to a summary.

They include the numbers for the economics of throughput: GPUs, their price, power and energy. The
catalog contains the derived metrics, such as tokens per second and GPU. The number of GPUs comes
from the config, else from the pages of GPUs, else from the stack's own target.
Energy is only used if it covers all GPUs.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import AGENT_TRACES
from aiperf_svc.core.results.inference_result import SteadyStats
from aiperf_svc.core.results.provenance import Provenance, provenance_of
from aiperf_svc.core.results.scalars import derived
from aiperf_svc.core.results.slo import Failures, judge
from aiperf_svc.core.results.slo_results import ObjectiveResult
from aiperf_svc.core.results.summary import Summary, metric_stats
from aiperf_svc.core.telemetry.findings import LoadFacts, gpu_energy, judge_system
from aiperf_svc.core.telemetry.log import SourceLog
from aiperf_svc.core.telemetry.series import gpus
from aiperf_svc.core.telemetry.sources import judge_sources
from aiperf_svc.core.telemetry.system_report import SystemReport
from aiperf_svc.core.verdict.check_result import Severity, note
from aiperf_svc.domain.metric_catalog import CATALOG, Kind
from aiperf_svc.domain.number_text import count


class EconomicNumbers(NamedTuple):
    """Scalars of the catalog, and their sources."""

    scalars: dict[str, float]
    text: str = ""
    """Note for readers; empty if the number of GPUs is unknown."""


def economic_numbers(
    config: BenchmarkConfig, *, counted: int, joules: float | None
) -> EconomicNumbers:
    """Return the numbers of a run. `counted` GPUs are on its pages, which show `joules` of energy
    under load; None: unknown."""
    economics = config.economics
    gpus, source = _gpus(config, counted)
    if not gpus:
        return EconomicNumbers({})
    found = {"gpu_count": float(gpus)}
    text = f"economics: {count(gpus, 'GPU')} (from {source})"
    if economics.price_per_gpu_hour is not None:
        found["price_per_gpu_hour"] = economics.price_per_gpu_hour
        text += f", ${economics.price_per_gpu_hour:g} per GPU hour"
    if economics.kw_per_gpu is not None:
        found["kw_per_gpu"] = economics.kw_per_gpu
        text += f", {economics.kw_per_gpu:g} kW per GPU"
    if joules is not None and counted == gpus:
        found["gpu_joules"] = joules
    elif joules is not None:
        text += f"; the energy is left out, because telemetry covers {count(counted, 'GPU')}"
    return EconomicNumbers(found, text)


def _gpus(config: BenchmarkConfig, counted: int) -> tuple[int, str]:
    if config.economics.gpus is not None:
        return config.economics.gpus, "economics.gpus"
    if counted:
        return counted, "telemetry"
    target = config.deployment.target
    own = target.gpu.count * target.replicas if target.gpu is not None else 0
    return own, "deployment.target"


def with_telemetry(summary: Summary, logs: Iterable[SourceLog], client: SourceLog) -> Summary:
    """Return the summary with the metrics of other sources and of the own services, and with the
    verdict on the system if there is a source."""
    known = tuple(logs)
    facts = _load_facts(summary)
    summary = replace(summary, client=client, provenance=_provenance(summary, known, facts))
    if not known and not facts.has_drafts:
        return _with_economics(summary, (), facts)
    interval_s = summary.context.config.telemetry.interval / 1e9
    sources = judge_sources(
        known, begin_ns=facts.begin_ns, end_ns=facts.end_ns, interval_s=interval_s
    )
    system = judge_system(known, sources, facts)
    used = [log for log, report in zip(known, sources, strict=True) if report.is_used]
    summary = replace(summary, telemetry=known, system=system)
    return _with_economics(summary, used, facts)


def _with_economics(summary: Summary, used: Sequence[SourceLog], facts: LoadFacts) -> Summary:
    """Return the summary with the metrics derived from the GPUs' number, price and energy."""
    system = summary.system
    joules = system.metrics.get("gpu_energy") if system is not None else None
    counted = len(list(gpus(used)))
    found = economic_numbers(summary.context.config, counted=counted, joules=joules)
    if not found.text:
        return summary
    if system is None:
        system = SystemReport(verdict=Severity.VALID, checks=(), metrics={}, sources=())
    checks = (*system.checks, note("economics", found.text))
    summary = replace(
        summary,
        scalars=derived(summary.scalars | found.scalars),
        steady_state=_steady_economics(summary.steady_state, found.scalars, used, facts),
        system=replace(system, checks=checks),
    )
    return replace(summary, slo=_objectives(summary))


def _objectives(summary: Summary) -> tuple[ObjectiveResult, ...]:
    """Return the objectives, with those on single numbers judged again, because they may refer to
    the added metrics."""
    # Failed requests and too few values do not affect a single number.
    judged = judge(summary.context.config.slo, summary.measured, {}, Failures(completed=0))
    return tuple(
        new if CATALOG[new.metric].kind is Kind.SCALAR else old
        for old, new in zip(summary.slo, judged, strict=True)
    )


def _steady_economics(
    steady: SteadyStats | None,
    numbers: dict[str, float],
    used: Sequence[SourceLog],
    facts: LoadFacts,
) -> SteadyStats | None:
    """Return the steady part with the same metrics, and the energy of its own time."""
    if steady is None or not steady.metrics:
        return steady
    own = {tag: value for tag, value in numbers.items() if tag != "gpu_joules"}
    if "gpu_joules" in numbers:
        begin_ns, end_ns = (
            facts.begin_ns + round(each * 1e9) for each in (steady.begin_s, steady.end_s)
        )
        energy = gpu_energy(used, replace(facts, begin_ns=begin_ns, end_ns=end_ns))
        own |= {"gpu_joules": energy} if energy is not None else {}
    of_part = {
        tag: value
        for tag, found in steady.metrics.items()
        if CATALOG[tag].kind is Kind.SCALAR and (value := found.stat("avg")) is not None
    }
    added = {t: value for t, value in derived(of_part | own).items() if t not in of_part}
    return replace(steady, metrics=steady.metrics | metric_stats({}, added))


def _provenance(summary: Summary, logs: Iterable[SourceLog], facts: LoadFacts) -> Provenance:
    run = summary.context
    used = [log for log in logs if log.has_pages]
    window = {"begin_ns": facts.begin_ns, "end_ns": facts.end_ns}
    return provenance_of(run.host, run.health, used, **window)


def _load_facts(summary: Summary) -> LoadFacts:
    profiling = summary.context.profiling
    config = summary.context.config
    load = config.load
    # Session trees have pauses and parallel streams.
    is_steady = config.dataset.kind not in AGENT_TRACES
    has_users = is_steady and not load.is_open_loop and not load.prefill_concurrency
    begin_ns = profiling.start_wall_ns or summary.first_start_wall_ns
    return LoadFacts(
        begin_ns=begin_ns,
        end_ns=summary.last_end_wall_ns,
        steady_ns=begin_ns + profiling.ramp_ns,
        stop_ns=_last_start_ns(summary, begin_ns),
        concurrency=load.concurrency if has_users else None,
        ttft_mean_ms=summary.measured("time_to_first_token", "avg"),
        latency_ms=summary.measured("request_latency", "p50") or 0.0,
        requests=int(summary.scalars["request_count"]),
        is_client_valid=summary.verdict.verdict is Severity.VALID,
        cached_tokens=summary.scalars.get("total_usage_prompt_cache_read_tokens", 0.0),
        prompt_tokens=sum(
            summary.scalars.get(f"total_usage_prompt_cache_{kind}_tokens", 0.0)
            for kind in ("read", "miss")
        ),
        all_prompt_tokens=summary.scalars.get("total_usage_prompt_tokens", 0.0),
        cached_coverage=summary.scalars.get("cached_token_coverage", 0.0),
        output_tokens=summary.scalars.get("total_osl", 0.0),
        unnatural=_unnatural(summary),
        has_drafts=any(
            summary.scalars.get(tag) for tag in ("total_spec_decode_steps", "total_draft_tokens")
        ),
    )


def _unnatural(summary: Summary) -> str:
    """Return why the share of accepted drafts is unlike that of real use."""
    context = summary.context
    dataset, extra = context.config.dataset, context.config.endpoint.extra_inputs
    facts = context.topology.dataset
    probe = facts.forced_output_length if facts is not None else None
    is_forced = probe is not None and probe.requests and probe.finding != "refused"
    found = []
    if is_forced or extra.get("ignore_eos") is True or extra.get("min_tokens"):
        found.append("forced ends (ignore_eos, min_tokens)")
    if facts is not None and facts.has_random_text:
        found.append(f"random text (dataset.kind: {dataset.kind})")
    return " and ".join(found)


def _last_start_ns(summary: Summary, begin_ns: int) -> int:
    """Return the start of the last timeline bin in which requests were started. The load is held
    until then."""
    line = summary.timeline
    if line is None or not line.started_per_s.any():
        return begin_ns
    last = int(np.flatnonzero(line.started_per_s)[-1])
    return begin_ns + round(last * line.width_s * 1e9)
