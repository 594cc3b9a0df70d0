"""Encodes and decodes CSV and JSON files."""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import TypeVar

import msgspec

from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.foreign_text import one_line

T = TypeVar("T")


def csv_file(rows: Iterable[Sequence[object]]) -> bytes:
    """Encode rows as CSV. Pass untrusted texts through `csv_cell` first. None is an empty cell."""
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def json_file(content: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def read_json(path: Path, kind: type[T], *, expected: str) -> T:
    """Read a JSON file. Raises ConfigError that names the file and, if it cannot be read, the
    expected content."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; expected {expected}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: broken: {error}") from error


def check_schema(path: Path, found: str, expected: str, *, writer: str = "") -> None:
    """Raise ConfigError if a file has another schema. `writer` is the version that wrote it."""
    if found != expected:
        by = f" ({one_line(writer)})" if writer else ""
        raise ConfigError(
            f"{path}: its schema is {one_line(found)!r}, expected {expected!r}; use the version "
            f"that wrote it{by}"
        )
