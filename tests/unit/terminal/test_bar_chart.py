"""Bars in eighths of a character."""

from aiperf_svc.adapters.terminal.output import bar_chart, joined


def test_highest_value_fills_its_column() -> None:
    assert bar_chart([0, 1, 8, 16], height=2) == ["   █", " ▁██"]


def test_neighbours_are_joined_until_the_columns_fit() -> None:
    assert joined([0, 2, 4, 4, 8, 8, 0, 0], 4) == [1, 4, 8, 0]
    assert joined([8, 8, 8, 8, 8], 2) == [8, 2]


def test_a_small_value_is_seen() -> None:
    assert bar_chart([1000, 1], height=1) == ["█▁"]


def test_empty_values_have_no_chart() -> None:
    assert bar_chart([], height=2) == bar_chart([0.0], height=2) == []
