"""Token counts drawn from a configured distribution."""

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.models import Length


def draw_lengths(length: Length, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`count` whole token counts of a normal distribution; what falls below one is one.

    The first values do not depend on `count`, so a longer dataset begins with the shorter one.
    """
    drawn = rng.normal(length.mean, length.stddev, size=count)
    return np.maximum(np.rint(drawn), 1).astype(np.int64)
