"""Records are read back from disk as they were appended."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aiperf_svc.adapters.storage import column_store
from aiperf_svc.adapters.storage.column_store import BUFFER_ROWS, ColumnStore
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.protocol.records import METRIC_DTYPE, RARE, Rows
from tests.support import fake_run


@pytest.fixture(scope="module")
def many_rows() -> Rows:
    """Return three times more rows than the buffer holds."""
    return fake_run.closed_loop(requests=50_000, concurrency=50)


@pytest.mark.parametrize("size", [7, 500, BUFFER_ROWS, BUFFER_ROWS + 1, 50_000])
def test_rows_are_returned_in_order(tmp_path: Path, many_rows: Rows, size: int) -> None:
    with ColumnStore(tmp_path / "columns") as store:
        for begin in range(0, len(many_rows), size):
            store.append(many_rows[begin : begin + size])
        assert store.count == len(many_rows)
        columns = store.open()
        assert set(columns) == set(METRIC_DTYPE.names or ())
        for name, column in columns.items():
            assert np.array_equal(column, many_rows[name]), name


def test_an_empty_store_has_empty_columns(tmp_path: Path) -> None:
    with ColumnStore(tmp_path / "columns") as store:
        assert {len(column) for column in store.open().values()} == {0}


def test_rows_can_be_appended_after_reading(tmp_path: Path) -> None:
    with ColumnStore(tmp_path / "columns") as store:
        store.append(fake_run.make_rows(3))
        assert len(store.open()["seq"]) == 3
        store.append(fake_run.make_rows(2))
        assert store.open()["seq"].tolist() == [1, 2, 3, 1, 2]


def test_remove_leaves_nothing(tmp_path: Path) -> None:
    store = ColumnStore(tmp_path / "columns")
    store.append(fake_run.make_rows(3))
    store.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentProblem, match=str(tmp_path / "file" / "columns")):
        ColumnStore(tmp_path / "file" / "columns")


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second write of a column on there is no space. Written data are kept."""

    class Filling(column_store.FileIO):  # type: ignore[misc, name-defined]
        written = 0

        def write(self, data: Any) -> int:
            self.written += 1
            if self.written > 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    monkeypatch.setattr(column_store, "FileIO", Filling)
    monkeypatch.setattr(column_store, "BUFFER_ROWS", 100)


@pytest.mark.usefixtures("full_disk")
def test_full_disk_loses_no_record_and_is_reported(tmp_path: Path) -> None:
    rows = fake_run.closed_loop(requests=350, concurrency=50)
    with ColumnStore(tmp_path / "columns") as store:
        for begin in range(0, 350, 70):
            store.append(rows[begin : begin + 70])
            assert store.count == begin + 70
        columns = store.open()
        assert "No space left on device; free some space there" in store.error
        assert str(tmp_path / "columns") in store.error
        for name, column in columns.items():
            assert np.array_equal(column, rows[name]), name


def test_rare_column_loses_no_record_on_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(column_store.FileIO):  # type: ignore[misc, name-defined]
        def write(self, data: Any) -> int:
            if "cached_tokens" in str(self.name):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    monkeypatch.setattr(column_store, "FileIO", Full)
    monkeypatch.setattr(column_store, "BUFFER_ROWS", 100)
    rows = fake_run.make_rows(350)
    rows["cached_tokens"][250:] = 7
    with ColumnStore(tmp_path / "columns") as store:
        store.append(rows)
        for name, column in store.open().items():
            assert np.array_equal(column, rows[name]), name


@pytest.mark.usefixtures("full_disk")
def test_memory_for_a_full_disk_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_store, "KEPT_ROWS", 150)
    with ColumnStore(tmp_path / "columns") as store:
        store.append(fake_run.make_rows(300))
        with pytest.raises(EnvironmentProblem, match="No space left on device"):
            store.append(fake_run.make_rows(100))


@pytest.mark.parametrize("stated", [0, 1, BUFFER_ROWS, 2 * BUFFER_ROWS + 3])
def test_rare_column_has_no_file_until_it_differs(tmp_path: Path, stated: int) -> None:
    count = 2 * BUFFER_ROWS + 3
    rows = fake_run.make_rows(count)
    rows["cached_tokens"][count - stated :] = 7
    with ColumnStore(tmp_path / "columns") as store:
        store.append(rows)
        columns = store.open()
        for name in RARE:
            assert np.array_equal(columns[name], rows[name])
        size = (tmp_path / "columns" / "cached_tokens.column").stat().st_size
        assert size == (4 * count if stated else 0)
        assert not (tmp_path / "columns" / "cache_write_tokens.column").stat().st_size
