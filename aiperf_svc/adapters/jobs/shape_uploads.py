"""Uploads the results of an index to the collector: the files in parts, then a list of all files.
The collector accepts them only if every file has the size and SHA-256 in the list."""

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import zmq
import zmq.asyncio

from aiperf_svc.adapters.exports.manifest import (
    TEMPORARY_SUFFIX,
    ManifestEntry,
    check_entry,
    is_whole,
    list_files,
)
from aiperf_svc.adapters.messaging.bus import Bus, ProtocolMismatch, ask, decode, encode
from aiperf_svc.domain.errors import AiperfError, EnvironmentProblem
from aiperf_svc.protocol.messages.base import Message
from aiperf_svc.protocol.messages.indexes import (
    CollectorReply,
    IndexBegun,
    IndexEnded,
    IndexFile,
    IndexFilePart,
)
from aiperf_svc.protocol.ports import Port

PART_BYTES = 2**20
AGAIN_S = 5.0
"""Time after which a message is sent again."""
SILENT_S = 60.0
"""Longest time without a response of the collector."""
HURRIED_S = 30.0
"""The same limit in a pod that is being deleted: the collector is deleted with the stack too."""
Header = tuple[str, str, int]
"""Run, sender and epoch of a message."""
log = logging.getLogger(__name__)


class Uploader:
    """Sends the results of an index. Its methods raise EnvironmentProblem when the collector does
    not respond or refuses a message."""

    def __init__(self, bus: Bus, header: Header, shape: int) -> None:
        self._sock = bus.connect(zmq.REQ, Port.RECORDS)
        self._header, self._shape = header, shape
        self._silent_s = SILENT_S
        self._limit: asyncio.Timeout | None = None

    def hurry(self) -> None:
        """Wait only briefly for the collector from now on."""
        self._silent_s = HURRIED_S
        if self._limit is not None and not self._limit.expired():
            at = asyncio.get_running_loop().time() + HURRIED_S
            self._limit.reschedule(min(at, self._limit.when() or at))

    async def begin(self) -> None:
        """Report the start of this attempt."""
        await self._send(IndexBegun(*self._header, shape=self._shape))

    async def upload(self, folder: Path, names: Iterable[str]) -> tuple[IndexFile, ...]:
        """Send these files of a folder, and the files of these names in its subfolders. Return the
        list of all files sent."""
        entries = [
            entry
            for name in names
            for entry in await asyncio.to_thread(list_files, folder, folder / name)
        ]
        for entry in entries:
            await self._send_file(folder / entry.name, entry)
        return tuple(IndexFile(each.name, each.size, each.sha256) for each in entries)

    async def end(
        self, reason: str, files: tuple[IndexFile, ...] = (), *, is_tried_again: bool = False
    ) -> None:
        """Report the end of this attempt."""
        ended = IndexEnded(
            *self._header,
            shape=self._shape,
            reason=reason,
            is_tried_again=is_tried_again,
            files=files,
        )
        await self._send(ended)

    async def _send_file(self, path: Path, entry: ManifestEntry) -> None:
        with await asyncio.to_thread(path.open, "rb") as file:
            have = 0
            while True:
                file.seek(have)
                data = await asyncio.to_thread(file.read, min(PART_BYTES, entry.size - have))
                part = IndexFilePart(
                    *self._header, shape=self._shape, name=entry.name, offset=have, data=data
                )
                have = (await self._send(part)).have
                if have >= entry.size:
                    return
                if not data:
                    raise EnvironmentProblem(f"{path} became shorter while it was sent")

    async def _send(self, message: Message) -> CollectorReply:
        try:
            async with asyncio.timeout(self._silent_s) as self._limit:
                reply = decode(await ask(self._sock, encode(message), again_s=AGAIN_S))
        except TimeoutError as error:
            raise EnvironmentProblem(
                f"the collector has not responded for {self._silent_s:g} s"
            ) from error
        except ProtocolMismatch as error:
            raise EnvironmentProblem(f"the collector: {error}") from error
        finally:
            self._limit = None
        if not isinstance(reply, CollectorReply) or reply.problem:
            problem = reply.problem if isinstance(reply, CollectorReply) else type(reply).__name__
            raise EnvironmentProblem(f"the collector refuses the message: {problem}")
        return reply


