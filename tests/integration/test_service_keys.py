"""Access by CURVE keys on real TCP sockets. Each service has its own key."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from aiperf_svc.adapters.messaging.bus import DOWN, REPORT, UP, Addresses, Bus, encode
from aiperf_svc.adapters.messaging.curve_keys import CurveKeys, KeyPair
from aiperf_svc.adapters.messaging.proxies import Proxies
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.protocol.messages import AnyMessage
from aiperf_svc.protocol.messages.events import CancelRequested, Heartbeat, RunStatePublished
from aiperf_svc.protocol.ports import BOUND_BY, CONNECTED_BY, REPLICAS, Port
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import is_report
from tests.support.in_one_loop import config, results_of, server
from tests.support.ports import free_addresses

WAIT_S = 60.0
PEER = {
    Port.RECORDS: zmq.PUSH,
    Port.CREDIT_DROP: zmq.DEALER,
    Port.CREDIT_RETURN: zmq.PUSH,
    Port.DATASET_FRONT: zmq.REQ,
    Port.DATASET_BACK: zmq.REP,
    Port.EVENTS_IN: zmq.PUB,
    Port.EVENTS_OUT: zmq.SUB,
    Port.REPORTS_IN: zmq.PUB,
    Port.RAW_FRONT: zmq.DEALER,
    Port.RAW_BACK: zmq.DEALER,
    Port.RAW_DIRECT: zmq.DEALER,
}

REFUSED = {zmq.EVENT_DISCONNECTED, zmq.EVENT_HANDSHAKE_FAILED_AUTH}
REFUSED |= {zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL}
MESSAGE = CancelRequested("run", "me", 1, reason="test")
STRANGER = KeyPair(*zmq.curve_keypair())


@asynccontextmanager
async def bus_of(keys: CurveKeys, where: Addresses, *services: Service) -> AsyncIterator[Bus]:
    """Run the sockets of a process with these services, which has only their keys."""
    bus = Bus(where, curve=keys.of(services))
    await bus.start()
    try:
        yield bus
    finally:
        await bus.close()


@asynccontextmanager
async def everybody(keys: CurveKeys, where: Addresses) -> AsyncIterator[None]:
    """Bind every port of the map by the service that owns it."""
    s = Service
    async with (
        bus_of(keys, where, s.SYSTEM_CONTROLLER) as controller,
        bus_of(keys, where, s.TIMING_MANAGER) as timing,
        bus_of(keys, where, s.RECORDS_MANAGER) as records,
        bus_of(keys, where, s.RECORD_PROCESSOR) as processor,
    ):
        proxies = Proxies(controller)
        proxies.start()
        timing.bind(zmq.ROUTER, Port.CREDIT_DROP)
        timing.bind(zmq.PULL, Port.CREDIT_RETURN)
        records.bind(zmq.PULL, Port.RECORDS)
        processor.bind(zmq.ROUTER, Port.RAW_DIRECT)
        yield
    proxies.join()


async def can_handshake(kind: int, address: str, server: bytes, own: KeyPair | None) -> bool:
    """Return whether a client's handshake succeeds, according to its socket monitor."""
    context = zmq.asyncio.Context()
    client = context.socket(kind)
    monitor = client.get_monitor_socket()
    if own is not None:
        client.curve_serverkey = server
        client.curve_publickey, client.curve_secretkey = own.public, own.secret
    client.connect(address)
    try:
        while True:
            frames = await asyncio.wait_for(monitor.recv_multipart(), WAIT_S)
            event = parse_monitor_message(frames)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return True
            if event in REFUSED:
                return False
    finally:
        client.disable_monitor()
        context.destroy(0)


def test_every_port_has_a_socket_kind() -> None:
    assert set(PEER) == set(CONNECTED_BY) == set(BOUND_BY) - {Port.RESULTS_API}


