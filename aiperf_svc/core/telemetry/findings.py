"""The verdict on the system, from the metrics of servers and GPUs during a run. It never changes
the verdict on the client."""

from collections.abc import Iterable

import msgspec
import numpy as np

from aiperf_svc.core.telemetry import series
from aiperf_svc.core.telemetry.log import Curve, SourceLog, missed_ns, within
from aiperf_svc.core.telemetry.series import Gpu
from aiperf_svc.core.telemetry.system_report import SourceReport, SystemReport
from aiperf_svc.core.verdict.check_result import Reason, expect_none, graded, note, worst_of
from aiperf_svc.domain.number_text import count, significant

ARRIVED_SHARE = 0.10
"""Limit of the share of the requested concurrency that is neither running nor waiting on the
server. Requests in transit and in the client's reads make up a few percent."""
KV_FULL = 0.95
"""Use of the KV cache above which a server starts to queue or restart requests."""
HITS_APART = 0.05
"""Limit of the difference between the cached share in responses and in the server's counters. Both
count whole blocks. The rest comes from other clients, a warmup within the window of a page,
preempted requests, whose tokens count again, and replicas without a page."""
COLD_HIT_SHARE = 0.05
"""Limit of the share of prompt tokens found in the prefix cache. Above it, the server did less work
than prompts of this length require."""
THROTTLED_SHARE = 0.01
"""Limit of the share of time in which power or heat limited a GPU's clock."""
SAMPLED_SHARE = 0.2
"""Maximum time between two samples of a GPU's energy, as a share of the load. Energy is
interpolated between samples, which underestimates that of a load by at most half of this share."""
LONG_REQUEST_MS = 100.0
"""Median latency above which requests are nearly always on the server. A large part of shorter
requests is in transit at any moment."""
THROTTLE_REASONS = {"power": 0x04 | 0x80, "thermal": 0x20 | 0x40}
"""Bits of NVML's reasons for a low clock that indicate a limit: the software's power cap and the
hardware's brake, the thermal slowdown by software and by hardware (nvml.h,
`nvmlClocksEventReason…`)."""
MAX_GAP_NS = 3_000_000_000
"""Maximum interpolated time between two readings of a GPU's power."""
JOULES_PER_MEGAJOULE = 1e6
"""Energy fields are in MJ."""
_TOKENS = ("prompt_tokens", "generation_tokens")
"""Counters for all tokens of servers under load."""
MIN_READS = 3
"""Minimum reads under load for a mean over time."""


class LoadFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The client's view of the load."""

    begin_ns: int
    end_ns: int
    """Window for comparing the servers' counters with the client's."""
    steady_ns: int
    stop_ns: int
    """Part of the window in which the requested concurrency is held."""
    concurrency: int | None
    """Requested; None in open loop."""
    ttft_mean_ms: float | None = None
    """The client's mean time to first token; None without streaming."""
    latency_ms: float = 0.0
    """The median of the request latency."""
    requests: int = 0
    """Completed requests."""
    is_client_valid: bool = True
    """False if the client's lateness may be part of its times."""
    cached_tokens: float = 0.0
    prompt_tokens: float = 0.0
    """Sums over the requests that report both; 0 without any."""
    all_prompt_tokens: float = 0.0
    """Sum over the requests that report prompt tokens, with or without cached ones."""
    cached_coverage: float = 0.0
    """Share of such requests among the completed ones."""
    output_tokens: float = 0.0
    """Output tokens of the requests, including reasoning, since GPUs compute all. 0 if unknown."""
    has_drafts: bool = False
    """Whether responses report drafted tokens."""
    unnatural: str = ""
    """Why the acceptance of drafts differs from real use: forced ends, random text. Empty without a
    known reason."""


def judge_system(
    logs: Iterable[SourceLog], sources: tuple[SourceReport, ...], facts: LoadFacts
) -> SystemReport:
    """Judge the system by the reliable sources."""
    used = [log for log, report in zip(logs, sources, strict=True) if report.is_used]
    metrics: dict[str, float] = {}
    found = [
        _running_requests(used, facts, metrics),
        _time_in_front(used, facts, metrics),
        _preemptions(used, facts, metrics),
        _kv_cache(used, facts, metrics),
        _prefix_hits(used, facts, metrics),
        _hits_agree(used, facts),
        *_speculation(used, facts, metrics),
        *_gpus(used, facts, metrics),
        *(_source(report) for report in sources),
    ]
    checks = tuple(check for check in found if check is not None)
    return SystemReport(verdict=worst_of(checks), checks=checks, metrics=metrics, sources=sources)


