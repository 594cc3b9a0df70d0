"""Stores metric records on disk during the run, one file per column.

A record has 232 bytes, and a run may have 15 million records, so they are appended to files and
later read as memory maps. The process holds only one buffer; the rest is in the page cache. A
`RARE` column that has the same value in all records so far has an empty file. A full disk does not
end the measurement: from then on, records are kept in memory.
"""

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.protocol.records import METRIC_DTYPE, RARE, Rows, usual_column

BUFFER_ROWS = 16_384
"""Rows buffered before they are split into columns and written: 3 MB, one write per column."""
KEPT_ROWS = 2_000_000
"""Maximum number of rows kept in memory when the disk is full: 370 MB."""


class MappedColumns(Mapping[str, NDArray[Any]]):
    """Maps field names of METRIC_DTYPE to arrays of shape (n,): read-only memory maps, unless some
    rows are `kept` in memory instead of in the files."""

    def __init__(
        self,
        folder: Path,
        count: int,
        kept: Sequence[Rows] = (),
        constant: Collection[str] = (),
    ) -> None:
        """Map `count` rows. The `constant` columns have their default value in all rows."""
        self._maps = {}
        for name in METRIC_DTYPE.names or ():
            is_constant = name in constant
            column = usual_column(name, count) if is_constant else _mapped(folder, name, count)
            if kept:
                column = np.concatenate([column, *(rows[name] for rows in kept)])
            self._maps[name] = column

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._maps[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._maps)

    def __len__(self) -> int:
        return len(self._maps)


class ColumnStore:
    """Appends records, which `open` returns. Raises EnvironmentProblem with the folder if the disk
    fails at the start, or when too many records would have to be kept in memory."""

    def __init__(self, folder: Path) -> None:
        """Create `folder`, which must not hold another store's columns."""
        self._folder = folder
        self._buffer = np.empty(BUFFER_ROWS, dtype=METRIC_DTYPE)
        self._bytes = self._buffer.view(np.uint8)
        self._buffered = 0
        self._written = 0
        self._files: dict[str, FileIO] = {}
        self._constant = set(RARE)
        """Columns with empty files, because all rows have the default value."""
        self._kept: list[Rows] = []
        self._kept_count = 0
        self.error = ""
        """Reason why records are no longer written; empty while they are written."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name in METRIC_DTYPE.names or ():
                self._files[name] = FileIO(_file(folder, name), "xb")
        except OSError as error:
            self.close()
            raise _problem(folder, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def count(self) -> int:
        """Number of records appended so far."""
        return self._written + self._kept_count + self._buffered

    def append(self, rows: Rows) -> None:
        """Append records (METRIC_DTYPE, shape (n,), contiguous)."""
        done = 0
        while done < len(rows):
            if self._buffered == BUFFER_ROWS:
                self._flush()
            some = rows[done : done + BUFFER_ROWS - self._buffered]
            # As bytes, because NumPy copies rows field by field.
            at = self._buffered * METRIC_DTYPE.itemsize
            self._bytes[at : at + some.nbytes] = some.view(np.uint8)
            self._buffered += len(some)
            done += len(some)

    def open(self) -> MappedColumns:
        """Return all records appended so far, by column."""
        self._flush()
        return MappedColumns(self._folder, self._written, self._kept, self._constant)

    def close(self) -> None:
        """Close the files. Their content stays until `remove`."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def remove(self) -> None:
        """Close and delete all files."""
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _flush(self) -> None:
        rows = self._buffer[: self._buffered]
        self._buffered = 0
        if self._kept:
            self._keep(rows)
            return
        try:
            for name, file in self._files.items():
                values = rows[name]
                if name in self._constant:
                    if (values == RARE[name]).all():
                        continue
                    _fill(file, name, self._written)
                    self._constant.discard(name)
                _write_all(file, np.ascontiguousarray(values).data.cast("B"))
        except OSError as error:
            # Some columns may have these rows and others not, so readers stop at the count.
            self.error = str(_problem(self._folder, error))
            self._keep(rows)
        else:
            self._written += len(rows)

    def _keep(self, rows: Rows) -> None:
        if self._kept_count + len(rows) > KEPT_ROWS:
            raise EnvironmentProblem(self.error)
        self._kept.append(rows.copy())
        self._kept_count += len(rows)


def _fill(file: FileIO, name: str, rows: int) -> None:
    """Write the default value of a column for `rows` rows."""
    block = np.full(min(rows, BUFFER_ROWS), RARE[name], dtype=METRIC_DTYPE[name])
    for begin in range(0, rows, BUFFER_ROWS):
        _write_all(file, block[: rows - begin].data.cast("B"))


def _mapped(folder: Path, name: str, count: int) -> NDArray[Any]:
    kind = METRIC_DTYPE[name]
    if not count:
        return np.empty(0, dtype=kind)  # an empty file cannot be mapped
    # As a plain array, because slicing numpy's memmap class costs three times as much.
    return np.asarray(np.memmap(_file(folder, name), dtype=kind, mode="r", shape=(count,)))


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.column"


def _write_all(file: FileIO, data: memoryview) -> None:
    # A write to a nearly full disk may be short before the next one fails.
    while data:
        data = data[file.write(data) :]


def _problem(folder: Path, error: OSError) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"cannot keep metric records in {folder}: {error.strerror or error}; "
        "free some space there, or set TMPDIR to another folder"
    )
