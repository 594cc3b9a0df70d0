"""Records come back from disk as they were appended."""

from pathlib import Path

import fake_run
import numpy as np
import pytest

from aiperf_svc.adapters import column_store
from aiperf_svc.adapters.column_store import BUFFER_ROWS, ColumnStore
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.protocol.records import METRIC_DTYPE


@pytest.mark.parametrize("size", [1, 7, BUFFER_ROWS, BUFFER_ROWS + 1, 50_000])
def test_every_row_comes_back_in_order(tmp_path: Path, size: int) -> None:
    rows = fake_run.closed_loop(requests=50_000, concurrency=50)
    with ColumnStore(tmp_path / "columns") as store:
        for begin in range(0, len(rows), max(size, 500)):
            store.append(rows[begin : begin + max(size, 500)])
        assert store.count == len(rows)
        columns = store.open()
        assert set(columns) == set(METRIC_DTYPE.names or ())
        for name, column in columns.items():
            assert np.array_equal(column, rows[name]), name


def test_an_empty_store_has_empty_columns(tmp_path: Path) -> None:
    with ColumnStore(tmp_path / "columns") as store:
        assert {len(column) for column in store.open().values()} == {0}


def test_more_can_be_appended_after_a_look(tmp_path: Path) -> None:
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


def test_a_full_disk_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path, name: str) -> Path:
        link = folder / name
        if not link.is_symlink():
            link.symlink_to("/dev/full")
        return link

    class Appending(column_store.FileIO):
        def __init__(self, path: Path, _mode: str) -> None:
            super().__init__(path, "wb")

    monkeypatch.setattr(column_store, "_file", full)
    monkeypatch.setattr(column_store, "FileIO", Appending)
    with ColumnStore(tmp_path / "columns") as store:
        store.append(fake_run.make_rows(3))
        with pytest.raises(EnvironmentProblem, match="No space left on device"):
            store.open()