def _running_requests(
    logs: list[SourceLog], facts: LoadFacts, metrics: dict[str, float]
) -> Reason | None:
    values = {}
    for name in ("running", "waiting"):
        found = series.gauge(logs, name, facts.steady_ns, facts.stop_ns)
        if len(found) >= MIN_READS:
            values[name] = metrics[f"server_{name}_requests"] = float(found.mean())
    if "running" not in values:
        return None
    held = sum(values.values())
    text = f"the server had {values['running']:.1f} requests running"
    if "waiting" in values:
        text += f" and {values['waiting']:.1f} waiting"
    if facts.concurrency is None or facts.latency_ms < LONG_REQUEST_MS:
        return note("server_running", f"{text} on average")
    return graded(
        "server_running",
        max(0.0, 1 - held / facts.concurrency),
        ARRIVED_SHARE,
        text=f"{text} on average; the requested concurrency was {facts.concurrency:,}",
        remedy="check what is between client and server (gateway, router, rate limit), and "
        "whether all replicas are among the sources",
    )


def _time_in_front(
    logs: list[SourceLog], facts: LoadFacts, metrics: dict[str, float]
) -> Reason | None:
    found = series.histogram(logs, "time_to_first_token", facts.begin_ns, facts.end_ns)
    if found is None:
        return None
    server_ms = metrics["server_time_to_first_token"] = found.mean * 1e3
    mean = f"{significant(server_ms)} ms over {found.count:,.0f}"
    text = f"mean time to first token on the server: {mean}"
    if facts.ttft_mean_ms is None:
        return note("time_in_front", f"{text} requests")
    front = metrics["time_in_front_of_server"] = facts.ttft_mean_ms - server_ms
    # Pages also count requests of other clients, failed requests, and those of the warmup if no
    # page was read before the load.
    is_same = round(found.count) == facts.requests
    others, about = ("", "") if is_same else (f" over {facts.requests:,}", "about ")
    taken = f"{about}{significant(front)} ms" if front > 0 else "no measurable time"
    late = "" if facts.is_client_valid else "; the client's own lateness may be part of it"
    return note(
        "time_in_front",
        f"{text} requests, {significant(facts.ttft_mean_ms)} ms at the client{others}: network and "
        f"queues in front of the server take {taken}{late}",
    )


def _preemptions(
    logs: list[SourceLog], facts: LoadFacts, metrics: dict[str, float]
) -> Reason | None:
    count = series.counter(logs, "preemptions", facts.begin_ns, facts.end_ns)
    if count is None:
        return None
    metrics["server_preemptions"] = count
    return graded(
        "preemptions",
        count,
        0.0,
        unit="",
        text=f"the server preempted {count:,.0f} requests: they lost their KV cache and were "
        "recomputed",
        remedy="give the server more KV cache, or limit its concurrent sequences; tail latencies "
        "include the repeated work",
    )


def _kv_cache(logs: list[SourceLog], facts: LoadFacts, metrics: dict[str, float]) -> Reason | None:
    usage = series.gauge(logs, "kv_usage", facts.begin_ns, facts.end_ns)
    if not len(usage):
        return None
    highest = metrics["server_kv_cache_usage"] = float(usage.max())
    full = float((usage >= KV_FULL).mean())
    return graded(
        "kv_cache",
        highest,
        KV_FULL,
        text=f"the KV cache was at most {highest:.0%} full, and over {KV_FULL:.0%} for {full:.0%} "
        "of the time",
        remedy="a full cache makes requests wait: give the server more memory for it, or lower "
        "the concurrency or the prompt length",
    )


def _prefix_hits(
    logs: list[SourceLog], facts: LoadFacts, metrics: dict[str, float]
) -> Reason | None:
    window = facts.begin_ns, facts.end_ns
    for name in ("prefix_queries", "prefix_hits", "external_prefix_hits", *_TOKENS):
        if (growth := series.counter(logs, name, *window)) is not None:
            metrics[f"server_{name}"] = growth
    queries, hits = _queries_and_hits(logs, window)
    if queries and hits is not None:
        share = hits / queries
    else:
        rates = series.gauge(logs, "prefix_hit_rate", *window)
        if not len(rates):
            return None
        share = float(rates.mean())
    metrics["server_prefix_hit_rate"] = share
    text = f"{share:.1%} of the prompt tokens were in the server's prefix cache"
    if share > COLD_HIT_SHARE:
        text += ": the time to first token is not that of prompts that are new to the server"
    return note("prefix_hits", text)


