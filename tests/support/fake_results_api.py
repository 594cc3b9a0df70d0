"""The real results API in front of a fake run."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from aiperf_svc.adapters.exports.manifest import Manifest, build_manifest
from aiperf_svc.adapters.exports.result_files import Results
from aiperf_svc.adapters.results_api.run_api import Events, RunnerMessage, Start
from aiperf_svc.adapters.results_api.server import ResultsServer
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.core.events.report import EventReport
from aiperf_svc.core.scaling.report import ScalingReport

TOKEN = "the-stack's-token"
LARGE = bytes(range(256)) * 4096


def make_status(**fields: Any) -> Status:
    values: dict[str, Any] = dict.fromkeys(Status.__struct_fields__, 0)
    values |= {"state": "profiling", "phase": "profiling", "reason": "", "message": ""}
    values |= {
        "artifact_error": "",
        "main_error": "",
        "uploaded_to": "",
        "verdict": None,
        "dataset": msgspec.Raw(b"{}"),
        "number": 1,
        "objectives": (),
    }
    values |= {"finish_reasons": {}, "steps": None, "experiment": None, "client": None}
    values |= {"is_cancelling": False, "results_ready": False, "is_settled": False}
    return Status(**{**values, **fields})


@dataclass
class Provider:
    """A fake run whose state the test sets."""

    path: Path
    now: Status = field(default_factory=make_status)
    content: Results | None = None
    cancelled: list[str] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    events: list[tuple[int, tuple[EventReport, ...]]] = field(default_factory=list)
    was_collected: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    was_polled: asyncio.Event = field(default_factory=asyncio.Event)
    waits: list[tuple[int, float]] = field(default_factory=list)

    def status(self) -> Status:
        return self.now

    async def wait_change(self, after: int, timeout_s: float) -> None:
        if self.now.number != after:
            return
        self.waits.append((after, timeout_s))
        self.was_polled.set()
        await self.changed.wait()

    def cancel(self, reason: str) -> None:
        self.cancelled.append(reason)

    def handle_message(self, message: RunnerMessage) -> None:
        match message:
            case Start():
                self.started.append(message.at_wall_ns)
            case Events(start_wall_ns, reports):
                self.events.append((start_wall_ns, reports))
            case ScalingReport():
                self.scaling = message

    def collected(self) -> None:
        self.was_collected.set()

    def results(self) -> Results | None:
        return self.content

    def folder(self) -> Path:
        return self.path

    def list_results(self, manifest: Manifest | None = None) -> None:
        manifest = manifest or build_manifest(self.path, "0123456789ab")
        (self.path / "manifest.json").write_bytes(msgspec.json.encode(manifest))


@dataclass
class Api:
    provider: Provider
    server: ResultsServer
    session: aiohttp.ClientSession
    url: str

    async def get(self, path: str, **headers: str) -> tuple[aiohttp.ClientResponse, bytes]:
        all_headers = {"Authorization": f"Bearer {TOKEN}", "Accept-Encoding": "identity", **headers}
        async with self.session.get(self.url + path, headers=all_headers) as response:
            return response, await response.read()
