"""Displayed measurements keep the significant digits and are the same everywhere."""

from html import unescape

import pytest

from aiperf_svc.adapters.report.blocks import (
    Cell,
    Note,
    check_table,
    markup,
    number_cell,
    objective_row,
    table,
)
from aiperf_svc.adapters.terminal.verdict_lines import print_objectives, print_verdict
from aiperf_svc.core.verdict.check_result import graded
from aiperf_svc.domain.number_text import number, quantity
from tests.support.fake_results import objective
from tests.support.terminal import on_console


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
        (5e-7, "ratio", "0.00005%"),
        (0.0, "us", "0 µs"),
    ],
)
def test_a_quantity_has_its_unit(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


@pytest.mark.parametrize(
    ("measured", "limit", "texts"),
    [
        (12e6, 40.0, ("12 s", "40 µs")),
        (40.0, 12e6, ("40 µs", "12 s")),
        (0.0, 250.0, ("0 µs", "250 µs")),
    ],
)
def test_measured_and_limit_have_their_own_units(
    measured: float, limit: float, texts: tuple[str, str]
) -> None:
    reason = graded("lag", measured, limit, unit="us", text="late", remedy="more CPU")
    assert f"<td>{texts[0]}</td><td>{texts[1]}</td>" in markup(check_table([reason]))
    shown = on_console(print_verdict, "Verdict", "degraded", "", [reason])
    assert f"lag: {texts[0]}, limit {texts[1]} → more CPU" in shown


def test_limit_of_an_objective_keeps_its_digits() -> None:
    close = objective(ok=False, limit=1234.56, measured=1234.6, unit="ms")
    small = objective(ok=False, limit=0.0004, measured=0.1, unit="%", metric="request_error_rate")
    shown = on_console(print_objectives, [close, small])
    assert "≤ 1,234.56 ms" in " ".join(shown.split())
    assert "≤ 0.0004 %" in " ".join(shown.split())
    row = objective_row("latency", close, Cell("1,235"))
    assert "≤ 1,234.56 ms" in unescape(markup(table(("Objective",), [row])))
