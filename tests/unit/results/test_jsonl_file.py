"""profile_export.jsonl holds whole lines up to its limit, or is not there and says why."""

import hashlib
from pathlib import Path

import pytest

from aiperf_svc.adapters.exports.manifest import TEMPORARY_SUFFIX, ManifestEntry
from aiperf_svc.adapters.jsonl_file import JsonlFile


def test_it_has_its_name_only_when_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lines.jsonl"
    file = JsonlFile(path, limit=100)
    file.append(b"1\n2\n", 2)
    assert not path.exists()
    file.append(b"3\n", 1)
    file.close()
    assert path.read_bytes() == b"1\n2\n3\n"
    assert list(path.parent.iterdir()) == [path]
    assert file.error == ""


@pytest.mark.parametrize(
    "pieces", [(b"1\n2\n3\n4\n",), (b"1\n2\n", b"3\n4\n"), (b"1\n2\n3\n", b"4\n")]
)
def test_it_ends_at_the_limit(tmp_path: Path, pieces: tuple[bytes, ...]) -> None:
    path = tmp_path / "lines.jsonl"
    file = JsonlFile(path, limit=3)
    for piece in pieces:
        file.append(piece, piece.count(b"\n"))
    file.close()
    assert path.read_bytes() == b"1\n2\n3\n"


@pytest.mark.parametrize("size", [10, 1_000_000], ids=["noticed at the end", "noticed at once"])
def test_a_full_disk_leaves_no_part_of_it_and_is_told(tmp_path: Path, size: int) -> None:
    path = tmp_path / "lines.jsonl"
    part = tmp_path / f"lines.jsonl{TEMPORARY_SUFFIX}"
    part.symlink_to("/dev/full")
    file = JsonlFile(path, limit=100)
    file.append(b"x" * size + b"\n", 1)
    file.append(b"more\n", 1)
    file.close()
    assert f"cannot write {path}: No space left on device" in file.error
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    file = JsonlFile(tmp_path / "file" / "lines.jsonl", limit=100)
    file.append(b"1\n", 1)
    file.append(b"2\n", 1)
    file.close()
    assert f"cannot write {tmp_path / 'file' / 'lines.jsonl'}: " in file.error


def test_it_is_hashed_while_it_grows(tmp_path: Path) -> None:
    file = JsonlFile(tmp_path / "lines.jsonl", limit=100)
    assert not file.hash_more()
    file.append(b"1\n" * 5_000_000, 1)
    assert file.hash_more()
    file.append(b"2\n", 1)
    file.close()
    while file.hash_more():
        pass
    assert not file.hash_more()
    content = (tmp_path / "lines.jsonl").read_bytes()
    assert file.entry() == ManifestEntry(
        "lines.jsonl", len(content), hashlib.sha256(content).hexdigest()
    )
    assert content == b"1\n" * 5_000_000 + b"2\n"
