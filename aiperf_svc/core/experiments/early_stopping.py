"""Early stopping in the manner of MLPerf's LoadGen: what a finite run proves about a percentile.

A run of `n` queries proves, with a confidence of 99%, that a percentile `p` is below a limit if at
most `t` of the queries are beyond it and `n` is at least `h(t) + t`. `h(t)` is the smallest number
of queries within the limit for which so few failures would come by chance with a probability below
1% if the true share were just `p`: the regularised incomplete beta function of `p` with `h` and
`t + 1` (MLPerf Inference rules, appendix on early stopping). The other way round, the latency below
which all but `t` queries lie is an estimate of the percentile that is never too low.
"""

from aiperf_svc.core.compare.student import incomplete_beta
from aiperf_svc.domain.metric_formulas import Floats

CONFIDENCE = 0.99


def least_within(beyond: int, percentile: float) -> int:
    """Return the fewest queries within the limit with which `beyond` queries beyond it still prove
    the percentile (0 to 1)."""
    low, high = 0, 1
    while not _is_proof(high, beyond, percentile):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if _is_proof(middle, beyond, percentile):
            high = middle
        else:
            low = middle
    return high


def is_proven(queries: int, beyond: int, percentile: float) -> bool:
    """Return whether a run with so many queries, `beyond` of them beyond the limit, proves that the
    percentile is within it."""
    return queries - beyond > 0 and _is_proof(queries - beyond, beyond, percentile)


def least_queries(percentile: float) -> int:
    """Return the fewest queries of a run that allow an estimate of the percentile."""
    return least_within(1, percentile) + 1


def most_beyond(queries: int, percentile: float) -> int:
    """Return how many of the slowest queries an estimate of the percentile leaves out at most; 0:
    too few queries for an estimate."""
    low, high = 0, max(1, int(queries * (1 - percentile)) + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if is_proven(queries, middle, percentile):
            low = middle
        else:
            high = middle
    return low


def estimate(ordered: Floats, percentile: float) -> float | None:
    """Return the estimate of a percentile from sorted values; None if there are too few."""
    beyond = most_beyond(len(ordered), percentile)
    return float(ordered[len(ordered) - beyond]) if beyond else None


def _is_proof(within: int, beyond: int, percentile: float) -> bool:
    return incomplete_beta(within, beyond + 1, percentile) < 1 - CONFIDENCE
