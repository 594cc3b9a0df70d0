"""inputs.json is built from the blocks that another pod serves."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from aiperf_svc.adapters.datasets.inputs_copy import copy_inputs
from aiperf_svc.adapters.messaging.bus import decode, encode
from aiperf_svc.core.datasets.built import BuiltDataset
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.protocol.messages.dataset import (
    Conversation,
    DatasetBlock,
    DatasetBlockRequested,
    Turn,
)
from aiperf_svc.protocol.messages.reports import DatasetReport

HEADER = ("run", "records-manager", 0)
BUILT = BuiltDataset(
    conversations=tuple(
        Conversation(id=f"session-{n}", head=b'{"n":', turns=(Turn(b"1", b"}"), Turn(b"2", b"}")))
        for n in range(5)
    ),
    warmup_entries=1,
    report=DatasetReport(
        kind="multi_turn",
        source="talks.jsonl",
        source_sha256=None,
        sha256="",
        entries=5,
        distinct_entries=1,
        turns=10,
        left_out=0,
        bytes=0,
        tokenizer=None,
        input_tokens=None,
        output_tokens=None,
        warmup_entries=1,
    ),
)


@contextlib.asynccontextmanager
async def served(*, without: int = -1, silent: int = -1) -> AsyncIterator[zmq.asyncio.Socket]:
    """Yield a socket to a dataset manager that serves BUILT in blocks of two entries."""
    parts = BUILT.blocks(max_entries=2)
    with zmq.asyncio.Context() as context:
        server, client = context.socket(zmq.REP), context.socket(zmq.REQ)
        for socket in (server, client):
            socket.linger = 0
        client.setsockopt(zmq.REQ_RELAXED, 1)
        port = server.bind_to_random_port("tcp://127.0.0.1")
        client.connect(f"tcp://127.0.0.1:{port}")

        async def serve() -> None:
            while True:
                wanted = decode(await server.recv())
                assert isinstance(wanted, DatasetBlockRequested)
                if wanted.block == silent:
                    await asyncio.Event().wait()
                block = DatasetBlock(
                    *HEADER,
                    block=wanted.block,
                    block_count=len(parts),
                    entry_count=5,
                    warmup_entries=1,
                    first_entry=0,
                    conversations=parts[wanted.block],
                    starts=b"",
                )
                await server.send(b"" if wanted.block == without else encode(block))

        serving = asyncio.create_task(serve())
        try:
            yield client
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            server.close()
            client.close()


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_copy_equals_what_the_dataset_manager_writes(tmp_path: Path) -> None:
    path = tmp_path / "inputs.json"
    async with served() as socket:
        await copy_inputs(socket, HEADER, path, limit_bytes=10_000)
    assert path.read_bytes() == b"".join(BUILT.inputs_json())
    assert len(json.loads(path.read_bytes())["data"]) == 5


@pytest.mark.parametrize(
    ("limit", "without", "silent", "message"),
    [
        (100, -1, -1, "it would be larger than 0 MiB"),
        (10_000, 1, -1, "the dataset manager has no block 1"),
        (10_000, -1, 0, "the dataset manager has not sent block 0 in 0.2 s"),
    ],
    ids=["too large", "not there", "silent"],
)
async def test_inputs_that_cannot_be_copied_are_left_out(
    tmp_path: Path, limit: int, without: int, silent: int, message: str
) -> None:
    block_s = 30.0 if silent < 0 else 0.2
    async with served(without=without, silent=silent) as socket:
        with pytest.raises(EnvironmentProblem, match=f"inputs.json is left out: {message}"):
            await copy_inputs(
                socket, HEADER, tmp_path / "inputs.json", limit_bytes=limit, block_s=block_s
            )
    assert files_in(tmp_path) == []


async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    async with served() as socket:
        with pytest.raises(EnvironmentProblem, match="cannot write"):
            await copy_inputs(socket, HEADER, tmp_path / "none" / "x", limit_bytes=1)
