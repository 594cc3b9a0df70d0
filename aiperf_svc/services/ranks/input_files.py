"""Dataset manager of a benchmark on ranks: serves the workload's input files."""

from collections.abc import Coroutine
from typing import Any

import zmq

from aiperf_svc.adapters.messaging.bus import Bus, encode, receive_each
from aiperf_svc.protocol.messages import AnyMessage
from aiperf_svc.protocol.messages.steps import RankFiles, RankFilesRequested
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import BaseService
from aiperf_svc.services.context import RunContext
from aiperf_svc.workloads.registry import tool_of


class InputFiles(BaseService):
    """Creates the files once and sends them to each courier on request."""

    service = Service.DATASET_MANAGER

    def __init__(self, context: RunContext, bus: Bus) -> None:
        super().__init__(context, bus)
        self._socket = bus.connect(zmq.REP, Port.DATASET_BACK)
        files = tool_of(context.ranks).files(context.ranks)
        self._files = encode(RankFiles(*self.header, files=files))

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [receive_each(self._socket, self._respond)]

    async def _respond(self, message: AnyMessage, _frame: bytes) -> None:
        is_known = isinstance(message, RankFilesRequested)
        if not is_known:
            self.log.warning("no response for %s", type(message).__name__)
        # A REP socket must reply; an empty message means that there are no files.
        await self._socket.send(self._files if is_known else b"")
