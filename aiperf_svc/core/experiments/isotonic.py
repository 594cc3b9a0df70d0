"""Isotonic regression: the rising curve that is nearest to noisy points."""

import math
from collections.abc import Sequence


def rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the non-decreasing values with the least weighted squared distance from `values`, by
    pooling neighbours that fall (Ayer and others, Annals of Mathematical Statistics 26, 1955)."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, number of values
    for value, weight in zip(values, weights, strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (first, a, m), (second, b, n) = blocks[-2:]
            blocks[-2:] = [((first * a + second * b) / (a + b), a + b, m + n)]
    return [mean for mean, _, count in blocks for _ in range(count)]


def crossing(places: Sequence[float], values: Sequence[float], level: float) -> float | None:
    """Return where a rising curve through these points passes the level, between places on a
    logarithmic scale; None if it does not pass it."""
    for place in range(1, len(places)):
        low, high = values[place - 1], values[place]
        if low <= level < high:
            part = (level - low) / (high - low)
            return math.exp(
                math.log(places[place - 1]) * (1 - part) + math.log(places[place]) * part
            )
    return None
