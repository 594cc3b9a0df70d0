"""Datasets are built from files on disk, and unreadable files are reported."""

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from aiperf_svc.adapters.datasets.builder import AnyDataset, build_dataset
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.domain.errors import DatasetError

Config = Callable[..., BenchmarkConfig]

CONTENT = {
    "single_turn": b'{"text": "a"}\n{"text": "b"}\n',
    "multi_turn": b'{"turns": ["a", "b"]}\n',
    "sharegpt": json.dumps(
        [{"id": "x", "conversations": [{"from": "human", "value": "a"}]}], indent=1
    ).encode(),
}
KINDS = pytest.mark.parametrize("kind", CONTENT)


def contents(dataset: AnyDataset) -> list[str]:
    data = json.loads(b"".join(dataset.inputs_json()))["data"]  # type: ignore[union-attr]
    return [p["messages"][0]["content"] for session in data for p in session["payloads"]]


@KINDS
@pytest.mark.parametrize("packed", [False, True])
async def test_every_kind_is_read_plain_and_packed(
    in_file: Config, kind: str, packed: bool
) -> None:
    content = gzip.compress(CONTENT[kind]) if packed else CONTENT[kind]
    notes: list[str] = []
    benchmark = in_file(kind, content)
    dataset = await build_dataset(benchmark, progress=notes.append)
    assert contents(dataset) == ["a", "b"][: 1 if kind == "sharegpt" else 2]
    assert dataset.report.source == benchmark.dataset.file
    assert dataset.report.source_sha256 == hashlib.sha256(content).hexdigest()
    assert notes == [f"building the dataset from {benchmark.dataset.file}"]


async def test_entries_limits_the_lines_read(in_file: Config) -> None:
    content = CONTENT["single_turn"] + b"not read"
    benchmark = in_file("single_turn", content, dataset={"entries": 2})
    assert contents(await build_dataset(benchmark)) == ["a", "b"]


async def test_a_resolved_config_makes_the_same_requests_again(config: Config) -> None:
    first = config(
        dataset={"entries": 20, "order": "shuffled", "input_tokens": {"mean": 9, "stddev": 3}},
        load={"warmup": {"requests": 3}},
        random_seed=7,
    )
    again = BenchmarkConfig.model_validate_json(first.model_dump_json())
    assert await build_dataset(first) == await build_dataset(again)


ROWS = '{"timestamp": 0, "input_length": 30, "output_length": 5, "hash_ids": [1, 2]}\n' * 20


@pytest.mark.parametrize(
    "dataset",
    [
        {"input_tokens": {"mean": 30, "stddev": 5}, "output_tokens": {"mean": 9, "stddev": 3}},
        {"prefix": {"groups": 2, "tokens": 20, "system_tokens": 9, "context_tokens": 5}},
        {"kind": "mooncake_trace", "block_size": 16},
        {"kind": "single_turn", "cache_bust": "first_turn_prefix"},
    ],
    ids=["synthetic", "prefixes", "trace", "marked file"],
)
async def test_variants_share_lengths_but_no_beginning(
    config: Config, tmp_path: Path, dataset: dict[str, object]
) -> None:
    """The prefix cache that one variant fills must not help another."""
    if "kind" in dataset:
        file = tmp_path / "data"
        file.write_text(ROWS if "block_size" in dataset else '{"text": "a b c"}\n' * 20)
        dataset = dataset | {"file": str(file)}
    else:
        dataset = dataset | {"entries": 20}
    made = [
        await build_dataset(config(dataset=dataset | {"variant": number})) for number in (1, 2, 3)
    ]
    texts = [contents(each) for each in made]
    lengths = [[len(text.split()) for text in each] for each in texts]
    assert lengths[0] == lengths[1] == lengths[2]
    assert made[0].report.output_tokens == made[1].report.output_tokens
    beginnings = [{" ".join(text.split()[:3]) for text in each} for each in texts]
    assert not beginnings[0] & beginnings[1]
    assert not beginnings[0] & beginnings[2]
    assert not beginnings[1] & beginnings[2]
    usual = await build_dataset(config(dataset=dataset))
    assert contents(usual) == texts[0]


@KINDS
@pytest.mark.parametrize("content", [b"", b"\n \n", gzip.compress(b"", mtime=0)])
async def test_an_empty_file_is_refused(in_file: Config, kind: str, content: bytes) -> None:
    with pytest.raises(DatasetError, match=r"no entries|truncated"):
        await build_dataset(in_file(kind, content))


@KINDS
async def test_bad_line_is_named_by_path_and_number(in_file: Config, kind: str) -> None:
    bad = b'[\n{"conversations": 5}]' if kind == "sharegpt" else CONTENT[kind][:20] + b"\n{}"
    benchmark = in_file(kind, bad)
    with pytest.raises(DatasetError, match=rf"^{benchmark.dataset.file}:[12]: "):
        await build_dataset(benchmark)


@KINDS
async def test_unreadable_file_is_refused(config: Config, tmp_path: Path, kind: str) -> None:
    damaged = tmp_path / "damaged.gz"
    damaged.write_bytes(gzip.compress(CONTENT[kind] * 50)[:-20])
    absent = tmp_path / "absent"
    for path, wrong in ((absent, "no file"), (tmp_path, "a folder"), (damaged, "damaged gzip")):
        with pytest.raises(DatasetError, match=rf"^dataset\.file: .*{wrong}"):
            await build_dataset(config(dataset={"kind": kind, "file": str(path)}))
