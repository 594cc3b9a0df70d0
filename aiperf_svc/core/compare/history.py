"""A metric over many runs: where it changed and by how much.

A change point splits the runs into two parts with different levels. The search finds the split with
the largest weighted difference of mean ranks (Pettitt's statistic, with the weights of a likelihood
ratio). It then computes how often random orders of the same values reach that difference. If that
is rare, the split is a change, and both parts are searched again. Ranks limit the influence of an
outlier; random orders make the test valid for any distribution.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

import msgspec
import numpy as np

from aiperf_svc.core.compare.comparison import RunName, Word, direction, refuse_other_units
from aiperf_svc.core.compare.estimates import share
from aiperf_svc.core.compare.measured_run import MeasuredRun, RowKey
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.domain.errors import ConfigError, Incomparable
from aiperf_svc.domain.metric_formulas import Floats

SCHEMA = "history/1"
SIGNIFICANCE = 0.01
"""Share of series without a change in which one is found: false alarms."""
ORDERS = 1999
"""Number of random orders; the smallest share they can resolve is 1/2000."""
MIN_SIDE_RUNS = 4
"""Minimum runs on each side of a change. Of 4 and 4 runs, 1 order in 35 has the largest difference
by chance, of 5 and 5 runs 1 in 126: a change is found with 5 runs on each side at the earliest."""
_BLOCK = 1 << 22
"""Maximum values of random orders in memory."""
_MAX_ORDERS = 200
"""Maximum random orders between two checks of whether a change can still be found."""


class HistoryRun(msgspec.Struct, frozen=True, kw_only=True):
    folder: str
    run_id: str
    start_wall_ns: int
    value: float
    verdict: str
    changed_keys: tuple[str, ...] = ()
    """Keys of config and environment that differ from the previous run."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    place: int
    """Index of the first run after it."""
    before: float
    after: float
    """Mean of the runs up to the next change."""
    delta: float
    """(after - before) / before."""
    p: float
    """Share of random orders with a difference at least this large."""
    word: Word


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A metric over runs. `history --json` prints it unchanged."""

    schema_version: str = SCHEMA
    kind: str
    metric: RowKey
    info: MetricInfo
    tolerance: float
    runs: tuple[HistoryRun, ...]
    """By time."""
    levels: tuple[float, ...]
    """Mean of each run's part."""
    changes: tuple[Change, ...]
    left_out: tuple[RunName, ...]
    """Runs whose verdict is `invalid`, that lack the metric, or that have no results."""


def history(runs: Sequence[MeasuredRun], metric: str, *, tolerance: float) -> History:
    """Return the series of a metric (`tag` or `tag:stat`, empty for the first of the headline),
    with the changes above the tolerance. Runs without the metric are skipped, such as those of
    other kinds.

    Raises Incomparable and ConfigError.
    """
    ordered = sorted(runs, key=lambda run: (run.start_wall_ns, run.run_id))
    if not metric:
        _refuse_several_kinds([run for run in ordered if not run.failure])
    key = _key(ordered, metric)
    used = [run for run in ordered if run.is_usable and key in run.values]
    _refuse_several_kinds(used)
    if not used:
        raise Incomparable(f"no run with a usable verdict has {key}")
    refuse_other_units(used, [key])
    values = [run.values[key].value for run in used]
    info = used[0].metrics[key.tag]
    changes, levels = _changes(values, info, tolerance)
    return History(
        kind=used[0].kind,
        metric=key,
        info=info,
        tolerance=tolerance,
        runs=tuple(
            _run(run, used[index - 1] if index else run, key) for index, run in enumerate(used)
        ),
        levels=tuple(levels),
        changes=tuple(changes),
        left_out=tuple(
            RunName(run.folder, run.run_id, run.label) for run in ordered if run not in used
        ),
    )


def _refuse_several_kinds(runs: Sequence[MeasuredRun]) -> None:
    kinds = {run.kind: run for run in runs}
    if len(kinds) > 1:
        named = "; ".join(
            f"{run.folder} is one of {kind}"
            + (f" (--metric {run.headline[0]})" if run.headline else "")
            for kind, run in kinds.items()
        )
        raise Incomparable(f"runs of different kinds; select one kind by its metric: {named}")


