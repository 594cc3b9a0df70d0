"""How often services send messages, depending on their number."""

import pytest

from aiperf_svc.core.control.control_intervals import registering_interval_s


@pytest.mark.parametrize(
    ("members", "expected_s"), [(7, 0.02), (50, 0.02), (100, 0.04), (500, 0.2), (2_500, 0.2)]
)
def test_small_runs_register_again_within_milliseconds(members: int, expected_s: float) -> None:
    assert registering_interval_s(members) == pytest.approx(expected_s)
