"""Heartbeats of a peer with CURVE keys must not look like messages."""

import zmq
import zmq.asyncio

from aiperf_svc.adapters.messaging.bus import Addresses, Bus
from aiperf_svc.adapters.messaging.curve_keys import CurveKeys
from aiperf_svc.protocol.ports import Port


async def test_heartbeat_makes_no_socket_readable() -> None:
    keys = CurveKeys.make()
    bus = Bus(Addresses(base="tcp://127.0.0.1", ports={Port.RECORDS.name: 0}), curve=keys)
    await bus.start()
    received = bus.bind(zmq.PULL, Port.RECORDS)
    with zmq.asyncio.Context() as context, context.socket(zmq.PUSH) as peer:
        peer.setsockopt(zmq.HEARTBEAT_IVL, 10)
        peer.curve_serverkey, own = keys.to_connect(Port.RECORDS)
        peer.curve_publickey, peer.curve_secretkey = own.public, own.secret
        peer.connect(bus.advertised(received))
        # The time for thirty heartbeats. One is enough to show the defect.
        assert await received.poll(300) == 0
        await peer.send(b"a message")
        assert await received.recv() == b"a message"
    await bus.close()
