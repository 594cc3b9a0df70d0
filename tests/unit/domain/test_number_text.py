"""Numbers in a terminal are short and keep the significant digits."""

import pytest

from aiperf_svc.domain.number_text import count, counted, milliseconds, seconds, significant


def test_durations_grow_units() -> None:
    assert [seconds(s) for s in (4.24, 59.9, 61, 3725)] == ["4.2 s", "59.9 s", "1:01", "1:02:05"]
    assert [milliseconds(ms) for ms in (20.44, 1240.0, None)] == ["20.4 ms", "1.24 s", "–"]


def test_one_is_not_many() -> None:
    assert [count(1, "worker"), count(2000, "worker")] == ["1 worker", "2,000 workers"]
    assert counted(1, "request", "was") == "1 request was"
    assert counted(0, "object", "is") == "0 objects are"


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.0, 3, "0"),
        (0.05, 3, "0.05"),
        (20.44, 3, "20.4"),
        (999.4, 3, "999"),
        (999.6, 3, "1,000"),
        (2_280.4, 3, "2,280"),
        (-2_280.4, 3, "-2,280"),
        (1_234.56, 4, "1,235"),
        (123_456.7, 4, "123,457"),
        (4.567e-5, 3, "0.0000457"),
        (-4e-5, 3, "-0.00004"),
    ],
)
def test_significant_digits_have_no_exponent(value: float, digits: int, text: str) -> None:
    assert significant(value, digits) == text
