"""profile_export.jsonl contains complete lines up to its limit, or is missing with a reason."""

import hashlib
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from aiperf_svc.adapters.exports.manifest import TEMPORARY_SUFFIX, ManifestEntry
from aiperf_svc.adapters.messaging.bus import encode
from aiperf_svc.adapters.storage import jsonl_file
from aiperf_svc.adapters.storage.jsonl_file import JsonlFile
from aiperf_svc.core.lines.renderer import LineRenderer
from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.protocol.messages.records import LineDetails, MetricBatch, SequenceSpan
from aiperf_svc.protocol.records import METRIC_DTYPE


def batch(first: int, count: int) -> bytes:
    rows = np.zeros(count, dtype=METRIC_DTYPE)
    rows["index"] = np.arange(first, first + count)
    rows["phase"], rows["outcome"] = Phase.PROFILING, Outcome.COMPLETED
    return encode(
        MetricBatch(
            "run",
            "record-processor-0",
            1,
            spans=(SequenceSpan("worker-0", 1, first + 1, first + count),),
            rows=rows.tobytes(),
            details=LineDetails(b"", ()),
        )
    )


def file_in(folder: Path, *, limit: int = 100) -> JsonlFile:
    renderer = LineRenderer(run_id="run", has_warmup=False)
    return JsonlFile(folder / "lines.jsonl", renderer, limit=limit)


def numbers(folder: Path) -> list[int]:
    text = (folder / "lines.jsonl").read_text()
    assert text.endswith("}\n")
    return [json.loads(line)["metadata"]["session_num"] for line in text.splitlines()]


def test_file_is_written_at_the_end_without_leftovers(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    file = file_in(folder)
    file.append(batch(0, 2), 2)
    file.append(batch(2, 1), 1)
    assert list(folder.iterdir()) == []
    file.write()
    assert numbers(folder) == [0, 1, 2]
    assert list(folder.iterdir()) == [folder / "lines.jsonl"]
    assert file.error == ""


@pytest.mark.parametrize("at_once", [1, 3, 1_000])
@pytest.mark.parametrize("sizes", [(4,), (2, 2), (3, 1), (1, 1, 1, 1)])
def test_file_ends_at_the_line_limit(
    tmp_path: Path, sizes: tuple[int, ...], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl_file, "LINES_AT_ONCE", at_once)
    file = file_in(tmp_path, limit=3)
    for index, size in enumerate(sizes):
        file.append(batch(sum(sizes[:index]), size), size)
    file.write()
    assert numbers(tmp_path) == [0, 1, 2]


def test_manifest_entry_matches_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl_file, "LINES_AT_ONCE", 7)
    file = file_in(tmp_path)
    for first in range(0, 100, 5):
        file.append(batch(first, 5), 5)
    file.write()
    content = (tmp_path / "lines.jsonl").read_bytes()
    assert numbers(tmp_path) == list(range(100))
    assert file.entry() == ManifestEntry(
        "lines.jsonl", len(content), hashlib.sha256(content).hexdigest()
    )


def test_no_file_is_written_without_requests(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.append(batch(0, 1), 0)
    file.write()
    assert list(tmp_path.rglob("*")) == []
    assert file.error == ""


@pytest.mark.parametrize("at_once", [1, 1_000], ids=["meanwhile", "at the end"])
def test_full_disk_leaves_no_partial_file(
    tmp_path: Path, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl_file, "LINES_AT_ONCE", at_once)
    (tmp_path / f"lines.jsonl{TEMPORARY_SUFFIX}").symlink_to("/dev/full")
    file = file_in(tmp_path)
    for first in range(20):
        file.append(batch(first, 1), 1)
    file.write()
    assert f"cannot write {tmp_path / 'lines.jsonl'}: No space left on device" in file.error
    assert list(tmp_path.iterdir()) == []


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("batches", [1, 10], ids=["at the end", "at once"])
def test_unwritable_lines_are_reported(tmp_path: Path, batches: int) -> None:
    file = file_in(tmp_path, limit=10_000)
    with files_of_at_most(5_000):
        for first in range(batches):
            file.append(batch(30 * first, 30), 30)
        file.write()
    assert f"cannot write {tmp_path / 'lines.jsonl'}: File too large" in file.error
    assert list(tmp_path.iterdir()) == []


def test_uncreatable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    file = file_in(tmp_path / "file")
    file.append(batch(0, 1), 1)
    file.write()
    assert f"cannot write {tmp_path / 'file' / 'lines.jsonl'}: " in file.error


def test_bad_batch_costs_the_lines_only(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.append(batch(0, 1), 1)
    file.append(b"nonsense", 1)
    file.write()
    assert f"cannot create {tmp_path / 'lines.jsonl'}: ProtocolMismatch" in file.error
    assert list(tmp_path.iterdir()) == []
