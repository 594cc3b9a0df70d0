"""The requests beyond each objective's limit, by consecutive batches of a run.

A search uses them to decide whether a point holds. Batches show how much a run's value varies;
single requests do not, because those in the same queue are slow together.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.slo import Bound, Objective, Slo
from aiperf_svc.core.results.slo import is_good
from aiperf_svc.core.results.slo_results import (
    BATCHES,
    GOODPUT,
    MIN_BATCH_SIZE,
    ObjectiveBatches,
    limit_of,
)
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import Chunk, PhaseRows, due_values, exclude_abandoned
from aiperf_svc.core.stats.load_window import LoadWindow
from aiperf_svc.core.stats.percentiles import QUANTILES
from aiperf_svc.domain.metric_catalog import CATALOG, Kind, Metric, Population
from aiperf_svc.domain.metric_formulas import Floats
from aiperf_svc.domain.outcomes import Outcome


def objective_batches(
    rows: PhaseRows, clocks: ClockMap, slo: Slo, window: LoadWindow, *, without_row: int
) -> tuple[ObjectiveBatches, ...]:
    """Return the batches of every objective on a percentile or average of requests, and of the
    goodput. A batch contains the requests due in its time. An objective is skipped if a batch has
    too few requests for it, and so is an average if a request was cut, since that request has no
    value. `without_row` is the number of due requests without a row, because they were never sent
    or their records were lost."""
    begin, end = window.steady_ns, window.stop_ns
    if not end:
        dues = [int(_due(chunk, clocks).max()) for chunk in rows.chunks()]
        end = max(dues, default=begin) + 1
    found = [
        _with_rowless(each, without_row) for each in batches_between(rows, clocks, slo, begin, end)
    ]
    return tuple(
        each
        for each in found
        if min(each.counts) >= MIN_BATCH_SIZE and np.isfinite(each.totals).all()
    )


def batches_between(
    rows: PhaseRows, clocks: ClockMap, slo: Slo, begin: int, end: int
) -> tuple[ObjectiveBatches, ...]:
    """Return the batches between `begin` and `end` of the timing manager's clock, however few
    requests they have. The objectives and their order do not depend on the rows."""
    if end <= begin:
        return ()
    found = [
        _objective_batches(rows, clocks, objective, bound, begin, end)
        for objective in slo.objectives
        for bound in objective.bounds
    ]
    if slo.goodput:
        found.append(_goodput_batches(rows, clocks, slo, begin, end))
    return tuple(each for each in found if each)


def _with_rowless(found: ObjectiveBatches, count: int) -> ObjectiveBatches:
    """Return the batches including due requests without a row, if they cover due requests. Their
    due times are unknown, so every batch gets an equal share, and all count as beyond the limit."""
    is_goodput = found.metric == GOODPUT
    if not count or not (is_goodput or CATALOG[found.metric].population is Population.DUE):
        return found
    shares = [count * (at + 1) // BATCHES - count * at // BATCHES for at in range(BATCHES)]
    totals: Sequence[float] = [0] * BATCHES
    if found.stat == "avg":
        totals = [math.inf] * BATCHES
    elif is_goodput or found.bound == "max":
        totals = shares
    return msgspec.structs.replace(
        found,
        counts=tuple(map(sum, zip(found.counts, shares, strict=True))),
        totals=tuple(map(sum, zip(found.totals, totals, strict=True))),
    )


def allowed_share(stat: str, bound: str) -> float | None:
    """Return the maximum share of requests beyond a limit on a percentile; None for other
    statistics."""
    if stat not in QUANTILES:
        return None
    return round(QUANTILES[stat] if bound == "min" else 1 - QUANTILES[stat], 12)


def _objective_batches(
    rows: PhaseRows,
    clocks: ClockMap,
    objective: Objective,
    bound_and_limit: tuple[Bound, float | str],
    begin: int,
    end: int,
) -> ObjectiveBatches | None:
    metric, stat = CATALOG[objective.metric], objective.stat
    if metric.kind is not Kind.RECORD or stat not in ("avg", *QUANTILES):
        return None
    bound, limit = bound_and_limit[0], limit_of(metric.shown_unit, bound_and_limit[1])
    counts, totals = np.zeros(BATCHES, dtype=np.int64), np.zeros(BATCHES)
    for every in rows.chunks(metric.population):
        chunk = every if metric.population is Population.SENT else exclude_abandoned(every)
        values = _values(metric, chunk)
        known = ~np.isnan(values)
        values, batch = values[known], _batch(_due(chunk, clocks), begin, end)[known]
        inside = batch >= 0
        values, batch = values[inside], batch[inside]
        if stat != "avg":
            values = (values > limit if bound == "max" else values < limit).astype(np.float64)
        counts += np.bincount(batch, minlength=BATCHES)
        totals += np.bincount(batch, weights=values, minlength=BATCHES)
    return ObjectiveBatches(
        metric=metric.tag,
        stat=stat,
        bound=bound,
        limit=limit,
        counts=tuple(counts.tolist()),
        totals=tuple(totals.tolist()),
    )


def _goodput_batches(
    rows: PhaseRows, clocks: ClockMap, slo: Slo, begin: int, end: int
) -> ObjectiveBatches:
    counts, bad = np.zeros(BATCHES, dtype=np.int64), np.zeros(BATCHES)
    for every in rows.chunks(Population.DUE):
        chunk = exclude_abandoned(every)
        good = is_good(chunk, slo.goodput) & (chunk["outcome"] == Outcome.COMPLETED)
        batch = _batch(_due(chunk, clocks), begin, end)
        inside = batch >= 0
        counts += np.bincount(batch[inside], minlength=BATCHES)
        bad += np.bincount(batch[inside], weights=~good[inside], minlength=BATCHES)
    parts = tuple(counts.tolist()), tuple(bad.tolist())
    return ObjectiveBatches(
        metric=GOODPUT, stat="", bound="min", limit=None, counts=parts[0], totals=parts[1]
    )


def _values(metric: Metric, chunk: Chunk) -> Floats:
    """Return the values of requests; infinity for a request that was cut, since its value may be
    beyond any limit."""
    assert metric.compute is not None
    if metric.population is not Population.DUE:
        return metric.compute(chunk)
    values, is_cut = due_values(metric, chunk)
    values[is_cut] = np.inf
    return values


def _due(chunk: Chunk, clocks: ClockMap) -> NDArray[np.int64]:
    """Return the due times by the timing manager's clock."""
    return clocks.to_timing(chunk["due_wall_ns"], chunk["worker"])


def _batch(due: NDArray[np.int64], begin: int, end: int) -> NDArray[np.int64]:
    """Return the batch of each request; -1 during the ramp and after the end."""
    batch: NDArray[np.int64] = (due - begin) * BATCHES // (end - begin)
    return np.where((batch < 0) | (batch >= BATCHES), -1, batch)
