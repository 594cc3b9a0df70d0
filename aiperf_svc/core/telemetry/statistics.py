"""Computes statistics of one series under load, in the form of AIPerf's
`server_metrics_export.json`."""

from collections.abc import Iterator
from math import isnan

import msgspec
import numpy as np

from aiperf_svc.core.telemetry.log import Curve, SourceLog, grown, within
from aiperf_svc.core.telemetry.page import Series

QUANTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
Labels = tuple[tuple[str, str], ...]


class Family(msgspec.Struct, frozen=True):
    """The series of a family with the same labels: one, or the parts of a histogram."""

    name: str
    """Without `_total`."""
    type: str
    """`gauge`, `counter`, `histogram` or `unknown`."""
    labels: Labels
    numbers: dict[str, int]
    """Number of each part: `value`, or the bounds of buckets, `sum` and `count`."""


def families(log: SourceLog) -> Iterator[Family]:
    """Yield the families of a source, by name and labels."""
    found: dict[tuple[str, Labels, str], Family] = {}
    for number, each in enumerate(log.series):
        name, part, labels, kind = _split_series(each.series, each.family, each.type)
        family = found.get((name, labels, kind))
        if family is None:
            family = found[name, labels, kind] = Family(name, kind, labels, {})
        family.numbers[part] = number
    yield from found.values()


def _split_series(series: Series, family: str, kind: str) -> tuple[str, str, Labels, str]:
    if kind == "histogram":
        part = series.name.removeprefix(family)
        if part == "_bucket" and _is_bound(series.label("le")):
            labels = tuple(pair for pair in series.labels if pair[0] != "le")
            return family, series.label("le"), labels, kind
        if part in ("_sum", "_count"):
            return family, part.removeprefix("_"), series.labels, kind
    kind = kind if kind in ("gauge", "counter") else "unknown"
    return series.name.removesuffix("_total"), "value", series.labels, kind


def _is_bound(text: str) -> bool:
    """Return whether the text is a valid bucket bound."""
    try:
        return not isnan(float(text))
    except ValueError:
        return False


def statistics(family: Family, log: SourceLog, begin_ns: int, end_ns: int) -> dict[str, object]:
    """Return `stats` of a family under load, and the `buckets` of a histogram."""
    length_s = max((end_ns - begin_ns) / 1e9, 1e-9)
    if family.type == "histogram":
        return _histogram_stats(family, log, begin_ns, end_ns, length_s)
    curve = log.curve(family.numbers["value"])
    if family.type == "counter":
        return {"stats": _counter_stats(curve, begin_ns, end_ns, length_s)}
    values = within(curve, begin_ns, end_ns)
    values = values[np.isfinite(values)]
    if not len(values):
        return {"stats": {}}
    stats = {
        "avg": float(values.mean()),
        "min": float(values.min()),
        "max": float(values.max()),
        "std": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
    }
    levels = np.percentile(values, QUANTILES)
    return {"stats": stats | {f"p{q}": float(v) for q, v in zip(QUANTILES, levels, strict=True)}}


def _counter_stats(curve: Curve, begin_ns: int, end_ns: int, length_s: float) -> dict[str, float]:
    total = grown(curve, begin_ns, end_ns) or 0.0
    stats = {"total": total, "rate": total / length_s}
    is_loaded = (curve.wall_ns >= begin_ns) & (curve.wall_ns <= end_ns) & ~np.isnan(curve.values)
    times, values = curve.wall_ns[is_loaded], curve.values[is_loaded]
    if total and len(values) > 1:
        lengths_s = np.diff(times) / 1e9
        rates = np.diff(values) / np.maximum(lengths_s, 1e-9)
        stats |= {
            "rate_avg": float(rates.mean()),
            "rate_min": float(rates.min()),
            "rate_max": float(rates.max()),
            "rate_std": float(rates.std(ddof=1)) if len(rates) > 1 else 0.0,
        }
    return stats


def _histogram_stats(
    family: Family, log: SourceLog, begin_ns: int, end_ns: int, length_s: float
) -> dict[str, object]:
    growth = {
        part: grown(log.curve(number), begin_ns, end_ns) or 0.0
        for part, number in family.numbers.items()
    }
    count, total = growth.pop("count", 0.0), growth.pop("sum", 0.0)
    buckets = dict(sorted(growth.items(), key=lambda item: float(item[0])))
    if not count:
        return {"stats": {"count": 0}, "buckets": buckets}
    stats: dict[str, float] = {
        "count": count,
        "sum": total,
        "avg": total / count,
        "count_rate": count / length_s,
        "sum_rate": total / length_s,
    }
    for q in QUANTILES:
        stats[f"p{q}_estimate"] = quantile(buckets, q / 100)
    return {"stats": stats, "buckets": buckets}


def quantile(buckets: dict[str, float], share: float) -> float:
    """Return a quantile of cumulative buckets, interpolated within a bucket as in Prometheus.
    Beyond the last finite bound, return that bound."""
    bounds = [float(bound) for bound in buckets]
    counts = list(buckets.values())
    if not counts or not counts[-1]:
        return float("nan")
    wanted = share * counts[-1]
    below, start = 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=True):
        if count >= wanted:
            if bound == float("inf"):
                return start
            width = count - below
            return start + (bound - start) * ((wanted - below) / width if width else 1.0)
        below, start = count, bound
    return start
