"""Student's t distribution: the probability of a value and the quantile of a probability.

Both use the regularised incomplete beta function, computed by its continued fraction (Lentz's
method; Press et al., Numerical Recipes, 3rd edition, 6.4). Tests compare them with tables.
"""

import math
from functools import lru_cache

CONFIDENCE = 0.95
"""Probability of the displayed intervals."""
_TINY = 1e-300
_CLOSE = 1e-15
_SMALL_STEP = 1e-12
"""Relative step size that ends the iteration. The next step would be about its square."""
_MAX_STEPS = 1_000
"""Enough for any result below 1e300: far out, each step doubles it."""
_MAX_TERMS = 10_000
"""Enough terms of the fraction for millions of degrees of freedom or of requests."""


def two_sided_p(t: float, freedom: float) -> float:
    """Return the probability of a value at least as far from 0 as `t`, with `freedom` degrees."""
    if math.isinf(t):
        return 0.0
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


@lru_cache
def quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return `t` such that a value is between `-t` and `t` with this probability.

    Uses Newton's method. The tail probability is convex in `t`, so steps from below do not
    overshoot. Results are cached, since most rows of a comparison have the same degrees of
    freedom.
    """
    t = 0.0
    for _ in range(_MAX_STEPS):
        step = (two_sided_p(t, freedom) - (1 - confidence)) / (2 * _density(t, freedom))
        t += step
        if step <= _SMALL_STEP * t:
            break
    return t


def _density(t: float, freedom: float) -> float:
    log_front = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    log_front -= math.log(freedom * math.pi) / 2
    return math.exp(log_front - (freedom + 1) / 2 * math.log1p(t * t / freedom))


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), for positive a and b."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        # The fraction converges fast only on the other side.
        return 1 - incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front += a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * _continued_fraction(a, b, x) / a


def _continued_fraction(a: float, b: float, x: float) -> float:
    above, below = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    result = below
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            below = 1 / _nonzero(1 + term * below)
            above = _nonzero(1 + term / above)
            result *= below * above
        if abs(below * above - 1) < _CLOSE:
            break
    return result


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
