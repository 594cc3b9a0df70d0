"""CPU time per request relative to `wrk` in the same run. A regression shows on any machine,
however fast. Rates would depend on other load, because we are several processes and wrk is one."""

import shutil
from collections.abc import Callable

import pytest

from benchmarks.speed.cases import Figures, requests, streams

pytestmark = pytest.mark.alone
RECORDED = {"requests": 2.5, "streams": 2.2}
"""Our CPU time divided by that of wrk: medians of short runs."""


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed (Debian package wrk)")
@pytest.mark.parametrize("case", [requests, streams], ids=lambda case: case.__name__)
def test_cpu_is_within_twice_the_recorded_ratio(case: Callable[..., Figures]) -> None:
    figures = case(is_quick=True)
    assert figures["cpu_to_wrk"] < RECORDED[case.__name__] * 2, figures
