"""Formats lines of text that contain numbers, whole arrays of numbers at a time.

A line of the per-request file has about fifty numbers. Formatting them one by one costs more than
all other work for a request. Here digits come from tables of four digits, for all numbers of a
column in one operation, as bytes of an array. A number that is shorter than the longest of its
column is padded with NUL bytes, which are removed at the very end.

`filled` also has a C version (`_number_text.c`), which is used if it has been compiled and takes a
fifth of the time.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

try:
    from aiperf_svc.core.lines import _number_text as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]  # no C compiler was there

INTEGER: Final = b"i"
PADDED: Final = b"p"
"""Kind of an integer with at least six digits."""
DECIMAL: Final = b"d"

Text = NDArray[np.uint8]
"""ASCII text, with the characters along the last axis. NUL is padding."""

_GROUP: Final = 10_000
_DECIMALS: Final = 1_000_000


def _digits(width: int) -> Text:
    """Return all numbers of `width` digits, with leading zeros; shape (10 ** width, width)."""
    numbers = np.arange(10**width)[:, None] // 10 ** np.arange(width)[::-1] % 10
    return (numbers + ord("0")).astype(np.uint8)


def _without(zeros: NDArray[np.bool_], *, text: Text) -> Text:
    return np.where(zeros, np.uint8(0), text)


def _tables() -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return tables of four characters each: the groups of an integer, the first four decimals, the
    last two."""
    four, two = _digits(4), _digits(2)
    zero = four == ord("0")
    leading = _without(np.logical_and.accumulate(zero, axis=1), text=four)
    lowest = leading.copy()
    lowest[0, 3] = ord("0")
    first = _without(_trailing(zero), text=four)
    first[0, 0] = ord("0")
    last = np.zeros((100, 4), dtype=np.uint8)
    last[:, :2] = _without(_trailing(two == ord("0")), text=two)
    return (
        np.concatenate([four, leading, lowest]).view("<u4").ravel(),
        np.concatenate([four, first]).view("<u4").ravel(),
        last.view("<u4").ravel(),
    )


def _trailing(zeros: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.logical_and.accumulate(zeros[:, ::-1], axis=1)[:, ::-1]


_INTEGER, _FIRST_DECIMALS, _LAST_DECIMALS = _tables()
_POINT: Final = int.from_bytes(b"\0\0\0.", "little")


def integer_text(values: NDArray[np.int64]) -> Text:
    """Format integers of any shape as text; the shape gains an axis."""
    return _signed(values, _integer_words(np.abs(values), 0).view(np.uint8))


def _integer_words(rest: NDArray[np.int64], after: int) -> NDArray[np.uint32]:
    """Format integers, four characters per word, with room for `after` words at the end."""
    groups = max(1, -(-len(str(int(rest.max(initial=0)))) // 4))
    words = np.empty((*rest.shape, groups + after), dtype="<u4")
    lowest = 2 * _GROUP
    for group in range(groups - 1, -1, -1):
        higher = rest // _GROUP
        part = rest - higher * _GROUP
        part += (higher == 0) * lowest
        words[..., group] = _INTEGER[part]
        rest, lowest = higher, _GROUP
    return words


def decimal_text(values: NDArray[np.float64]) -> Text:
    """Format finite numbers of any shape, below 9e9, with one to six decimals; the shape gains an
    axis.

    Six decimals of a millisecond are a nanosecond, so values in whole nanoseconds are exact.
    """
    scaled = np.rint(np.abs(values) * _DECIMALS).astype(np.int64)
    whole = scaled // _DECIMALS
    decimals = scaled - whole * _DECIMALS
    first = decimals // 100
    last = decimals - first * 100
    first += (last == 0) * _GROUP
    words = _integer_words(whole, 3)
    words[..., -3] = _POINT
    words[..., -2] = _FIRST_DECIMALS[first]
    words[..., -1] = _LAST_DECIMALS[last]
    return _signed(values, words.view(np.uint8))


def _signed(values: NDArray[Any], text: Text) -> Text:
    is_negative = values < 0
    if not is_negative.any():
        return text
    sign = is_negative[..., None] * np.uint8(ord("-"))
    return np.concatenate([sign, text], axis=-1)


def padded_text(values: NDArray[np.int64]) -> Text:
    """Format non-negative integers with at least six digits; the shape gains an axis."""
    column = np.array([b"%06d" % value for value in values.tolist()], dtype=np.bytes_)
    return column.view(np.uint8).reshape(len(values), column.itemsize)


_TEXT_OF: Final[dict[bytes, Callable[[NDArray[Any]], Text]]] = {
    INTEGER: integer_text,
    PADDED: padded_text,
    DECIMAL: decimal_text,
}


def interpreted_filled(
    pieces: list[bytes], kinds: bytes, columns: list[NDArray[Any]], count: int
) -> bytes:
    """Return `count` consecutive texts, each made of pieces[0], a number of columns[0],
    pieces[1], …

    There is one more piece than columns. Each column is a contiguous array of `count` numbers:
    int64 where its letter in `kinds` is INTEGER or PADDED, float64 where it is DECIMAL. Raises
    ValueError when they do not fit together.
    """
    if len(pieces) != len(columns) + 1 or any(len(column) != count for column in columns):
        raise ValueError("not one array of so many numbers between two pieces each")
    if not count:
        return b""
    places = []
    template = bytearray()
    texts = []
    for index, column in enumerate(columns):
        texts.append(text := _TEXT_OF[kinds[index : index + 1]](column))
        template += pieces[index]
        places.append(len(template))
        template += bytes(text.shape[-1])
    template += pieces[-1]
    lines = bytearray(template) * count
    for index, text in zip(places, texts, strict=True):
        # Copying items is four times as fast as copying rows of bytes.
        item = np.dtype((np.void, text.shape[-1]))
        hole: NDArray[Any] = np.ndarray(count, item, lines, index, (len(template),))
        hole[:] = np.ascontiguousarray(text).view(item)[:, 0]
    return bytes(lines.translate(None, b"\0"))


filled = interpreted_filled if compiled is None else compiled.filled
