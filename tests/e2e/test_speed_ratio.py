"""CPU of a request against that of `wrk` in one run: a regression shows on any machine, however
fast it is. Rates would depend on what else the machine does: we are several processes, wrk is one.
"""

import shutil
from collections.abc import Callable

import pytest

from benchmarks.speed.cases import Figures, requests, streams

pytestmark = pytest.mark.alone
RECORDED = {"requests": 2.5, "streams": 2.2}
"""Our CPU by wrk's, medians of quick runs."""


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed (Debian package wrk)")
@pytest.mark.parametrize("case", [requests, streams], ids=lambda case: case.__name__)
def test_cpu_is_within_twice_the_recorded_ratio(case: Callable[..., Figures]) -> None:
    figures = case(is_quick=True)
    assert figures["cpu_to_wrk"] < RECORDED[case.__name__] * 2, figures
