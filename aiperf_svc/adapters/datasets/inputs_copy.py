"""Copies inputs.json to the results, if the prompts were built in another pod."""

import asyncio
from pathlib import Path
from typing import BinaryIO

import zmq.asyncio

from aiperf_svc.adapters.exports.manifest import TEMPORARY_SUFFIX
from aiperf_svc.adapters.messaging.bus import ask, decode, encode
from aiperf_svc.adapters.storage.atomic_files import unwritable
from aiperf_svc.core.datasets.built import inputs_json
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.protocol.messages.dataset import DatasetBlock, DatasetBlockRequested

BLOCK_S = 10.0
"""Timeout of one block, which is about 1 MiB."""
Header = tuple[str, str, int]


async def copy_inputs(
    socket: zmq.asyncio.Socket,
    header: Header,
    path: Path,
    *,
    limit_bytes: int,
    block_s: float = BLOCK_S,
) -> None:
    """Request every block from the dataset manager over a REQ socket and write the file atomically.
    Raises EnvironmentProblem if a block does not arrive, or if the file would exceed `limit_bytes`
    or cannot be written.
    """
    part = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        with part.open("wb") as file:
            await _copy(_Blocks(socket, header, block_s), file, limit_bytes)
        part.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        part.unlink(missing_ok=True)


async def _copy(blocks: "_Blocks", file: BinaryIO, limit_bytes: int) -> None:
    number, count = 0, 1
    while number < count:
        block = await blocks.get(number)
        count = block.block_count
        if any(conversation.streams for conversation in block.conversations):
            raise EnvironmentProblem(
                "inputs.json is left out: the requests of session trees are made during the load"
            )
        text = b"".join(
            inputs_json(block.conversations, is_first=number == 0, is_last=number == count - 1)
        )
        if file.tell() + len(text) > limit_bytes:
            raise EnvironmentProblem(
                f"inputs.json is left out: it would be larger than {limit_bytes / 2**20:,.0f} MiB"
            )
        await asyncio.to_thread(file.write, text)
        number += 1


class _Blocks:
    """Reads the dataset manager's blocks, one after another."""

    def __init__(self, socket: zmq.asyncio.Socket, header: Header, block_s: float) -> None:
        self._socket, self._header, self._block_s = socket, header, block_s

    async def get(self, number: int) -> DatasetBlock:
        wanted = encode(DatasetBlockRequested(*self._header, block=number))
        try:
            async with asyncio.timeout(self._block_s):
                data = await ask(self._socket, wanted)
        except TimeoutError as error:
            raise EnvironmentProblem(
                f"inputs.json is left out: the dataset manager has not sent block {number} in "
                f"{self._block_s:g} s"
            ) from error
        block = decode(data) if data else None
        if not isinstance(block, DatasetBlock):
            raise EnvironmentProblem(
                f"inputs.json is left out: the dataset manager has no block {number}"
            )
        return block
