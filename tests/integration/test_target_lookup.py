"""A worker resolves its target before the load, and again after its pods have moved."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiperf_svc.adapters.inference.client import InferenceClient
from aiperf_svc.adapters.inference.listeners import check_listeners
from aiperf_svc.adapters.inference.resolved_target import Target
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.load.target_addresses import SocketAddress, TargetAddresses
from aiperf_svc.domain.errors import BenchmarkFailed, ConfigError
from aiperf_svc.services import target_lookup
from aiperf_svc.services.base import mono_ns
from aiperf_svc.services.target_lookup import check_targets, find_target, follow_names
from tests.support.small_configs import small_config

FOUND = cast("Target", SimpleNamespace(addresses=()))
LATER_NS = 2**62


def config(**endpoint: Any) -> BenchmarkConfig:
    return small_config("http://target.test:8000", endpoint=endpoint)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASK_AGAIN_S", "LOOKUP_S", "MAX_LOOKUP_S"):
        monkeypatch.setattr(target_lookup, name, 0.0)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Target | ConfigError]:
    """Replace lookups by these results in order. The last one repeats."""
    outcomes: list[Target | ConfigError] = [FOUND]

    def resolve(_: BenchmarkConfig) -> Target:
        one = outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
        if isinstance(one, ConfigError):
            raise one
        return one

    monkeypatch.setattr(target_lookup, "resolve_target", resolve)
    return outcomes


async def find(settings: BenchmarkConfig, until_mono_ns: int, noted: list[str]) -> Target:
    return await find_target(settings, run_id="r", until_mono_ns=until_mono_ns, note=noted.append)


def responding(*problems: str) -> Callable[..., Awaitable[str]]:
    """Return a readiness check with these results in order."""
    left = list(problems)

    async def readiness_problem(*_: object) -> str:
        return left.pop(0)

    return readiness_problem


async def test_wait_covers_the_name_and_the_server(
    found: list[Target | ConfigError], monkeypatch: pytest.MonkeyPatch
) -> None:
    found[:0] = [ConfigError("no such name")]
    monkeypatch.setattr(target_lookup, "readiness_problem", responding("connection refused", ""))
    noted: list[str] = []
    assert await find(config(wait_for_server="10s"), LATER_NS, noted) is FOUND
    assert noted == [
        "waiting for the server: no such name",
        "waiting for the server: connection refused",
        "",
    ]


async def test_server_is_not_checked_without_a_wait(
    found: list[Target | ConfigError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_lookup, "readiness_problem", None)
    assert await find(config(), mono_ns(), []) is FOUND


async def test_end_of_the_wait_states_the_reason(
    found: list[Target | ConfigError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_lookup, "readiness_problem", responding("status 503"))
    settings = config(wait_for_server="10s")
    with pytest.raises(BenchmarkFailed, match=r"not ready after 10s .*: status 503"):
        await find(settings, mono_ns(), [])
    found[:] = [ConfigError("no such name")]
    with pytest.raises(ConfigError, match="no such name"):
        await find(settings, mono_ns(), [])


@pytest.mark.parametrize("wait", ["0s", "10s"])
async def test_run_without_a_listener_fails_unless_it_waits(
    wait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = [True, False]
    monkeypatch.setattr(target_lookup, "refuses", lambda _: refused.pop(0))
    endpoint = config(wait_for_server=wait).endpoint
    await check_targets(endpoint, [FOUND, FOUND])
    monkeypatch.setattr(target_lookup, "refuses", lambda _: True)
    if wait == "10s":
        await check_targets(endpoint, [FOUND])
        return
    with pytest.raises(BenchmarkFailed, match="nothing listens at"):
        await check_targets(endpoint, [FOUND])


def test_refused_port_fails_unless_another_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listening = f"http://127.0.0.1:{server.getsockname()[1]}"
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            closed = f"http://127.0.0.1:{unused.getsockname()[1]}"
            refused = config(url=closed).endpoint
            with pytest.raises(BenchmarkFailed, match=f"nothing listens at {closed}: connection"):
                check_listeners([refused, refused])
            note = check_listeners([refused, config(url=listening).endpoint])
            assert note == f"nothing listens at {closed}: requests there will fail"
            check_listeners([config(url=closed, wait_for_server="1s").endpoint])
            check_listeners([config(url=closed, proxy=listening).endpoint])


def at(host: str) -> tuple[SocketAddress, ...]:
    return (SocketAddress(socket.AF_INET, (host, 8000)),)


async def test_only_failing_names_are_looked_up_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings = [config(url=f"http://target{number}.test:8000") for number in range(2)]
    fine, failing = (TargetAddresses(at("10.0.0.1")) for _ in settings)
    failing.wants_lookup = True
    clients = [
        (cast("InferenceClient", SimpleNamespace(addresses=addresses)), each)
        for addresses, each in zip((fine, failing), settings, strict=True)
    ]
    configs: list[BenchmarkConfig] = []
    calls: list[None] = []
    has_ended = asyncio.Event()

    async def look_up(failing_config: BenchmarkConfig) -> tuple[SocketAddress, ...]:
        configs.append(failing_config)
        if len(configs) == 1:
            raise ConfigError("no such name")
        return at("10.0.0.2")

    def list_clients() -> Any:
        calls.append(None)
        if len(calls) == 4:
            has_ended.set()
        return clients

    monkeypatch.setattr(target_lookup, "look_up_in_thread", look_up)
    following = asyncio.create_task(follow_names(list_clients, logging.getLogger("test")))
    await has_ended.wait()
    following.cancel()
    await asyncio.wait([following])
    assert configs == [settings[1]] * 2
    assert [each.name for each in failing.in_use] == ["10.0.0.2"]
    assert [each.name for each in fine.in_use] == ["10.0.0.1"]
    assert [record.getMessage() for record in caplog.records] == [
        "the target's addresses stay as they are: no such name",
        "the target's addresses are now 10.0.0.2",
    ]
