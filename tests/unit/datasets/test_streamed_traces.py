"""A streamed trace makes the same requests as one in memory, on demand."""

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.datasets import builder
from aiperf_svc.adapters.messaging.bus import decode
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.datasets import streamed
from aiperf_svc.core.datasets.built import BuiltDataset
from aiperf_svc.core.datasets.streamed import StreamedDataset
from aiperf_svc.domain.errors import DatasetError
from aiperf_svc.protocol.messages.dataset import Conversation, DatasetBlock
from aiperf_svc.services.dataset_manager import StreamedBlocks
from tests.support.traces import AZURE, BURST_GPT

Config = Callable[..., BenchmarkConfig]

ROWS = 300
HEAD = ("run", "dataset-manager", 1)


def mooncake() -> Iterator[str]:
    for n in range(ROWS):
        row: dict[str, Any] = {"timestamp": 7 * n, "input_length": 30 + n}
        row |= {"output_length": n % 5} if n % 3 else {}
        row |= {"hash_ids": [n % 4]} if n % 2 else {}
        row |= {"session_id": f"s{n % 40}"} if n % 9 == 0 else {}
        if n % 10 == 7:
            row = {"timestamp": 7 * n, "text_input": f"text {n}"}
        yield json.dumps(row) + "\n" + ("\n" if n == 5 else "")


TRACES = {
    "mooncake_trace": "".join(mooncake()),
    "bailian_trace": "".join(
        f'{{"timestamp": {n}.5, "input_length": {n + 1}, "output_length": 3, "hash_ids": [{n}]}}\n'
        for n in range(16)
    ),
    "burst_gpt_trace": "\n" + BURST_GPT + "".join(f"{n},m,{n},4,4,l\n" for n in range(ROWS)),
    "azure_trace": AZURE
    + "".join(f"2023-11-16 18:{n // 60:02}:{n % 60:02}.0000000,{n + 1},2\r\n" for n in range(ROWS)),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "BLOCK_ENTRIES", 7)
    monkeypatch.setattr(streamed, "BLOCK_BYTES", 20_000)


async def both(
    config: BenchmarkConfig, monkeypatch: pytest.MonkeyPatch
) -> tuple[BuiltDataset, StreamedDataset]:
    held = await builder.build_dataset(config)
    monkeypatch.setattr(builder, "HELD_BYTES", 0)
    made = await builder.build_dataset(config)
    assert isinstance(held, BuiltDataset)
    assert isinstance(made, StreamedDataset)
    return held, made


def all_of(dataset: StreamedDataset) -> tuple[Conversation, ...]:
    numbers = range(len(dataset.starts))
    return tuple(entry for number in numbers for entry in dataset.block(number))


@pytest.mark.parametrize("kind", TRACES)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"dataset": {"order": "shuffled", "entries": 90}, "load": {"warmup": {"requests": 9}}},
        {"dataset": {"output_tokens": {"mean": 9, "stddev": 3}}},
        {"load": {"fixed_schedule": True, "replay_speedup": 3, "warmup": {"requests": 9}}},
    ],
    ids=["plain", "shuffled", "lengths", "replay"],
)
async def test_streamed_blocks_equal_held_blocks(
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    packed: bool,
    more: dict[str, Any],
) -> None:
    file, content = tmp_path / "trace", TRACES[kind].encode()
    file.write_bytes(gzip.compress(content) if packed else content)
    dataset = {"kind": kind, "file": str(file)} | more.get("dataset", {})
    held, made = await both(config(dataset=dataset, load=more.get("load", {})), monkeypatch)
    with closing(made):
        assert all_of(made) == held.conversations
        assert len(made.starts) > 1
        assert (made.entry_count, made.turns) == (held.entry_count, held.turns)
        assert (made.due_ns, made.warmup_entries) == (held.due_ns, held.warmup_entries)
        assert made.asks_lengths == held.asks_lengths
        for name in ("entries", "turns", "left_out", "output_tokens", "source_sha256"):
            assert getattr(made.report, name) == getattr(held.report, name)


async def test_changing_file_is_noticed(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "trace"
    file.write_text(TRACES["burst_gpt_trace"])
    benchmark = config(dataset={"kind": "burst_gpt_trace", "file": str(file)})
    _, made = await both(benchmark, monkeypatch)
    with closing(made):
        file.write_text(TRACES["burst_gpt_trace"] + "999,m,1,1,1,l\n")
        with pytest.raises(DatasetError) as raised:
            made.block(0)
    assert str(raised.value) == (
        f"dataset.file: {file} was changed during the run, which reads it; "
        "do not change it until the run has ended"
    )


async def test_blocks_are_served_in_any_order(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "trace"
    file.write_text(TRACES["azure_trace"])
    _, made = await both(config(dataset={"kind": "azure_trace", "file": str(file)}), monkeypatch)
    expected = [made.block(number) for number in range(len(made.starts))]
    with closing(StreamedBlocks(made, HEAD)) as blocks:
        for number in (30, 0, 1, 2, 0, len(blocks) - 1):
            found = decode(await blocks.get(number))
            assert isinstance(found, DatasetBlock)
            assert found.conversations == expected[number]
            assert found.is_streamed
            assert found.starts == (made.starts.tobytes() if number == 0 else b"")
