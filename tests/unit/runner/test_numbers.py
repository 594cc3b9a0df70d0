"""Numbers in a terminal are short and keep what matters."""

import pytest

from aiperf_svc.runner.numbers import count, milliseconds, number, seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (12.0, "12"),
        (12345.0, "12,345"),
        (1234.56, "1,235"),
        (999.96, "1,000"),
        (123.456, "123.5"),
        (12.3456, "12.35"),
        (1.23456, "1.235"),
        (0.123456, "0.1235"),
        (0.0004, "<0.001"),
        (-0.0004, ">-0.001"),
        (-12.3456, "-12.35"),
        (None, "–"),
    ],
)
def test_a_number_has_four_significant_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_durations_grow_units() -> None:
    assert [seconds(s) for s in (4.24, 59.9, 61, 3725)] == ["4.2 s", "59.9 s", "1:01", "1:02:05"]
    assert [milliseconds(ms) for ms in (20.44, 1240.0, None)] == ["20.4 ms", "1.24 s", "–"]


def test_one_is_not_many() -> None:
    assert [count(1, "worker"), count(2000, "worker")] == ["1 worker", "2,000 workers"]
