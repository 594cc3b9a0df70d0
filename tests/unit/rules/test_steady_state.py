"""The steady-state window excludes ramps and ends at trends and steps."""

import numpy as np
import pytest

from aiperf_svc.core.rules.steady_state import (
    Requests,
    Window,
    find_window,
    relative_drift,
    trend_p,
)
from aiperf_svc.domain.metric_formulas import Floats

SIZE = 50
"""Requests of a super-pass."""


def window(levels: list[float], min_s: float = 0.0, noise: float = 0.01) -> Window:
    """Return the window of super-passes of a second each with these times per token in ms."""
    random = np.random.default_rng(7)
    tpot = np.repeat(levels, SIZE) * random.normal(1, noise, SIZE * len(levels))
    return find_window(requests(tpot), SIZE, min_s)


def requests(tpot: Floats) -> Requests:
    """Return requests that start at regular intervals."""
    starts = (np.arange(len(tpot)) * 1e9 / SIZE).astype(np.int64)
    return Requests(starts, tpot, tpot, tpot, np.full(len(tpot), 10.0))


def test_steady_run_loses_its_first_pass_alone() -> None:
    found = window([10.0] * 8)
    assert (found.ramp, found.first, found.length) == (1, 1, 7)
    assert (found.begin, found.end) == (SIZE, 8 * SIZE)
    assert not found.has_trend


def test_ramp_is_left_out() -> None:
    found = window([4.0, 6.0, 8.0, *[10.0] * 7])
    assert (found.ramp, found.first, found.length) == (3, 3, 7)


def test_drift_has_no_window_and_is_stated() -> None:
    found = window([10 * 1.08**place for place in range(12)])
    assert found.length == 0
    assert found.has_trend
    assert found.drift > 0.3


def test_step_ends_the_window() -> None:
    found = window([10.0] * 10 + [14.0] * 3)
    assert (found.first, found.length) == (1, 9)


def test_short_plateau_is_passed_over() -> None:
    found = window([10.0] * 6 + [14.0] * 9, min_s=7.0)
    assert found.first >= 6
    assert found.length >= 8


@pytest.mark.parametrize(("passes", "length"), [(4, 0), (5, 4)])
def test_window_needs_four_passes_after_the_ramp(passes: int, length: int) -> None:
    assert window([10.0] * passes).length == length


def test_incomplete_pass_is_not_used() -> None:
    found = find_window(requests(np.full(SIZE * 6 + 20, 10.0)), SIZE, 0.0)
    assert (found.super_passes, found.end) == (6, 6 * SIZE)


def test_steady_window_needs_streams() -> None:
    found = find_window(requests(np.full(SIZE * 6, np.nan)), SIZE, 0.0)
    assert found == Window(super_passes=6, ramp=1)


def test_trend_probability_matches_published_tables() -> None:
    # Five rising values: S = 10 and variance 50/3, so z = 9 / 4.082 and p = 0.0275.
    assert trend_p(np.array([1.0, 2.0, 3.0, 4.0, 5.0])) == pytest.approx(0.0275, abs=2e-4)
    assert trend_p(np.full(5, 3.0)) == 1.0


def test_drift_is_a_share_of_the_median() -> None:
    assert relative_drift(np.array([9.0, 10.0, 11.0])) == pytest.approx(0.2)
