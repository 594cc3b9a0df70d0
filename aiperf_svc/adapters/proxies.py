"""The three forwarders that the system controller hosts, a thread each.

Everybody connects to the controller, nobody has to know where the others are. The event bus and the
dataset path are plain ZeroMQ proxies. Raw records must reach the one processor that has the earlier
fragments of the same request, so theirs routes by name and refuses to drop: a worker's frames are
`[processor, payload]`.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import zmq

from aiperf_svc.adapters.bus import Bus
from aiperf_svc.protocol.ports import Port

RETRY_S = 0.005
"""Between attempts to pass a batch to a processor whose queue is full: a ROUTER polls as writable
as long as any of its peers has room."""

log = logging.getLogger(__name__)


class Proxies:
    """Starts the threads; they end when the bus closes its context."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._threads: list[threading.Thread] = []
        self._lost: frozenset[str] = frozenset()

    def give_up(self, processors: Iterable[str]) -> None:
        """Pass nothing more to these: one that hangs, connected and with a full queue, would hold
        up the records of all others."""
        self._lost = frozenset(processors)

    def start(self) -> None:
        """Bind all six ports, then forward. Raises EnvironmentProblem when one is taken."""
        plain, routed = self._forward, self._route_by_name
        events = self._forward_events
        self._start("events", events, zmq.XSUB, Port.EVENTS_IN, zmq.XPUB, Port.EVENTS_OUT)
        self._start("dataset", plain, zmq.ROUTER, Port.DATASET_FRONT, zmq.DEALER, Port.DATASET_BACK)
        self._start("raw", routed, zmq.ROUTER, Port.RAW_FRONT, zmq.ROUTER, Port.RAW_BACK)

    def _start(
        self,
        name: str,
        forward: Callable[[zmq.Socket[Any], zmq.Socket[Any]], None],
        front_kind: int,
        front_port: Port,
        back_kind: int,
        back_port: Port,
    ) -> None:
        context = self._bus.raw_context
        front, back = context.socket(front_kind), context.socket(back_kind)
        self._bus.bind_socket(front, front_port)
        self._bus.bind_socket(back, back_port)
        if forward == self._forward:
            for sock in (front, back):
                if sock.type == zmq.ROUTER:
                    # A reply to a client that has gone is of no use to anybody.
                    sock.setsockopt(zmq.ROUTER_MANDATORY, 0)
        thread = threading.Thread(
            target=_until_closed, args=(forward, front, back), name=f"proxy-{name}", daemon=True
        )
        thread.start()
        self._threads.append(thread)

    @staticmethod
    def _forward(front: zmq.Socket[Any], back: zmq.Socket[Any]) -> None:
        zmq.proxy(front, back)

    @staticmethod
    def _forward_events(front: zmq.Socket[Any], back: zmq.Socket[Any]) -> None:
        """As `zmq.proxy`, but subscriptions end here: every service has a topic of its own, and
        each of thousands would be told to each of thousands of publishers."""
        front.send(b"\x01")  # everything
        poller = zmq.Poller()
        poller.register(front, zmq.POLLIN)
        poller.register(back, zmq.POLLIN)
        while True:
            for sock, _ in poller.poll():
                frames = sock.recv_multipart(copy=False)
                if sock is front:
                    back.send_multipart(frames, copy=False)

    def _route_by_name(self, front: zmq.Socket[Any], back: zmq.Socket[Any]) -> None:
        while True:
            _, name, payload = front.recv_multipart(copy=False)
            processor = bytes(name.buffer).decode()
            if not self._has_passed(back, processor, payload):
                # Its worker still has the batch and sends it again when the roster names another.
                log.warning("no record processor %s", processor)

    def _has_passed(self, back: zmq.Socket[Any], processor: str, payload: zmq.Frame) -> bool:
        while processor not in self._lost:
            try:
                back.send_multipart([processor.encode(), payload], zmq.NOBLOCK, copy=False)
            except zmq.Again:
                time.sleep(RETRY_S)
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                return False
            else:
                return True
        return False

    def join(self) -> None:
        """Wait for the threads, after the bus is closed."""
        for thread in self._threads:
            thread.join()


def _until_closed(
    forward: Callable[[zmq.Socket[Any], zmq.Socket[Any]], None],
    front: zmq.Socket[Any],
    back: zmq.Socket[Any],
) -> None:
    try:
        forward(front, back)
    except zmq.ZMQError as error:
        if error.errno not in (zmq.ETERM, zmq.ENOTSOCK):
            log.exception("a proxy stopped")
    finally:
        front.close(0)
        back.close(0)
