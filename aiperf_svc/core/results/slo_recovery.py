"""When the SLO of a run holds again, from its requests by the second in which they were due."""

import numpy as np

from aiperf_svc.config.slo import Slo
from aiperf_svc.core.events.disturbance import HOLD_S, RECOVERED_SHARE, WINDOW_S, recovered_second
from aiperf_svc.core.results.slo import is_good
from aiperf_svc.core.scaling.timeline import Recovered
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import PhaseRows, exclude_abandoned
from aiperf_svc.core.stats.load_window import LoadWindow
from aiperf_svc.domain.metric_catalog import CATALOG
from aiperf_svc.domain.outcomes import Outcome

SECOND = 10**9


def limits_of(slo: Slo) -> dict[str, float | str]:
    """Return the limits of single requests: those of the goodput, else the upper ones of the
    objectives."""
    if slo.goodput:
        return dict(slo.goodput)
    found = {each.metric: each.max for each in slo.objectives if each.max is not None}
    return {tag: limit for tag, limit in found.items() if CATALOG[tag].compute is not None}


def slo_recovery(
    rows: PhaseRows, clocks: ClockMap, window: LoadWindow, slo: Slo
) -> tuple[Recovered, str]:
    """Return a function that finds when the SLO holds again, and its criterion in words; empty
    without a limit for single requests."""
    limits = limits_of(slo)
    if not limits:
        return lambda begin_s, end_s: None, ""
    length = max(1, -(-(window.sent_until_ns - window.begin_ns) // SECOND))
    due, good = np.zeros(length, dtype=np.int64), np.zeros(length, dtype=np.int64)
    for chunk in map(exclude_abandoned, rows.chunks()):
        seconds = clocks.to_timing(chunk["due_wall_ns"], chunk["worker"]) - window.begin_ns
        seconds //= SECOND
        is_counted = (seconds >= 0) & (seconds < length)
        is_kept = is_counted & (chunk["outcome"] == Outcome.COMPLETED) & is_good(chunk, limits)
        due += np.bincount(seconds[is_counted], minlength=length)
        good += np.bincount(seconds[is_kept], minlength=length)

    def recovered(begin_s: float, end_s: float) -> float | None:
        first, last = int(begin_s), min(int(end_s), length)
        second = recovered_second(good[first:last], due[first:last], least=RECOVERED_SHARE)
        return None if second is None else max(begin_s, float(first + second))

    named = ", ".join(f"{tag} {limit}" for tag, limit in limits.items())
    words = (
        f"{RECOVERED_SHARE:.0%} of the requests due in each {WINDOW_S} s are within {named}, for "
        f"{HOLD_S} s"
    )
    return recovered, words
