"""Numbers as text: what Python's own formatting says, without its cost."""

import numpy as np
import pytest

from aiperf_svc.core.number_text import (
    Text,
    decimal_text,
    integer_text,
    joined,
    padded_text,
)


def said(text: Text) -> list[bytes]:
    return [bytes(row).replace(b"\0", b"") for row in text]


def shortest(value: float) -> bytes:
    """Up to six decimals and at least one."""
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
    assert said(integer_text(np.array(values, dtype=np.int64))) == [b"%d" % v for v in values]


def test_decimals_have_what_is_needed_of_six_places_and_at_least_one() -> None:
    values = [0.0, 20.0, 0.5, 0.12, 14.404948, 0.000001, 999_999.999999, 10.01, -0.25, 1e9]
    assert said(decimal_text(np.array(values))) == [shortest(value) for value in values]


def test_random_decimals_are_right_to_the_nanosecond() -> None:
    random = np.random.default_rng(3)
    values = random.random(500) * 10.0 ** random.integers(-6, 9, 500)
    assert [float(text) for text in said(decimal_text(values))] == pytest.approx(values, abs=5.1e-7)


def test_columns_of_several_rows_keep_their_shape() -> None:
    values = np.array([[1, 22, 333], [4, 5, 66_666]])
    text = integer_text(values)
    assert text.shape[:2] == (2, 3)
    assert [said(column) for column in text] == [[b"1", b"22", b"333"], [b"4", b"5", b"66666"]]


def test_pieces_and_numbers_become_one_text() -> None:
    columns = [integer_text(np.array([5, 123_456])), padded_text([b"ab", b"c"])]
    assert joined([b"<", b"|", b">\n"], columns, 2) == b"<5|ab>\n<123456|c>\n"
