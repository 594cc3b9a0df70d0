"""Finds the steady-state window of a run at a fixed concurrency, as MLPerf Endpoints 1.0 reports it
(rules, section 4.4; detector of mlcommons/endpoints, metrics/steady_state_diagnostics).

Requests in the order of their starts are divided into super-passes, each the size of the dataset.
The window is the first series of at least four super-passes, after the initial ramp, in which P50
and P90 of the time per output token have no trend and little scatter. A trend counts if the
Mann-Kendall test, with the correction of Hamed and Rao (1998) for autocorrelation, is significant
at 5% and the fitted line changes by at least 5% from end to end.
"""

import math
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.domain.metric_formulas import Floats

MIN_PASSES = 4
"""Minimum super-passes of a window."""
MAX_SCATTER = 0.08
"""Maximum standard deviation over the super-passes, as a share of their mean."""
MIN_DRIFT = 0.05
"""Minimum change from end to end, as a share of the median, that counts as a trend."""
SIGNIFICANCE = 0.05
RAMP_BAND = 0.05
"""Initial super-passes that differ by more than this share from the median of the run's second half
belong to the ramp. The first one always does, and the ramp has at most half of all."""
_PERCENTILES = (0.5, 0.9)
_Z_95 = 1.96
_NEVER = -1


class Requests(NamedTuple):
    """The requests of a run, in the order of sending. A value is NaN if the request failed or had
    only one token."""

    start_ns: NDArray[np.int64]
    ttft_ms: Floats
    tpot_ms: Floats
    latency_ms: Floats
    output_tokens: Floats

    def part(self, begin: int, end: int) -> "Requests":
        """Return the requests from one position up to another."""
        return Requests._make(column[begin:end] for column in self)

    @property
    def issue_span_s(self) -> float:
        """Time from the first to the last start."""
        return float(self.start_ns[-1] - self.start_ns[0]) / 1e9 if len(self.start_ns) else 0.0


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The steady-state window of a run."""

    super_passes: int
    """Whole super-passes of the run."""
    ramp: int = 0
    """Super-passes excluded at its beginning."""
    first: int = 0
    """The first super-pass of the window, from 0."""
    length: int = 0
    """Number of super-passes in it; 0: no window was found."""
    begin: int = 0
    end: int = 0
    """Its requests, as begin and exclusive end."""
    drift: float = 0.0
    """Change of P50 of the time per token from end to end of the part after the ramp, as a share of
    its median."""
    has_trend: bool = False
    """True if this change counts as a trend."""


def find_window(requests: Requests, pass_size: int, min_s: float) -> Window:
    """Return the first steady series of super-passes whose starts span at least `min_s`, or else
    the longest one. An incomplete last super-pass is ignored."""
    count = len(requests.start_ns) // pass_size
    series = [
        [
            _percentile(requests.tpot_ms[i * pass_size : (i + 1) * pass_size], p)
            for i in range(count)
        ]
        for p in _PERCENTILES
    ]
    p50, p90 = map(np.asarray, series)
    ramp = _ramp(p50)
    after = p50[ramp:]
    is_known = len(after) > 1 and not np.isnan(after).any()
    found = Window(
        super_passes=count,
        ramp=ramp,
        drift=relative_drift(after) if is_known else 0.0,
        has_trend=has_trend(after),
    )
    best_s = float(_NEVER)
    for first, last in _plateaus(p50, p90, ramp):
        begin, end = first * pass_size, last * pass_size
        span_s = requests.part(begin, end).issue_span_s
        if span_s > best_s:
            best_s = span_s
            found = msgspec.structs.replace(
                found, first=first, length=last - first, begin=begin, end=end
            )
        if span_s >= min_s:
            break
    return found


def _percentile(values: Floats, share: float) -> float:
    """Return sorted[floor(share (n - 1))]; NaN without a value."""
    known = np.sort(values[~np.isnan(values)])
    return float(known[int(share * (len(known) - 1))]) if len(known) else math.nan


def _ramp(p50: Floats) -> int:
    count = len(p50)
    if count < MIN_PASSES or np.isnan(p50[count // 2 :]).all():
        return min(1, count)
    level = float(np.nanmedian(p50[count // 2 :]))
    is_off = np.abs(p50 - level) > RAMP_BAND * level
    ramp = 0
    while ramp < max(1, count // 2) and is_off[ramp]:
        ramp += 1
    return max(1, ramp)


def _plateaus(p50: Floats, p90: Floats, ramp: int) -> list[tuple[int, int]]:
    """Return the longest steady series, each starting where the previous one ends."""
    found, first = [], ramp
    while first + MIN_PASSES <= len(p50):
        last = first + MIN_PASSES - 1
        while last < len(p50) and all(_is_steady(each[first : last + 1]) for each in (p50, p90)):
            last += 1
        if last - first >= MIN_PASSES:
            found.append((first, last))
            first = last
        else:
            first += 1
    return found


def _is_steady(values: Floats) -> bool:
    if np.isnan(values).any() or float(values.std()) > MAX_SCATTER * float(values.mean()):
        return False
    return not has_trend(values)


def has_trend(values: Floats) -> bool:
    """Return whether consecutive values rise or fall, significantly and by a relevant amount."""
    if len(values) < MIN_PASSES or np.isnan(values).any():
        return False
    return abs(relative_drift(values)) >= MIN_DRIFT and trend_p(values) < SIGNIFICANCE


def relative_drift(values: Floats) -> float:
    """Return the change of the fitted line from end to end, as a share of the median."""
    places = np.arange(len(values)) - (len(values) - 1) / 2
    slope = float(places @ values) / float(places @ places)
    return slope * (len(values) - 1) / float(np.median(values))


def trend_p(values: Floats) -> float:
    """Return the two-sided probability of a trend at least as strong among values without one."""
    count = len(values)
    # One row at a time, since there may be as many values as requests.
    score = float(sum(np.sign(values[at + 1 :] - values[at]).sum() for at in range(count - 1)))
    _, ties = np.unique(values, return_counts=True)
    variance = count * (count - 1) * (2 * count + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()
    variance = float(variance) / 18 * _correction(values)
    if variance <= 0:
        return 0.0 if score else 1.0
    z = max(0.0, abs(score) - 1) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))


def _correction(values: Floats) -> float:
    """Return the factor of the variance for the autocorrelation of the ranks; 1 if it would not be
    positive."""
    count = len(values)
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable") - (count - 1) / 2
    lags = np.arange(1, count)
    shares = np.array([ranks[lag:] @ ranks[:-lag] for lag in lags]) / (ranks @ ranks)
    weights = (count - lags) * (count - lags - 1) * (count - lags - 2)
    known = np.abs(shares) > _Z_95 / math.sqrt(count)
    factor = 1 + 2 / (count * (count - 1) * (count - 2)) * float((weights * shares)[known].sum())
    return factor if factor > 0 else 1.0
