"""All transports fulfil one contract: within a loop, over ipc, TCP, and TCP with CURVE."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from aiperf_svc.adapters.messaging.bus import DOWN, UP, Addresses, Bus, ask, decode, encode
from aiperf_svc.adapters.messaging.curve_keys import CurveKeys
from aiperf_svc.adapters.messaging.proxies import Proxies
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.protocol.messages.credits import WorkerAttached
from aiperf_svc.protocol.messages.events import CancelRequested
from aiperf_svc.protocol.ports import Port
from tests.support.ports import free_addresses

TRANSPORTS = ("inproc", "ipc", "tcp", "curve")
MESSAGE = CancelRequested("run", "me", 1, reason="test")
WAIT_S = 60.0


def addresses(transport: str, folder: Path) -> Addresses:
    if transport == "inproc":
        return Addresses("inproc://test")
    if transport == "ipc":
        return Addresses(f"ipc://{folder}")
    return free_addresses()


@pytest.fixture(params=TRANSPORTS)
async def bus(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bus]:
    keys = CurveKeys.make() if request.param == "curve" else None
    bus = Bus(addresses(request.param, tmp_path), curve=keys)
    await bus.start()
    yield bus
    await bus.close()


async def receive(sock: zmq.asyncio.Socket) -> list[bytes]:
    return await asyncio.wait_for(sock.recv_multipart(), WAIT_S)


async def test_a_message_passes_from_push_to_pull(bus: Bus) -> None:
    pull = bus.bind(zmq.PULL, Port.RECORDS)
    push = bus.connect(zmq.PUSH, Port.RECORDS)
    await push.send(encode(MESSAGE))
    assert decode((await receive(pull))[0]) == MESSAGE


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
async def test_pods_with_ipv6_addresses_connect() -> None:
    where = Addresses("tcp://*", {Port.RECORDS.name: 0}, {"records-manager": "::1"}, "::1")
    bus = Bus(where, curve=CurveKeys.make())
    await bus.start()
    pull = bus.bind(zmq.PULL, Port.RECORDS)
    push = bus.connect(zmq.PUSH, Port.RECORDS, address=bus.advertised(pull))
    await push.send(encode(MESSAGE))
    assert decode((await receive(pull))[0]) == MESSAGE
    await bus.close()


async def test_router_replies_to_the_requesting_dealer(bus: Bus) -> None:
    router = bus.bind(zmq.ROUTER, Port.CREDIT_DROP)
    dealer = bus.connect(zmq.DEALER, Port.CREDIT_DROP, identity=b"worker")
    await dealer.send(encode(WorkerAttached("run", "worker", 1)))
    name, _ = await receive(router)
    assert name == b"worker"
    await router.send_multipart([name, encode(MESSAGE)])
    assert decode((await receive(dealer))[0]) == MESSAGE


async def test_router_raises_for_an_unknown_receiver(bus: Bus) -> None:
    router = bus.bind(zmq.ROUTER, Port.CREDIT_DROP)
    with pytest.raises(zmq.ZMQError, match="unreachable"):
        await router.send_multipart([b"nobody", b""])


async def test_thousands_of_pending_responses_are_all_delivered(bus: Bus) -> None:
    questions, response = 3_000, bytes(10_000)
    many = bus.bind(zmq.DEALER, Port.DATASET_BACK)
    replier = bus.connect(zmq.REP, Port.DATASET_BACK)

    async def reply() -> None:
        for _ in range(questions):
            await replier.recv()
            await replier.send(response)

    replying = asyncio.create_task(reply())
    for _ in range(questions):
        await many.send_multipart([b"", b"?"])
    await asyncio.wait_for(replying, WAIT_S)
    for _ in range(questions):
        assert (await receive(many))[-1] == response


async def test_unanswered_request_is_repeated(bus: Bus) -> None:
    deaf = bus.bind(zmq.ROUTER, Port.DATASET_FRONT)
    asker = bus.connect(zmq.REQ, Port.DATASET_FRONT)
    asking = asyncio.create_task(ask(asker, b"?", again_s=0.01))
    first, second = await receive(deaf), await receive(deaf)
    await deaf.send_multipart([*first[:-1], b"to the question before"])
    await deaf.send_multipart([*second[:-1], b"to this one"])
    while not asking.done():
        third = asyncio.create_task(receive(deaf))
        await asyncio.wait((asking, third), return_when=asyncio.FIRST_COMPLETED)
        if third.done():
            await deaf.send_multipart([*third.result()[:-1], b"to this one"])
        else:
            third.cancel()
    assert await asking == b"to this one"


async def test_the_event_proxy_carries_both_topics(bus: Bus) -> None:
    proxies = Proxies(bus)
    proxies.start()
    publisher = bus.connect(zmq.PUB, Port.EVENTS_IN)
    subscribers = {}
    for topic in (UP, DOWN):
        subscribers[topic] = bus.connect(zmq.SUB, Port.EVENTS_OUT)
        subscribers[topic].setsockopt(zmq.SUBSCRIBE, topic)
    for topic, sock in subscribers.items():
        received = asyncio.ensure_future(receive(sock))
        # State is published until it is received, because subscriptions take effect with a delay.
        while not received.done():
            await publisher.send_multipart([topic, encode(MESSAGE)])
            await asyncio.wait([received], timeout=0.02)
        assert decode(received.result()[1]) == MESSAGE
        assert received.result()[0] == topic


async def test_the_dataset_proxy_brings_the_response_back(bus: Bus) -> None:
    Proxies(bus).start()
    server = bus.connect(zmq.REP, Port.DATASET_BACK)
    client = bus.connect(zmq.REQ, Port.DATASET_FRONT)
    await client.send(b"question")
    assert await receive(server) == [b"question"]
    await server.send(b"response")
    assert await receive(client) == [b"response"]


async def test_raw_records_reach_the_processor_that_they_name(bus: Bus) -> None:
    Proxies(bus).start()
    processors = [bus.connect(zmq.DEALER, Port.RAW_BACK, identity=b"p%d" % i) for i in range(3)]
    worker = bus.connect(zmq.DEALER, Port.RAW_FRONT, identity=b"worker")
    for number in range(3):
        received = asyncio.ensure_future(receive(processors[number]))
        while not received.done():
            await worker.send_multipart([b"p%d" % number, b"record %d" % number])
            await asyncio.wait([received], timeout=0.02)
        assert received.result() == [b"record %d" % number]


@pytest.mark.parametrize("frames", [[b"p"], [b"p", b"record", b"more"], [b"\xff", b"record"]])
async def test_malformed_raw_records_are_dropped(tmp_path: Path, frames: list[bytes]) -> None:
    bus = Bus(addresses("ipc", tmp_path))
    Proxies(bus).start()
    processor = bus.connect(zmq.DEALER, Port.RAW_BACK, identity=b"p")
    worker = bus.connect(zmq.DEALER, Port.RAW_FRONT)
    received = asyncio.ensure_future(receive(processor))
    # The first messages may arrive before the processor has connected.
    async with asyncio.timeout(WAIT_S):
        while not received.done():
            await worker.send_multipart(frames)
            await worker.send_multipart([b"p", b"record"])
            await asyncio.wait([received], timeout=0.02)
    assert received.result() == [b"record"]
    await bus.close()


async def test_hanging_processor_blocks_others_until_timeout(tmp_path: Path) -> None:
    bus = Bus(addresses("ipc", tmp_path))
    proxies = Proxies(bus)
    proxies.start()
    hung = bus.connect(zmq.DEALER, Port.RAW_BACK, identity=b"hung")
    healthy = bus.connect(zmq.DEALER, Port.RAW_BACK, identity=b"healthy")
    worker = bus.connect(zmq.DEALER, Port.RAW_FRONT)
    for name, sock in ((b"hung", hung), (b"healthy", healthy)):
        while not await sock.poll(20):
            await worker.send_multipart([name, b"are you there?"])
    sending = asyncio.create_task(_send_without_end(worker, b"hung"))
    # All queues on the way are full when the worker's own queue accepts no more.
    while await worker.poll(200, zmq.POLLOUT):  # type: ignore[call-arg]
        pass
    proxies.give_up(["hung"])
    sending.cancel()
    await asyncio.wait([sending])
    await worker.send_multipart([b"healthy", b"record"])
    while await receive(healthy) != [b"record"]:
        pass
    await bus.close()
    proxies.join()


async def _send_without_end(sock: zmq.asyncio.Socket, name: bytes) -> None:
    while True:
        await sock.send_multipart([name, b"record" * 1000])


async def test_subscriber_closes_without_lingering(tmp_path: Path) -> None:
    where = addresses("ipc", tmp_path)
    publishing, subscribing = Bus(where), Bus(where)
    publisher = publishing.bind(zmq.XPUB, Port.EVENTS_OUT)
    subscriber = subscribing.connect(zmq.SUB, Port.EVENTS_OUT)
    monitor = subscriber.get_monitor_socket(zmq.EVENT_CONNECT_RETRIED)
    subscriber.setsockopt(zmq.SUBSCRIBE, DOWN)
    await receive(publisher)
    await publishing.close()
    await receive(monitor)
    subscriber.get(zmq.EVENTS)  # Makes ZeroMQ notice the lost connection.
    subscriber.disable_monitor()
    monitor.close()
    await asyncio.wait_for(subscribing.close(linger_ms=int(3_000 * WAIT_S)), WAIT_S)


async def test_used_port_is_one_clear_error(tmp_path: Path) -> None:
    where = addresses("tcp", tmp_path)
    first, second = Bus(where), Bus(where)
    first.bind(zmq.PULL, Port.RECORDS)
    with pytest.raises(EnvironmentProblem, match=r"cannot listen on tcp://127\.0\.0\.1"):
        second.bind(zmq.PULL, Port.RECORDS)
    await second.close()
    await first.close()