def _hits_agree(logs: list[SourceLog], facts: LoadFacts) -> Reason | None:
    """Compare the cached tokens of responses with the server's counters. Returns None if the pages
    miss a part of the load, because the share of hits changes as conversations grow."""
    window = facts.begin_ns, facts.end_ns
    if any(any(missed_ns(log, *window)) for log in logs if log.portable):
        return None
    queries, hits = _queries_and_hits(logs, window)
    if not queries or hits is None or not facts.prompt_tokens:
        return None
    client, server = facts.cached_tokens / facts.prompt_tokens, hits / queries
    # Some servers do not report cached tokens if there are none.
    min_share = facts.cached_tokens / max(facts.prompt_tokens, facts.all_prompt_tokens)
    return graded(
        "cached_tokens_agree",
        max(0.0, server - client, min_share - server),
        HITS_APART,
        text=f"the responses report that {client:.1%} of {facts.prompt_tokens:,.0f} prompt tokens "
        f"were cached ({facts.cached_coverage:.0%} of the requests report it), the counters of the "
        f"server show {server:.1%} of {queries:,.0f}",
        remedy="check for other clients of the server, preemptions, and replicas that are not "
        "among the sources: the counters cover all requests, the responses only this run's",
    )


def _queries_and_hits(
    logs: list[SourceLog], window: tuple[int, int]
) -> tuple[float | None, float | None]:
    queries = series.counter(logs, "prefix_queries", *window)
    hits = series.counter(logs, "prefix_hits", *window)
    external = series.counter(logs, "external_prefix_hits", *window)
    return queries, None if hits is None else hits + (external or 0.0)


def _speculation(
    logs: list[SourceLog], facts: LoadFacts, metrics: dict[str, float]
) -> list[Reason]:
    """Report the acceptance of drafts from sums, since a mean of the servers' gauges would weigh
    idle and busy times equally."""
    window = facts.begin_ns, facts.end_ns
    steps, drafted, accepted = (
        series.counter(logs, name, *window)
        for name in ("spec_steps", "spec_drafted", "spec_accepted")
    )
    gauge = series.gauge(logs, "spec_length_gauge", *window)
    gauge = gauge[gauge > 0]
    is_on_pages = bool(steps or drafted or len(gauge))
    if not is_on_pages and not facts.has_drafts:
        return []
    parts = []
    if steps and accepted is not None:
        length = metrics["server_acceptance_length"] = 1 + accepted / steps
        parts.append(f"acceptance length {length:.3g} tokens per step")
    elif steps and (of_all := _tokens_per_step(logs, facts, steps)) is not None:
        metrics["server_acceptance_length"] = of_all
        parts.append(f"acceptance length {of_all:.3g} tokens per step (generated tokens / steps)")
    elif len(gauge):
        parts.append(f"acceptance length {gauge[-1]:.3g}, the last value of the server's gauge")
    if drafted and accepted is not None:
        metrics["server_drafted_tokens"], metrics["server_accepted_tokens"] = drafted, accepted
        rate = metrics["server_draft_acceptance_rate"] = accepted / drafted
        parts.append(f"{accepted:,.0f} of {drafted:,.0f} draft tokens accepted ({rate:.1%})")
    if not is_on_pages:
        parts.append("the responses report draft tokens")
    text = ", ".join(parts) or f"{steps:,.0f} steps"
    found = [note("speculation", f"speculative decoding: {text}")]
    if facts.unnatural:
        reason = expect_none(
            "speculation_comparable",
            1.0,
            unit="",
            text=f"the server uses speculative decoding, and the load has {facts.unnatural}: "
            "drafts are not accepted as in real use, so the speed is not comparable with that of "
            "another drafter or of a server without one",
            remedy="use a dataset of real texts, and let responses end naturally: without an "
            "output length, or with --no-force-output-length",
        )
        found.append(reason)
    return found


def _tokens_per_step(logs: list[SourceLog], facts: LoadFacts, steps: float) -> float | None:
    """Return the tokens per step, without the first token of each request, which prefill makes."""
    window = facts.begin_ns, facts.end_ns
    generated = series.counter(logs, "generation_tokens", *window)
    firsts = series.histogram(logs, "time_to_first_token", *window)
    if not generated or firsts is None:
        return None
    return (generated - firsts.count) / steps


