"""Measured numbers are short, keep what matters, and are the same on a terminal and in a page."""

from html import unescape

import pytest

from aiperf_svc.adapters.report.blocks import Note, check_table, markup, number_cell
from aiperf_svc.core.verdict.check_result import graded
from aiperf_svc.domain.number_text import number, quantity


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


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.25, "ratio", "25%"),
        (1614.0, "us", "1.614 ms"),
        (3.0, "count", "3"),
        (2.0, "cores", "2 cores"),
    ],
)
def test_a_quantity_has_its_unit(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit, high=value) == text


def test_checks_in_a_report_have_units() -> None:
    reason = graded("event_loop", 1500.0, 100.0, unit="ms", text="late", remedy="more CPU")
    assert "<td>1.500 s</td><td>0.1000 s</td>" in markup(check_table([reason]))