async def test_service_connects_only_to_its_peers() -> None:
    keys, where = CurveKeys.make(), free_addresses()
    tried = [(port, service) for port in PEER for service in Service]

    async def attempt(port: Port, service: Service) -> bool:
        own = KeyPair(keys.public[service], keys.secret[service])
        server = keys.public[BOUND_BY[port]]
        return await can_handshake(PEER[port], where.connect(port), server, own)

    async with everybody(keys, where):
        found = await asyncio.gather(*(attempt(*each) for each in tried))
    assert {way for way, is_in in zip(tried, found, strict=True) if is_in} == {
        (port, service) for port, clients in CONNECTED_BY.items() for service in clients
    }


@pytest.mark.parametrize("whose", ["no keys", "another server's", "a stranger's pair"])
async def test_process_without_a_stack_key_is_refused(whose: str) -> None:
    keys, where = CurveKeys.make(), free_addresses()

    async def attempt(port: Port) -> bool:
        server = STRANGER.public if "server" in whose else keys.public[BOUND_BY[port]]
        own = None if whose == "no keys" else STRANGER
        return await can_handshake(PEER[port], where.connect(port), server, own)

    async with everybody(keys, where):
        assert not any(await asyncio.gather(*map(attempt, PEER)))


@pytest.mark.parametrize("whose", [Service.RECORD_PROCESSOR, "a stranger's"])
async def test_no_service_connects_without_the_authenticator(whose: str) -> None:
    keys, where = CurveKeys.make(), free_addresses()
    async with bus_of(keys, where, Service.RECORDS_MANAGER) as bus:
        bus.bind(zmq.PULL, Port.RECORDS)
        bus.stop_authenticator()
        own = STRANGER
        if isinstance(whose, Service):
            own = KeyPair(keys.public[whose], keys.secret[whose])
        server = keys.public[Service.RECORDS_MANAGER]
        assert not await can_handshake(zmq.PUSH, where.connect(Port.RECORDS), server, own)


async def test_stopped_authenticator_releases_its_endpoint() -> None:
    async with bus_of(CurveKeys.make(), free_addresses(), Service.RECORDS_MANAGER) as bus:
        bus.stop_authenticator()
        with bus.raw_context.socket(zmq.REP) as successor:
            successor.bind("inproc://zeromq.zap.01")
            successor.unbind("inproc://zeromq.zap.01")


@pytest.mark.parametrize("port", [p for p in PEER if Service.WORKER is not BOUND_BY[p]])
async def test_worker_cannot_bind_another_services_port(port: Port) -> None:
    keys, where = CurveKeys.make(), free_addresses()
    async with bus_of(keys, where, Service.WORKER) as bus:
        with pytest.raises(EnvironmentProblem, match=rf"no CURVE key .* to bind {port.name}"):
            bus.bind(zmq.ROUTER, port)
    # The same by force, with the only key pair of the worker.
    context = zmq.asyncio.Context()
    server = context.socket(zmq.ROUTER)
    server.curve_server = True
    server.curve_publickey = keys.public[Service.WORKER]
    server.curve_secretkey = keys.secret[Service.WORKER]
    number = server.bind_to_random_port("tcp://127.0.0.1")
    client = min(CONNECTED_BY[port])
    known, own = keys.of([client]).to_connect(port)
    try:
        assert not await can_handshake(zmq.DEALER, f"tcp://127.0.0.1:{number}", known, own)
    finally:
        context.destroy(0)


async def test_refused_process_names_the_missing_key() -> None:
    async with bus_of(CurveKeys.make(), free_addresses(), Service.WORKER) as bus:
        with pytest.raises(EnvironmentProblem, match=r"no CURVE key record-processor\.secret"):
            bus.connect(zmq.PUSH, Port.RECORDS)


async def test_services_of_one_process_reach_each_other() -> None:
    keys, where = CurveKeys.make(), free_addresses()
    single = set(Service) - REPLICAS
    async with bus_of(keys, where, *single) as bus:
        pull = bus.bind(zmq.ROUTER, Port.EVENTS_OUT)
        push = bus.connect(zmq.DEALER, Port.EVENTS_OUT)
        await push.send(encode(MESSAGE))
        assert (await asyncio.wait_for(pull.recv_multipart(), WAIT_S))[1] == encode(MESSAGE)


