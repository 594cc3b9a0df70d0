"""How a follower handles the end of a process, and services that do not respond."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiperf_svc.adapters.host.processes import Process
from aiperf_svc.adapters.results_api.run_api import ApiUnavailable, RunApi
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.adapters.terminal.screens import Silent
from aiperf_svc.domain.errors import BenchmarkFailed
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner.environment import LocalRun
from aiperf_svc.runner.follower import Follower
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.process_placement import LocalServices
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.services.forks import Order

VALUES: dict[str, Any] = {
    "reason": "", "phase": "profiling", "is_cancelling": False, "elapsed_s": 1.0,
    "phase_elapsed_s": 1.0, "workers": 1, "workers_lost": 0, "record_processors": 1,
    "message": "", "results_ready": False, "artifact_error": "", "verdict": None,
}  # fmt: skip


class EndedProcess:
    """A process that ends once the runner has read `state`."""

    def __init__(self, code: int) -> None:
        self.name = "dataset-manager"
        self.code = code
        self.heard = asyncio.Event()

    @property
    def end_text(self) -> str:
        return f"ended with code {self.code}"

    async def wait(self) -> int:
        await self.heard.wait()
        return self.code


class Api:
    """An API whose second status, if any, arrives long after the end of the process."""

    def __init__(self, process: Any, state: RunState) -> None:
        self._process, self._state = process, state

    async def status(self, *, after: int | None = None, timeout_s: float = 0.0) -> Status:
        if after is None:
            return Status(number=1, state=self._state, **VALUES)
        self._process.heard.set()
        if self._process.code:
            await asyncio.Event().wait()
        for _ in range(100):  # loop iterations in which the runner notices the end
            await asyncio.sleep(0)
        return Status(number=2, state=RunState.DONE, is_settled=True, **VALUES)

    async def collected(self) -> None:
        pass


async def followed(folder: Path, code: int, state: RunState) -> Follower:
    process = cast(Process, EndedProcess(code))
    config = SimpleNamespace(experiment=None)
    run = SimpleNamespace(logs=folder, options=RunOptions(), config=config)
    services = LocalServices(cast(LocalRun, run), None)
    order = Order(services=["dataset-manager"], environ={}, output="", command=[])
    services._processes, services._orders = [process], {process.name: order}
    with Interrupts() as interrupts:
        follower = Follower(
            cast(RunApi, Api(process, state)),
            interrupts=interrupts,
            display=Silent(),
            watches=(services._watch_processes,),
        )
        await follower.run()
    return follower


@pytest.mark.parametrize("state", [RunState.PENDING, RunState.PROCESSING])
async def test_clean_exit_before_final_state_is_no_failure(tmp_path: Path, state: RunState) -> None:
    assert (await followed(tmp_path, 0, state)).is_over


@pytest.mark.parametrize(
    ("code", "state"), [(1, RunState.PROCESSING), (1, RunState.PENDING), (-9, RunState.PROFILING)]
)
async def test_end_of_a_needed_process_fails_the_run(
    tmp_path: Path, code: int, state: RunState
) -> None:
    with pytest.raises(BenchmarkFailed, match=f"dataset-manager ended with code {code}"):
        await followed(tmp_path, code, state)


class SilentApi:
    """An API whose second status arrives after some requests without a response."""

    def __init__(self, requests: int, lasts_s: float) -> None:
        """Create the API. Each unanswered request takes `lasts_s`."""
        self._left, self._lasts_s = requests, lasts_s
        self.passed_s = 0.0

    async def status(self, *, after: int | None = None, timeout_s: float = 0.0) -> Status:
        if after is None:
            return Status(number=1, state=RunState.PROFILING, **VALUES)
        if self._left:
            self._left -= 1
            self.passed_s += self._lasts_s
            raise ApiUnavailable("no response in time")
        return Status(number=2, state=RunState.DONE, is_settled=True, **VALUES)

    async def collected(self) -> None:
        pass


async def is_followed_to_its_end(api: SilentApi, monkeypatch: pytest.MonkeyPatch) -> bool:
    loop = asyncio.get_running_loop()
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + api.passed_s)
    with Interrupts() as interrupts:
        follower = Follower(cast(RunApi, api), interrupts=interrupts, display=Silent())
        await follower.run()
    return follower.is_over


@pytest.mark.parametrize(("requests", "lasts_s"), [(2, 11.0), (1, 3600.0)])
async def test_suspended_runner_continues_its_run(
    monkeypatch: pytest.MonkeyPatch, requests: int, lasts_s: float
) -> None:
    assert await is_followed_to_its_end(SilentApi(requests, lasts_s), monkeypatch)


async def test_silence_of_the_services_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BenchmarkFailed, match="the services do not respond: no response in time"):
        await is_followed_to_its_end(SilentApi(3, 11.0), monkeypatch)
