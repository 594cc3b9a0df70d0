"""Runs the three forwarders of the system controller, one thread each.

All services connect to the controller, so none needs the addresses of others. The event bus and the
dataset path are plain ZeroMQ proxies. Raw records must reach the processor that has the earlier
fragments of the same request, so their forwarder routes by name and never drops. A worker's frames
are `[processor, payload]`.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import zmq

from aiperf_svc.adapters.messaging.bus import REPORT, Bus
from aiperf_svc.protocol.ports import Port

RETRY_S = 0.005
"""Seconds between attempts to pass a batch to a processor with a full queue. A ROUTER polls as
writable while any of its peers has room."""

log = logging.getLogger(__name__)


class Proxies:
    """The forwarders' threads. They end when the bus closes its context."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._threads: list[threading.Thread] = []
        self._lost: frozenset[str] = frozenset()

    def give_up(self, processors: Iterable[str]) -> None:
        """Stop forwarding records to these processors. A hanging processor with a full queue would
        block the records of all others."""
        self._lost = frozenset(processors)

    def start(self) -> None:
        """Bind all seven ports, then forward. Raises EnvironmentProblem if one of them is taken."""
        events, reports = (zmq.XSUB, Port.EVENTS_IN), (zmq.XSUB, Port.REPORTS_IN)
        self._start("events", self._forward_events, events, reports, (zmq.XPUB, Port.EVENTS_OUT))
        dataset = (zmq.ROUTER, Port.DATASET_FRONT), (zmq.DEALER, Port.DATASET_BACK)
        self._start("dataset", self._forward, *dataset)
        raw = (zmq.ROUTER, Port.RAW_FRONT), (zmq.ROUTER, Port.RAW_BACK)
        self._start("raw", self._route_by_name, *raw)

    def _start(self, name: str, forward: Callable[..., None], *ends: tuple[int, Port]) -> None:
        sockets = [self._bus.raw_context.socket(kind) for kind, _ in ends]
        for sock, (_, port) in zip(sockets, ends, strict=True):
            self._bus.bind_socket(sock, port)
            if forward == self._forward and sock.type == zmq.ROUTER:
                # Drop replies to clients that have left.
                sock.setsockopt(zmq.ROUTER_MANDATORY, 0)
        thread = threading.Thread(
            target=_until_closed, args=(forward, sockets), name=f"proxy-{name}", daemon=True
        )
        thread.start()
        self._threads.append(thread)

    @staticmethod
    def _forward(front: zmq.Socket[Any], back: zmq.Socket[Any]) -> None:
        zmq.proxy(front, back)

    @staticmethod
    def _forward_events(
        events: zmq.Socket[Any], reports: zmq.Socket[Any], out: zmq.Socket[Any]
    ) -> None:
        """Forward the event bus like `zmq.proxy`, but without its subscriptions: every service has
        its own topic, and each of thousands of topics would be sent to each of thousands of
        publishers. The port for reports accepts only reports, so a worker's key does not allow it
        to publish commands."""
        poller = zmq.Poller()
        poller.register(out, zmq.POLLIN)
        for sock in (events, reports):
            sock.send(b"\x01")  # all topics
            poller.register(sock, zmq.POLLIN)
        while True:
            for sock, _ in poller.poll():
                frames = sock.recv_multipart(copy=False)
                if sock is events or (sock is reports and bytes(frames[0].buffer) == REPORT):
                    out.send_multipart(frames, copy=False)

    def _route_by_name(self, front: zmq.Socket[Any], back: zmq.Socket[Any]) -> None:
        while True:
            _, *frames = front.recv_multipart(copy=False)
            if len(frames) != 2:
                log.warning("dropped: %d frames instead of processor and payload", len(frames))
                continue
            name, payload = frames
            processor = bytes(name.buffer).decode(errors="replace")
            if not self._has_passed(back, processor, payload):
                # Its worker still has the batch and resends it when the roster names another
                # processor.
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
        """Wait for the threads after the bus is closed."""
        for thread in self._threads:
            thread.join()


def _until_closed(forward: Callable[..., None], sockets: list[zmq.Socket[Any]]) -> None:
    try:
        forward(*sockets)
    except zmq.ZMQError as error:
        if error.errno not in (zmq.ETERM, zmq.ENOTSOCK):
            log.exception("a proxy stopped")
    finally:
        for sock in sockets:
            sock.close(0)