def _gpus(logs: list[SourceLog], facts: LoadFacts, metrics: dict[str, float]) -> list[Reason]:
    watts: list[float] = []
    joules: list[float] = []
    has_energy = False
    partitioned = total = 0
    throttled: list[tuple[float, str, str]] = []
    xids: list[str] = []
    for gpu in series.gpus(logs):
        total += 1
        fields = gpu.fields
        has_energy |= "energy_consumption" in fields
        partitioned += gpu.is_partitioned
        energy = _joules(gpu, facts)
        joules += [] if energy is None else [energy]
        if (power := _mean_watts(gpu, facts, energy)) is not None:
            watts.append(power)
        throttled += [
            (share, kind, gpu.name)
            for kind in THROTTLE_REASONS
            if (share := _throttled_share(gpu, kind, facts)) is not None
        ]
        if "xid_errors" in fields:
            codes = _new_codes(gpu.log.curve(*fields["xid_errors"][1]), facts)
            xids += [f"{', '.join(map(str, codes))} on {gpu.name}"] if codes else []
    checks = []
    if watts:
        metrics["gpu_power"] = sum(watts)
        text = f"{count(len(watts), 'GPU')} drew {sum(watts):,.0f} W on average"
        if len(joules) == total:
            text += _energy(sum(joules), facts, metrics)
        elif partitioned:
            text += (
                f"; that is the power of all MIG partitions of {count(partitioned, 'GPU')}, so the "
                "energy of this load is unknown"
            )
        elif has_energy or joules:
            text += (
                f"; the energy of {total - len(joules)} of {count(total, 'GPU')} is unknown: their "
                "exporters do not report it, or read it too rarely for this load"
            )
        checks.append(note("gpu_energy", text))
    if throttled:
        share, kind, name = max(throttled)
        checks.append(
            graded(
                "gpu_throttling",
                share,
                THROTTLED_SHARE,
                text=f"{kind} limits reduced the clock of {name} for {share:.1%} of the time",
                remedy="with more power or better cooling, the server is faster than these numbers",
            )
        )
    if xids:
        reason = expect_none(
            "gpu_xid",
            len(xids),
            unit="",
            text=f"GPUs reported Xid errors during the load: {'; '.join(xids)}",
            remedy="check the driver's log on that node; repeat the run on healthy GPUs",
        )
        checks.append(reason)
    return checks


def gpu_energy(logs: Iterable[SourceLog], facts: LoadFacts) -> float | None:
    """Return the energy of all GPUs in J from `begin_ns` to `end_ns`; None if that of any GPU is
    unknown."""
    found = [_joules(gpu, facts) for gpu in series.gpus(logs)]
    known = [each for each in found if each is not None]
    return sum(known) if found and len(known) == len(found) else None


def _joules(gpu: Gpu, facts: LoadFacts) -> float | None:
    """Return the energy of a GPU under load: by its counter, or else the integral of its power.
    None if both were read too rarely, or cover several partitions."""
    if gpu.is_partitioned:
        return None
    if (counted := gpu.fields.get("energy_consumption")) is not None:
        field, numbers = counted
        growth = _growth(gpu.log.sampled(*numbers), facts, longest_share=SAMPLED_SHARE)
        # A GPU whose counter does not grow has none.
        if growth:
            return growth * field.scale * JOULES_PER_MEGAJOULE
    if (read := gpu.fields.get("gpu_power_usage")) is None:
        return None
    times, watts = gpu.log.sampled(*read[1])
    begin_ns, end_ns = facts.begin_ns, facts.end_ns
    first = max(0, int(np.searchsorted(times, begin_ns, side="right")) - 1)
    near = times[first : int(np.searchsorted(times, end_ns, side="left")) + 1]
    if not len(near) or end_ns <= begin_ns:
        return None
    if max(near[0] - begin_ns, end_ns - near[-1], *np.diff(near), 0) > MAX_GAP_NS:
        return None
    # Relative to the begin, so that nanoseconds since 1970 lose no digits.
    inside = near[(near > begin_ns) & (near < end_ns)]
    since_ns = np.array((begin_ns, *inside, end_ns)) - begin_ns
    readings = np.interp(since_ns, times - begin_ns, watts)
    return float(np.trapezoid(readings, since_ns / 1e9)) * read[0].scale


