"""Speed against `wrk` in one run on the same cores: a regression shows on any machine, however fast
it is and whatever else it does."""

import shutil
from collections.abc import Callable

import pytest

from benchmarks.speed.cases import Figures, requests, streams

pytestmark = pytest.mark.alone
RECORDED = {"requests": 0.45, "streams": 0.93}
"""The ratios to wrk in docs/performance.md."""


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed (Debian package wrk)")
@pytest.mark.parametrize("case", [requests, streams], ids=lambda case: case.__name__)
def test_speed_exceeds_half_of_the_recorded_ratio(case: Callable[..., Figures]) -> None:
    figures = case(is_quick=True)
    assert figures["ratio_to_wrk"] > RECORDED[case.__name__] / 2, figures
