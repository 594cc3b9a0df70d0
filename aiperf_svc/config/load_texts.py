"""A load in words."""

from aiperf_svc.config.load import Load
from aiperf_svc.config.units import format_duration, format_share


def load_words(load: Load, *, with_pattern: bool = False) -> list[str]:
    """Return how requests are sent, without the end of the load; with the arrival pattern where one
    spaces them."""
    pattern = f" ({load.arrival.pattern})" if with_pattern else ""
    words = []
    if load.request_rate is not None:
        rate = f"{load.request_rate:,.6g}" if with_pattern else f"{load.request_rate:g}"
        words.append(f"{rate} requests/s{pattern}")
    if load.rate_points:
        words.append(_changing_rate(load) + pattern)
    if load.bursts is not None:
        words.append(_bursts(load) + (pattern if load.request_rate is None else ""))
    if load.user_centric is not None:
        of = load.user_centric
        words.append(f"{of.rate:g} requests/s of {of.users:,} users, each by its own clock")
    if load.fixed_schedule:
        words.append(_schedule(load))
    if load.concurrency is not None:
        words.append(f"{load.concurrency:,} concurrent")
    if load.prefill_concurrency is not None:
        words.append(f"{load.prefill_concurrency:,} in prefill")
    if load.cancellation is not None and load.cancellation.rate:
        after = format_duration(load.cancellation.delay)
        words.append(f"{format_share(load.cancellation.rate)} of the clients leave after {after}")
    return words


def _changing_rate(load: Load) -> str:
    if load.stages:
        return ", ".join(f"{s.rate:g}/s for {format_duration(s.duration)}" for s in load.stages)
    rates = [rate for _, rate in load.rate_points]
    return f"{min(rates):g} to {max(rates):g} requests/s in {len(rates)} points"


def _bursts(load: Load) -> str:
    bursts = load.bursts
    assert bursts is not None
    every, length = format_duration(bursts.every), format_duration(bursts.length)
    return f"every {every} a burst of {bursts.rate:g} requests/s for {length}"


def _schedule(load: Load) -> str:
    start, end = load.fixed_schedule_start_offset, load.fixed_schedule_end_offset
    words = ["the trace's own times"]
    words += [f"from {format_duration(start)}"] if start is not None else []
    words += [f"to {format_duration(end)}"] if end is not None else []
    words += [f"at {load.replay_speedup:g} times its speed"] if load.replay_speedup != 1 else []
    return " ".join(words)
