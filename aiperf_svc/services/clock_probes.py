"""Compares a worker's clock with the timing manager's. Contains both sides of the exchange."""

import asyncio

import zmq.asyncio

from aiperf_svc.adapters.host.clocks import raw_ns, read_clocks
from aiperf_svc.adapters.messaging.bus import encode
from aiperf_svc.core.control.clock_offset import ClockOffset, ClockReading
from aiperf_svc.core.control.control_intervals import probe_interval_s
from aiperf_svc.protocol.messages.credits import ClockProbed, ClockReply
from aiperf_svc.services.base import BaseService, wall_ns

FIRST_PROBES = 8
FIRST_PROBES_S = 0.02


async def probe_clock(service: BaseService, socket: zmq.asyncio.Socket) -> None:
    """Request the timing manager's time until cancelled, more often at first."""
    sent = 0
    usual_s = probe_interval_s(service.context.topology.workers)
    while True:
        now = read_clocks()
        probe = ClockProbed(*service.header, sent_wall_ns=now.wall_ns, sent_raw_ns=now.raw_ns)
        await socket.send(encode(probe))
        sent += 1
        await asyncio.sleep(FIRST_PROBES_S if sent < FIRST_PROBES else usual_s)


def handle_reply(service: BaseService, clock: ClockOffset, reply: ClockReply) -> None:
    """Add the timing manager's reply to the estimate."""
    if reply.boot_id == service.context.boot_id:
        clock.same_host()
    clock.add(
        sent_raw_ns=reply.sent_raw_ns,
        received_raw_ns=reply.received_raw_ns,
        reference=ClockReading(reply.replied_raw_ns, reply.replied_wall_ns, reply.slack_ns),
        local=read_clocks(),
    )


class Arrival:
    """The time at which a probe arrived. It is created before the probe is handled."""

    __slots__ = ("raw_ns", "wall_ns")

    def __init__(self) -> None:
        self.wall_ns, self.raw_ns = wall_ns(), raw_ns()


def reply_to(service: BaseService, probe: ClockProbed, arrival: Arrival) -> ClockReply:
    """Return the timing manager's reply to a probe."""
    clocks = read_clocks()
    return ClockReply(
        *service.header,
        sent_wall_ns=probe.sent_wall_ns,
        received_wall_ns=arrival.wall_ns,
        replied_wall_ns=clocks.wall_ns,
        boot_id=service.context.boot_id,
        sent_raw_ns=probe.sent_raw_ns,
        received_raw_ns=arrival.raw_ns,
        replied_raw_ns=clocks.raw_ns,
        slack_ns=clocks.slack_ns,
    )