async def test_only_reports_of_a_worker_are_forwarded() -> None:
    keys, where = CurveKeys.make(), free_addresses()
    s = Service
    async with (
        bus_of(keys, where, s.SYSTEM_CONTROLLER) as controller,
        bus_of(keys, where, s.WORKER) as worker,
        bus_of(keys, where, s.WORKER_MANAGER) as manager,
    ):
        proxies = Proxies(controller)
        proxies.start()
        publisher = worker.connect(zmq.PUB, Port.REPORTS_IN)
        subscriber = manager.connect(zmq.SUB, Port.EVENTS_OUT)
        subscriber.setsockopt(zmq.SUBSCRIBE, b"")
        seen: list[bytes] = []
        async with asyncio.timeout(WAIT_S):
            # Orders are sent first in each round. After three reports, several rounds have passed.
            while len(seen) < 3:
                for topic in (DOWN, UP, b"to worker-1 ", b"report me", REPORT):
                    await publisher.send_multipart([topic, b""])
                while await subscriber.poll(20):
                    seen.append((await subscriber.recv_multipart())[0])
        assert set(seen) == {REPORT}
    proxies.join()


@pytest.mark.parametrize("route", ["proxy", "direct"])
async def test_run_needs_one_key_per_service(route: str, tmp_path: Path) -> None:
    with server(ttft="1ms", itl="1ms", tokens=3) as mock:
        benchmark = config(mock.url, concurrency=8, requests=100)
        benchmark["deployment"] = {"raw_route": route}
        summary = await results_of(benchmark, tmp_path, workers=2, processors=2, is_apart=True)
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["issued"] == accounts["completed"] == accounts["records"] == 100
    assert accounts["violations"] == []


HEARTBEAT = Heartbeat(
    "run",
    "worker-1",
    1,
    service=Service.WORKER,
    seen_state=0,
    seen_roster=0,
    reached=RunState.PENDING,
)


@pytest.mark.parametrize(
    ("message", "is_one"),
    [
        (HEARTBEAT, True),
        (Heartbeat("run", "timing-manager", 1, service=Service.WORKER, seen_state=0,
                   seen_roster=0, reached=RunState.PENDING), False),
        (Heartbeat("run", "worker-1", 1, service=Service.TIMING_MANAGER, seen_state=0,
                   seen_roster=0, reached=RunState.PENDING), False),
        (MESSAGE, False),
        (RunStatePublished("run", "system-controller", 1, number=9, state=RunState.DONE), False),
    ],
    ids=["its own", "in another's name", "as another service", "a cancel", "a state"],
)  # fmt: skip
def test_worker_may_report_only_its_own_state(message: AnyMessage, is_one: bool) -> None:
    assert is_report(message) == is_one


def test_process_has_only_the_keys_it_needs() -> None:
    s, keys = Service, CurveKeys.make()
    worker = keys.of([s.WORKER])
    assert set(worker.secret) == {s.WORKER}
    assert set(worker.public) == {
        s.WORKER, s.SYSTEM_CONTROLLER, s.TIMING_MANAGER, s.RECORD_PROCESSOR,
    }  # fmt: skip
    assert set(keys.of(s).public) == set(keys.of(s).secret) == set(s)
    for service in s:
        assert set(keys.of([service]).secret) == {service}


def test_keys_are_read_back_by_their_owner_only(tmp_path: Path) -> None:
    keys = CurveKeys.make().of([Service.TIMING_MANAGER])
    keys.save(tmp_path)
    assert CurveKeys.load(tmp_path) == keys
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_missing_keys_are_one_clear_error(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(EnvironmentProblem, match="cannot read the CURVE keys"):
            CurveKeys.load(folder)