def _mean_watts(gpu: Gpu, facts: LoadFacts, joules: float | None) -> float | None:
    """Return the mean power of a GPU under load: its energy over the load's time, or else the mean
    of the samples. A sample is a mean of the time before it, so samples miss its end."""
    if joules is not None:
        return joules / ((facts.end_ns - facts.begin_ns) / 1e9)
    if (read := gpu.fields.get("gpu_power_usage")) is None:
        return None
    values = within(gpu.log.sampled(*read[1]), facts.begin_ns, facts.end_ns)
    return float(values.mean()) * read[0].scale if len(values) else None


def _throttled_share(gpu: Gpu, kind: str, facts: LoadFacts) -> float | None:
    """Return the share of the load in which a limit held the clock down: from the counter of such
    time, or from samples of its share or of the reasons. None without any of them."""
    if (counted := gpu.fields.get(f"{kind}_violation")) is not None:
        field, numbers = counted
        growth = _growth(gpu.log.sampled(*numbers), facts, longest_share=1.0)
        length_us = (facts.end_ns - facts.begin_ns) / 1e3
        return None if growth is None else growth * field.scale / length_us
    if (stated := gpu.fields.get(f"{kind}_violation_share")) is not None:
        values = within(gpu.log.sampled(*stated[1]), facts.begin_ns, facts.end_ns)
        return float(values.mean()) / 100 if len(values) >= MIN_READS else None
    if (sampled := gpu.fields.get("clocks_event_reasons")) is not None:
        values = within(gpu.log.sampled(*sampled[1]), facts.begin_ns, facts.end_ns)
        if len(values) >= MIN_READS:
            return float((values.astype(np.int64) & THROTTLE_REASONS[kind] != 0).mean())
    return None


def _new_codes(curve: Curve, facts: LoadFacts) -> list[int]:
    """Return the Xid errors that occurred under load. The exporter repeats the last one forever, so
    an error on the first page is old."""
    earlier = curve.values[: max(1, int(np.searchsorted(curve.wall_ns, facts.begin_ns)))]
    earlier = earlier[~np.isnan(earlier)]
    old = float(earlier[-1]) if len(earlier) else 0.0
    values = within(curve, facts.begin_ns, facts.end_ns)
    return sorted({int(code) for code in values if code > 0 and code != old})


def _growth(curve: Curve, facts: LoadFacts, *, longest_share: float) -> float | None:
    """Return the growth of a GPU's counter under load, interpolated between its samples. Unlike
    counters of servers, these start when the driver is loaded, and exporters read them
    rarely.

    Returns None if there is no sample for more than `longest_share` of the load's time.
    """
    times, values = curve
    length_ns = facts.end_ns - facts.begin_ns
    if len(times) < 2 or length_ns <= 0:
        return None
    first = max(0, int(np.searchsorted(times, facts.begin_ns, side="right")) - 1)
    last = int(np.searchsorted(times, facts.end_ns, side="left"))
    begin_ns, end_ns = max(facts.begin_ns, int(times[0])), min(facts.end_ns, int(times[-1]))
    gaps_ns = np.diff(times[first : last + 1]).tolist()
    longest_ns = max(begin_ns - facts.begin_ns, facts.end_ns - end_ns, *gaps_ns, 0)
    if longest_ns > longest_share * length_ns or end_ns <= begin_ns:
        return None
    at_begin, at_end = np.interp((begin_ns, end_ns), times, values).tolist()
    return float(at_end - at_begin) * length_ns / (end_ns - begin_ns)


def _energy(joules: float, facts: LoadFacts, metrics: dict[str, float]) -> str:
    metrics["gpu_energy"] = joules
    text = f" and used {joules:,.0f} J"
    if facts.requests:
        metrics["energy_per_request"] = joules / facts.requests
        text += f", {significant(joules / facts.requests)} J per request"
    if facts.output_tokens:
        metrics["energy_per_output_token"] = joules / facts.output_tokens
        text += f", {significant(joules / facts.output_tokens)} J per output token"
    return text


def _source(report: SourceReport) -> Reason | None:
    """Return the finding about a source that is not used or needs a note."""
    if report.problem:
        return note("telemetry_source", f"{report.url} is not used: {report.problem}")
    if report.notes:
        return note("telemetry_source", f"{report.url}: {'; '.join(report.notes)}")
    return None
