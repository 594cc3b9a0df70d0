"""A mergeable histogram of durations, log-linear like HdrHistogram but with IEEE 754 buckets.

The bits of a double, read as an integer, grow with its value. The exponent and the top seven bits
of the mantissa form the bucket number: 128 equal buckets per factor of two. A bucket's middle is
within 1/256 of every value in it, so percentiles are off by at most 0.4%. Count, sum, minimum and
maximum are exact, and merging is lossless: the histogram of the whole is the sum of the parts'
histograms.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.reports import HistogramDelta

RELATIVE_ERROR: Final = 1 / 256
"""Maximum relative error of a percentile."""

_SHIFT: Final = 52 - 7
_FIRST: Final = 1023 << 7
"""Raw bucket of 1.0. Bucket 0 is for zero, so 1 ns is in bucket 1."""
_MAX_NS: Final = 1 << 53
"""Maximum duration with a bucket: 104 days. Longer ones count as this."""
_BUCKETS: Final = 53 * 128 + 2

Durations = NDArray[np.int64]


def buckets_of(durations_ns: Durations) -> NDArray[np.int64]:
    """Return the bucket numbers of durations. Negative ones, caused by a clock step, count as
    zero."""
    values = np.minimum(durations_ns, _MAX_NS).astype(np.float64)
    numbers: NDArray[np.int64] = (values.view(np.int64) >> _SHIFT) - (_FIRST - 1)
    numbers[numbers < 0] = 0
    return numbers


def middle_of(bucket: int) -> float:
    """Return the value that represents a bucket: the middle of its whole nanoseconds."""
    if bucket <= 0:
        return 0.0
    raw = np.array([bucket + _FIRST - 1, bucket + _FIRST], dtype=np.int64) << _SHIFT
    low, high = raw.view(np.float64).tolist()
    return float(low + max(0.0, high - low - 1) / 2)


def delta_of(durations_ns: Durations, *, phase: Phase, tag: str) -> HistogramDelta:
    """Return the counts that nonempty `durations_ns` add to the histogram `tag`. Negative durations
    count as zero."""
    durations_ns = np.maximum(durations_ns, 0)
    numbers, counts = np.unique(buckets_of(durations_ns), return_counts=True)
    floats = durations_ns.astype(np.float64)
    return HistogramDelta(
        phase=phase,
        tag=tag,
        buckets=numbers.astype("<i4").tobytes(),
        counts=counts.astype("<i8").tobytes(),
        total=len(durations_ns),
        sum_ns=int(durations_ns.sum()),
        min_ns=int(durations_ns.min()),
        max_ns=int(durations_ns.max()),
        sum_squares=float(floats @ floats),
    )


class Histogram:
    """Histogram of all durations of one kind in one phase."""

    relative_error: float = RELATIVE_ERROR

    def __init__(self) -> None:
        self.total = 0
        self.sum_ns = 0
        self.min_ns = 0
        self.max_ns = 0
        self.sum_squares = 0.0
        self._counts = np.zeros(_BUCKETS, dtype=np.int64)

    def merge(self, delta: HistogramDelta) -> None:
        """Add the counts of another process. Raises ValueError for buckets that do not exist."""
        if not delta.total:
            return
        buckets = np.frombuffer(delta.buckets, dtype="<i4")
        counts = np.frombuffer(delta.counts, dtype="<i8")
        if len(buckets) != len(counts) or buckets.min() < 0 or buckets.max() >= _BUCKETS:
            raise ValueError(f"a delta of the histogram {delta.tag!r} with impossible buckets")
        self.min_ns = min(self.min_ns, delta.min_ns) if self.total else delta.min_ns
        self.max_ns = max(self.max_ns, delta.max_ns) if self.total else delta.max_ns
        self.total += delta.total
        self.sum_ns += delta.sum_ns
        self.sum_squares += delta.sum_squares
        np.add.at(self._counts, buckets, counts)

    def add(self, durations_ns: Durations) -> None:
        """Add durations, shape (n,)."""
        if len(durations_ns):
            self.merge(delta_of(durations_ns, phase=Phase.PROFILING, tag=""))

    def delta(self, *, phase: Phase, tag: str) -> HistogramDelta:
        """Return the counts so far, for merging in another process."""
        buckets = np.flatnonzero(self._counts)
        return HistogramDelta(
            phase=phase,
            tag=tag,
            buckets=buckets.astype("<i4").tobytes(),
            counts=self._counts[buckets].astype("<i8").tobytes(),
            total=self.total,
            sum_ns=self.sum_ns,
            min_ns=self.min_ns,
            max_ns=self.max_ns,
            sum_squares=self.sum_squares,
        )

    @property
    def zeros(self) -> int:
        """Number of durations that are zero, or negative because of a clock step."""
        return int(self._counts[0])

    @property
    def mean_ns(self) -> float:
        """Exact mean; NaN if empty."""
        return self.sum_ns / self.total if self.total else math.nan

    @property
    def std_ns(self) -> float:
        """Population standard deviation, from sums of doubles; NaN if empty."""
        if not self.total:
            return math.nan
        return math.sqrt(max(0.0, self.sum_squares / self.total - self.mean_ns**2))

    def percentile(self, q: float) -> float:
        """Return the quantile `q`, 0 to 1, in ns, interpolated between the two nearest values like
        numpy; NaN if empty."""
        if not self.total:
            return math.nan
        place = q * (self.total - 1)
        low = math.floor(place)
        ranks = np.array([low, math.ceil(place)])
        found = np.searchsorted(np.cumsum(self._counts), ranks, side="right").tolist()
        below, above = (self._clamped(middle_of(bucket)) for bucket in found)
        return below + (above - below) * (place - low)

    def _clamped(self, value_ns: float) -> float:
        return min(max(value_ns, float(self.min_ns)), float(self.max_ns))