def change_points(values: Sequence[float]) -> dict[int, float]:
    """Map the index of the first value after each change to its p value, in order."""
    found: dict[int, float] = {}
    generator = np.random.default_rng(0)
    waiting = [(0, len(values))]
    numbers = np.asarray(values, dtype=np.float64)
    while waiting:
        begin, end = waiting.pop()
        split = _split(numbers[begin:end], generator)
        if split is not None:
            place, p = begin + split[0], split[1]
            found[place] = p
            waiting += [(begin, place), (place, end)]
    return dict(sorted(found.items()))


def _split(values: Floats, generator: np.random.Generator) -> tuple[int, float] | None:
    count = len(values)
    if count < 2 * MIN_SIDE_RUNS:
        return None
    ranks = _ranks(values)
    ranks -= ranks.mean()
    scores = _scores(ranks[None, :])[0]
    best = int(scores.argmax())
    larger, remaining = 0, ORDERS
    while remaining:
        some = min(remaining, _MAX_ORDERS, max(1, _BLOCK // count))
        orders = generator.permuted(np.broadcast_to(ranks, (some, count)), axis=1)
        larger += int((_scores(orders).max(axis=1) >= scores[best] - 1e-9).sum())
        remaining -= some
        p = (larger + 1) / (ORDERS + 1)
        if p >= SIGNIFICANCE:
            return None
    return best + MIN_SIDE_RUNS, p


def _scores(ranks: Floats) -> Floats:
    """Return the statistic of each split, by row, for ranks around 0. The first split has
    `MIN_SIDE_RUNS` values on its left."""
    count = ranks.shape[1]
    sizes = np.arange(MIN_SIDE_RUNS, count - MIN_SIDE_RUNS + 1)
    sums = np.abs(np.cumsum(ranks, axis=1)[:, MIN_SIDE_RUNS - 1 : count - MIN_SIDE_RUNS])
    found: Floats = sums / np.sqrt(sizes * (count - sizes) / count)
    return found


def _ranks(values: Floats) -> Floats:
    """Return the ranks; equal values get their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Floats = (ends - (counts - 1) / 2)[place]
    return ranks


def _changes(
    values: Sequence[float], info: MetricInfo, tolerance: float
) -> tuple[list[Change], list[float]]:
    """Return the changes above the tolerance, and the level of each value between changes."""
    points = change_points(values)
    while True:
        edges = [0, *points, len(values)]
        means = [fmean(values[a:b]) for a, b in pairwise(edges)]
        gaps = [share(b - a, a) for a, b in pairwise(means)]
        small = [place for place, gap in zip(points, gaps, strict=True) if abs(gap) <= tolerance]
        if not small:
            break
        # Without the smallest change, the levels on both sides become one level.
        smallest = min(small, key=lambda place: abs(gaps[list(points).index(place)]))
        del points[smallest]
    changes = [
        Change(
            place=place,
            before=means[at],
            after=means[at + 1],
            delta=gaps[at],
            p=p,
            word=direction(gaps[at], info),
        )
        for at, (place, p) in enumerate(points.items())
    ]
    sizes = [b - a for a, b in pairwise(edges)]
    levels = [mean for mean, size in zip(means, sizes, strict=True) for _ in range(size)]
    return changes, levels


def _key(runs: Sequence[MeasuredRun], metric: str) -> RowKey:
    known = list(dict.fromkeys(key for run in runs for key in run.values))
    if not metric:
        headline = [key for run in runs for key in run.headline if key in run.values]
        if not headline:
            raise Incomparable("no run has a metric")
        return headline[0]
    matching = [key for key in known if str(key) == metric] or [
        key for key in known if key.tag == metric
    ]
    if not matching:
        tags = ", ".join(dict.fromkeys(key.tag for key in known))
        raise ConfigError(f"--metric {metric}: no run has it; they have {tags}")
    if len(matching) > 1:
        stats = ", ".join(map(str, matching))
        raise ConfigError(f"--metric {metric}: choose a statistic: {stats}")
    return matching[0]


def _run(run: MeasuredRun, before: MeasuredRun, key: RowKey) -> HistoryRun:
    names = dict.fromkeys((*before.facts, *run.facts))
    changed = [name for name in names if before.facts.get(name) != run.facts.get(name)]
    return HistoryRun(
        folder=run.folder,
        run_id=run.run_id,
        start_wall_ns=run.start_wall_ns,
        value=run.values[key].value,
        verdict=run.label,
        changed_keys=tuple(name for name in changed if name not in ("verdict", "system")),
    )
