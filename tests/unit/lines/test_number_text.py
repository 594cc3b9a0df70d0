"""Compiled number formatting equals Python's at a fraction of its cost."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aiperf_svc.core.lines import number_text
from aiperf_svc.core.lines.number_text import (
    DECIMAL,
    INTEGER,
    PADDED,
    Text,
    decimal_text,
    integer_text,
    interpreted_filled,
    padded_text,
)

compiled = number_text.compiled  # type: ignore[attr-defined]
needs_compiled = pytest.mark.skipif(compiled is None, reason="nothing is compiled: `make`")
both = pytest.mark.parametrize(
    "filled",
    [
        interpreted_filled,
        pytest.param(compiled and compiled.filled, marks=needs_compiled, id="compiled"),
    ],
)
Filled = Callable[[list[bytes], bytes, list[Any], int], bytes]


def rendered(text: Text) -> list[bytes]:
    return [bytes(row).replace(b"\0", b"") for row in text]


def shortest(value: float) -> bytes:
    """Return up to six decimals and at least one."""
    text = f"{value:.6f}".rstrip("0")
    return (text + "0" if text.endswith(".") else text).encode()


POWERS = [10**i for i in range(19)]


@pytest.mark.parametrize(
    "values",
    [
        [0],
        [7, 10, 9_999, 10_000, 10_001, 100_000_000],
        [1_795_227_878_942_879_812, 0, 3],
        [-1, 0, 12_345],
        POWERS + [power - 1 for power in POWERS],
        [],
    ],
)
def test_integers_are_written_as_python_writes_them(values: list[int]) -> None:
    assert rendered(integer_text(np.array(values, dtype=np.int64))) == [b"%d" % v for v in values]


def test_decimals_have_one_to_six_places() -> None:
    values = [0.0, 20.0, 0.5, 0.12, 14.404948, 0.000001, 999_999.999999, 10.01, -0.25, 1e9]
    assert rendered(decimal_text(np.array(values))) == [shortest(value) for value in values]


def test_random_decimals_are_right_to_the_nanosecond() -> None:
    random = np.random.default_rng(3)
    values = random.random(500) * 10.0 ** random.integers(-6, 9, 500)
    found = [float(text) for text in rendered(decimal_text(values))]
    assert found == pytest.approx(values, abs=5.1e-7)


def test_columns_of_several_rows_keep_their_shape() -> None:
    values = np.array([[1, 22, 333], [4, 5, 66_666]])
    text = integer_text(values)
    assert text.shape[:2] == (2, 3)
    assert [rendered(column) for column in text] == [[b"1", b"22", b"333"], [b"4", b"5", b"66666"]]


def test_padded_integers_have_six_digits_at_least() -> None:
    assert rendered(padded_text(np.array([0, 47, 1_234_567]))) == [b"000000", b"000047", b"1234567"]


@both
def test_pieces_and_numbers_become_one_text(filled: Filled) -> None:
    columns = [np.array([5, 123_456]), np.array([7, 1]), np.array([0.25, -3.0])]
    text = filled([b"<", b"|", b",", b">\n"], INTEGER + PADDED + DECIMAL, columns, 2)
    assert text == b"<5|000007,0.25>\n<123456|000001,-3.0>\n"


@both
def test_text_of_an_empty_column_is_empty(filled: Filled) -> None:
    assert filled([b"<", b">"], INTEGER, [np.array([], dtype=np.int64)], 0) == b""


@both
@pytest.mark.parametrize(
    ("pieces", "columns"), [([b"", b""], [np.array([1])]), ([b"", b"", b""], [np.array([1, 2])])]
)
def test_mismatched_pieces_and_columns_are_refused(
    filled: Filled, pieces: list[bytes], columns: list[Any]
) -> None:
    with pytest.raises(ValueError, match=r"so many numbers|between two pieces"):
        filled(pieces, INTEGER, columns, 2)


@needs_compiled
def test_compiled_text_is_the_interpreted_one() -> None:
    random = np.random.default_rng(5)
    count = 2_000
    integers = random.integers(-(10**18), 10**18, count) // 10 ** random.integers(0, 18, count)
    halves = random.integers(-(10**9), 10**9, count) / 2e6
    columns = [
        integers,
        np.abs(integers),
        random.random(count) * 10.0 ** random.integers(-9, 9, count),
        -halves,
    ]
    kinds, pieces = INTEGER + PADDED + DECIMAL + DECIMAL, [b"", b" ", b" ", b" ", b"\n"]
    assert compiled.filled(pieces, kinds, columns, count) == interpreted_filled(
        pieces, kinds, columns, count
    )