class Receiver:
    """Receives the results in the collector. Incomplete files are in a separate folder."""

    def __init__(
        self,
        bus: Bus,
        header: Header,
        *,
        folder_of: Callable[[int], Path],
        shapes: frozenset[int],
        known: frozenset[int] = frozenset(),
        on_begin: Callable[[int, str], None],
        on_end: Callable[[IndexEnded, Path], Awaitable[bool]],
    ) -> None:
        """`folder_of` returns the folder of a shape; its parts are kept beside it. `known` are
        shapes that already have an outcome; their messages are refused. `on_end` gets the end of an
        attempt and the folder with its complete files, and returns whether the shape now has an
        outcome."""
        self._sock = bus.bind(zmq.REP, Port.RECORDS)
        self._header, self._folder_of = header, folder_of
        self._shapes, self._known = shapes, set(known)
        self._on_begin, self._on_end = on_begin, on_end
        self._attempts: dict[int, tuple[str, int]] = {}
        """Sender and epoch of the latest attempt of each shape."""
        self._ended: dict[int, tuple[str, int]] = {}
        """Attempts whose ends were accepted: their messages may arrive again."""

    async def run(self) -> None:
        """Handle messages until cancelled."""
        while True:
            data: bytes = await self._sock.recv()
            try:
                reply = await self._reply(decode(data))
            except (ProtocolMismatch, AiperfError, OSError) as error:
                log.warning("a message of an index was rejected: %s", error)
                reply = CollectorReply(*self._header, problem=str(error))
            await self._sock.send(encode(reply))

    async def _reply(self, message: object) -> CollectorReply:
        if not isinstance(message, IndexBegun | IndexFilePart | IndexEnded):
            raise EnvironmentProblem(f"{type(message).__name__} is not a message of an index")
        shape, attempt = message.shape, (message.sender, message.epoch)
        if message.run_id != self._header[0] or shape not in self._shapes:
            raise EnvironmentProblem(f"shape {shape} of run {message.run_id!r} is not of this run")
        is_end = isinstance(message, IndexEnded)
        if self._ended.get(shape) == attempt or (is_end and shape in self._known):
            # A repeated message: the response was late, or this collector was restarted.
            return CollectorReply(*self._header)
        if shape in self._known:
            raise EnvironmentProblem(
                f"the outcome of shape {shape} is known; nothing is left to do"
            )
        if isinstance(message, IndexBegun):
            self._attempts[shape] = attempt
            await asyncio.to_thread(self._clear, shape)
            self._on_begin(shape, message.sender)
            return CollectorReply(*self._header)
        if self._attempts.setdefault(shape, attempt) != attempt:
            raise EnvironmentProblem(f"another attempt of shape {shape} has begun")
        if isinstance(message, IndexFilePart):
            have = await asyncio.to_thread(self._append, message)
            return CollectorReply(*self._header, have=have)
        folder = self._parts(shape)
        await asyncio.to_thread(self._check, folder, message.files)
        if await self._on_end(message, folder):
            self._known.add(shape)
        self._ended[shape] = attempt
        await asyncio.to_thread(self._clear, shape)
        return CollectorReply(*self._header)

    def _parts(self, shape: int) -> Path:
        folder = self._folder_of(shape)
        return folder.with_name(folder.name + TEMPORARY_SUFFIX)

    def _clear(self, shape: int) -> None:
        shutil.rmtree(self._parts(shape), ignore_errors=True)

    def _append(self, part: IndexFilePart) -> int:
        """Append a part to its file if it continues the file; return the size of the file."""
        check_entry(ManifestEntry(part.name, 0, ""))
        path = self._parts(part.shape) / part.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            have = file.tell()
            if part.offset != have:
                return have
            file.write(part.data)
            return file.tell()

    def _check(self, folder: Path, files: tuple[IndexFile, ...]) -> None:
        """Raise EnvironmentProblem unless the folder holds these files and no others."""
        for each in files:
            entry = ManifestEntry(each.name, each.size, each.sha256)
            check_entry(entry)
            if not is_whole(folder / each.name, entry):
                raise EnvironmentProblem(f"{each.name} arrived damaged")
        names = {each.name for each in files}
        found = (path for path in folder.rglob("*") if path.is_file())
        if other := [
            path.name for path in found if path.relative_to(folder).as_posix() not in names
        ]:
            raise EnvironmentProblem(f"{other[0]} is not in the list of files")
