"""Measured numbers are short, keep what matters, and are the same on a terminal and in a page."""

from html import unescape

import pytest

from aiperf_svc.adapters.report.blocks import Note, markup, number_cell
from aiperf_svc.domain.number_text import number


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
        (0.99996, "1.000"),
        (9.99996, "10.00"),
        (20.1, "20.10"),
        (0.0051812, "0.0052"),
        (0.0004, "<0.001"),
        (-0.0004, ">-0.001"),
        (-12.3456, "-12.35"),
        (None, "–"),
        (float("nan"), "–"),
        (float("inf"), "∞"),
        (float("-inf"), "-∞"),
    ],
)
def test_a_number_has_four_significant_digits(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize("value", [0.0004, 0.0051812, 0.8009, 20.1, 999.96, 12345.6, -0.0004])
def test_a_report_has_the_number_of_the_terminal(value: float) -> None:
    assert f">{number(value)}<" in unescape(markup(Note(number_cell(value).text)))
