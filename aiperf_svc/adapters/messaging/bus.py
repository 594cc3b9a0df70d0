"""Makes the ZeroMQ sockets of the services: addresses, limits and security.

Only addresses select the transport: `inproc://` within a test's loop, `ipc://` on one machine,
`tcp://` with CURVE between pods.

No message is dropped silently. At the high-water mark, PUSH and DEALER block their sender. ROUTER
raises if a peer is unknown, REP has no mark, and PUB/SUB carries only state that is published
again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from time import monotonic_ns
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator

from aiperf_svc.adapters.messaging.curve_keys import CurveKeys
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.protocol.messages import AnyMessage
from aiperf_svc.protocol.messages.base import VERSION, Message
from aiperf_svc.protocol.ports import BOUND_BY, Port

HIGH_WATER_MESSAGES = 1_000
"""High-water mark per socket and direction. The largest messages are records with the gaps between
their chunks, a few MiB."""
RAW_HIGH_WATER = 32
"""High-water mark per socket and direction for batches of raw records, most of which exceed 256
KiB. More batches wait in the worker, which counts them."""
BACKLOG = 4_096
HANDSHAKE_MS = 300_000
"""Timeout of a handshake. A peer that times out rejoins the end of the queue and leaves a dead
connection in it. If thousands connect at once, a shorter timeout would never let them finish."""
ASK_AGAIN_S = 20.0
"""Time after which a request is repeated: longer than a response takes when thousands of workers
send a request in the same second."""
RECEIVE_NS = 2_000_000
"""Longest time of receiving without yielding to other tasks."""
LINGER_MS = 2_000
"""Longest time for which a closing socket still delivers messages."""
_RAW_PORTS = frozenset((Port.RAW_FRONT, Port.RAW_BACK, Port.RAW_DIRECT))
UP, DOWN = b"up", b"down"
"""Topics of the event bus: to the control services, and to all services; see `topic_of`."""
TRIAL = b"trial"
"""Topic of an experiment's trials, to all processes."""
REPORT = b"report"
"""Topic of the reports of workers and record processors to the control services, and the only topic
to which they may publish."""

_VERSION_BYTE = bytes([VERSION])
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)
log = logging.getLogger(__name__)


def topic_of(name: str) -> bytes:
    """Return the topic of one service instance. It is not a prefix of another instance's topic."""
    return f"to {name} ".encode()


class ProtocolMismatch(Exception):
    """Raised for a message of another protocol version, or an invalid message."""


def encode(message: Message) -> bytes:
    return _VERSION_BYTE + _encoder.encode(message)


def decode(data: bytes) -> AnyMessage:
    """Decode a message. Raises ProtocolMismatch."""
    if data[:1] != _VERSION_BYTE:
        raise ProtocolMismatch(f"protocol version {data[:1].hex() or 'none'}, expected {VERSION}")
    try:
        message: AnyMessage = _decoder.decode(memoryview(data)[1:])
    except msgspec.MsgspecError as error:
        raise ProtocolMismatch(str(error)) from error
    return message


class Addresses(msgspec.Struct, frozen=True):
    """Turns the port map into addresses.

    `base` is `inproc://NAME`, `ipc://FOLDER` or `tcp://HOST`. Over TCP, `ports` maps a port's name
    to the number on this machine (default: the port map's), and `hosts` a service to the name under
    which other pods reach it.
    """

    base: str
    ports: dict[str, int] = {}
    hosts: dict[str, str] = {}
    advertise: str = ""
    """Host at which peers reach this process directly, over TCP."""

    @property
    def is_tcp(self) -> bool:
        """Whether other machines can connect."""
        return self.base.startswith("tcp://")

    @property
    def is_ipv6(self) -> bool:
        """Whether peers use IPv6, as the pods of a cluster without IPv4 do. Only then, because
        libzmq would look up IPv6 addresses of every name first."""
        return ":" in self.advertise

    def bind(self, port: Port, instance: str = "") -> str:
        """Return the address to bind `port` to. `instance` distinguishes several binders."""
        if not self.is_tcp:
            return self._local(port, instance)
        host = "*" if self.hosts else self.base.removeprefix("tcp://")
        number = self.ports.get(port.name, 0 if self.ports else int(port))
        return f"tcp://{host}:{number or '*'}"

    def connect(self, port: Port) -> str:
        """Return the address of the only binder of `port`."""
        if not self.is_tcp:
            return self._local(port, "")
        service = BOUND_BY[port]
        host = self.hosts.get(service.value, self.base.removeprefix("tcp://"))
        return f"tcp://{host}:{self.ports.get(port.name, int(port))}"

    def _local(self, port: Port, instance: str) -> str:
        name = port.name.lower() + (f"-{instance}" if instance else "")
        return f"{self.base}/{name}"


class _Authenticator(AsyncioAuthenticator):
    """An authenticator that gives peers no user id. libzmq would pass the id to the socket as a
    separate frame when a heartbeat arrives: the socket would poll as readable, its `recv` would
    find nothing, and `zmq.proxy` and `recv_multipart` would fail with EAGAIN."""

    def curve_user_id(self, client_public_key: bytes) -> str:
        return ""

    def stop(self) -> None:
        # A closed socket keeps its address until a libzmq thread handles it. Requests that reach it
        # in the meantime would never get a reply.
        if self.zap_socket:
            self.zap_socket.unbind("inproc://zeromq.zap.01")
        super().stop()


class Bus:
    def __init__(self, addresses: Addresses, *, curve: CurveKeys | None = None) -> None:
        self.addresses = addresses
        self._curve = curve
        self._context = zmq.asyncio.Context()
        self._context.max_sockets = 16_384
        self._authenticator: AsyncioAuthenticator | None = None
        self._sockets: list[zmq.Socket[Any]] = []

    @property
    def raw_context(self) -> zmq.Context[Any]:
        """The context for sockets of threads without an event loop."""
        return zmq.Context(self._context)

    async def start(self) -> None:
        """Start authenticating peers. Required before the first socket if there are keys."""
        if self._curve is not None:
            self._authenticator = _Authenticator(self._context)
            self._authenticator.start()
            for port in Port:
                clients = _Clients(self._curve.admitted_keys(port))
                self._authenticator.configure_curve_callback(port.name, clients)

    def bind(self, kind: int, port: Port, *, instance: str = "") -> zmq.asyncio.Socket:
        """Create a socket that listens on `port`. Raises EnvironmentProblem if the address is
        taken."""
        sock = self._context.socket(kind)
        self._sockets.append(sock)
        self.bind_socket(sock, port, instance=instance)
        return sock

    def advertised(self, sock: zmq.Socket[Any]) -> str:
        """Return the address at which peers reach a socket of this process."""
        address: str = sock.getsockopt_string(zmq.LAST_ENDPOINT)
        if self.addresses.is_tcp and self.addresses.advertise:
            host = self.addresses.advertise
            host = f"[{host}]" if self.addresses.is_ipv6 else host
            return f"tcp://{host}:{address.rpartition(':')[2]}"
        return address

    def bind_socket(self, sock: zmq.Socket[Any], port: Port, *, instance: str = "") -> None:
        """Secure, limit and bind a socket for a thread, which uses and closes it."""
        self._prepare(sock, port)
        if self._curve is not None:
            # Without an enforced domain, libzmq admits every peer when the authenticator has
            # stopped; with an enforced domain it admits none.
            sock.setsockopt_string(zmq.ZAP_DOMAIN, port.name)
            sock.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
            own = self._curve.to_bind(port)
            sock.curve_server = True
            sock.curve_publickey, sock.curve_secretkey = own.public, own.secret
        address = self.addresses.bind(port, instance)
        try:
            sock.bind(address)
        except zmq.ZMQError as error:
            raise EnvironmentProblem(f"cannot listen on {address}: {error}") from error

    def connect(
        self, kind: int, port: Port, *, address: str = "", identity: bytes = b""
    ) -> zmq.asyncio.Socket:
        """Create a socket that connects to the listener on `port`; `address` is required if several
        processes bind it. Raises EnvironmentProblem if this process has no key for it."""
        sock = self._context.socket(kind)
        self._sockets.append(sock)
        self._prepare(sock, port)
        if identity:
            sock.setsockopt(zmq.IDENTITY, identity)
        if self._curve is not None:
            sock.curve_serverkey, own = self._curve.to_connect(port)
            sock.curve_publickey, sock.curve_secretkey = own.public, own.secret
        sock.connect(address or self.addresses.connect(port))
        return sock

    def _prepare(self, sock: zmq.Socket[Any], port: Port) -> None:
        high_water = RAW_HIGH_WATER if port in _RAW_PORTS else HIGH_WATER_MESSAGES
        sock.setsockopt(zmq.LINGER, LINGER_MS)
        sock.setsockopt(zmq.SNDHWM, high_water)
        sock.setsockopt(zmq.RCVHWM, high_water)
        if sock.type == zmq.REP:
            # REP silently drops responses beyond the limit, and counts a response until its
            # delivery is reported. Each client waits for one response at a time.
            sock.setsockopt(zmq.SNDHWM, 0)
        if sock.type == zmq.REQ:
            # Lets `ask` repeat a request and recognise a response to an earlier one.
            sock.setsockopt(zmq.REQ_RELAXED, 1)
            sock.setsockopt(zmq.REQ_CORRELATE, 1)
        # Thousands may connect in the same second. A rejected peer retries after a second.
        sock.setsockopt(zmq.BACKLOG, BACKLOG)
        if sock.type == zmq.ROUTER:
            sock.setsockopt(zmq.ROUTER_MANDATORY, 1)
            # Lets a worker keep its name if it reconnects before its old connection is seen as
            # lost.
            sock.setsockopt(zmq.ROUTER_HANDOVER, 1)
        if self.addresses.is_tcp:
            sock.setsockopt(zmq.IPV6, self.addresses.is_ipv6)
            sock.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
            # The kernel detects lost peers within ten seconds. ZeroMQ's own heartbeats scan the
            # timers of all connections each time, which is too slow for thousands.
            sock.setsockopt(zmq.TCP_KEEPALIVE, 1)
            sock.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 4)
            sock.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 2)
            sock.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
            sock.setsockopt(zmq.TCP_MAXRT, 10_000)
            sock.setsockopt(zmq.RECONNECT_IVL, 100)
            sock.setsockopt(zmq.RECONNECT_IVL_MAX, 1_000)

    def stop_authenticator(self) -> None:
        """Reject new peers; existing connections stay."""
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None

    async def close(self, *, linger_ms: int = LINGER_MS) -> None:
        """Close every socket and end the threads that use the context, after delivering messages
        for at most `linger_ms`."""
        self.stop_authenticator()
        for sock in self._sockets:
            if not sock.closed:
                # A subscriber has nothing to deliver, but if its publisher has left, its
                # subscriptions would wait for the next publisher.
                sock.close(0 if sock.type == zmq.SUB else linger_ms)
        await asyncio.to_thread(self._context.term)


class _Clients:
    """Admits only the services that may connect to a port."""

    def __init__(self, public_keys: frozenset[bytes]) -> None:
        self._public_keys = public_keys

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether `key`, in Z85, may connect."""
        return key in self._public_keys


async def receive_each(
    sock: zmq.asyncio.Socket, handle: Callable[[AnyMessage, bytes], Awaitable[None] | None]
) -> None:
    """Pass every message of `sock` to `handle(message, first_frame)` until cancelled. An invalid
    message is logged and dropped, because no reply to it is possible."""
    # A wait of the event loop costs several times the CPU of a message, so receive available
    # messages without waiting. Limit the time, because a busy socket would block other tasks.
    direct: zmq.Socket[bytes] = zmq.Socket.shadow(sock.underlying)
    while True:
        frames = await sock.recv_multipart()
        until_ns = monotonic_ns() + RECEIVE_NS
        while frames:
            await _hand_over(frames, handle)
            if monotonic_ns() >= until_ns:
                break
            try:
                frames = direct.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
        await asyncio.sleep(0)


async def ask(sock: zmq.asyncio.Socket, request: bytes, *, again_s: float = ASK_AGAIN_S) -> bytes:
    """Send a request on a REQ socket and return the response. The request is repeated if no
    response arrives, because a broken connection loses messages in transit. Each wait is twice as
    long as the previous one, because the response may not be ready."""
    while True:
        await sock.send(request)
        try:
            async with asyncio.timeout(again_s):
                return await _next_response(sock)
        except TimeoutError:
            log.info("no response within %g s; asking again", again_s)
            again_s *= 2


async def _next_response(sock: zmq.asyncio.Socket) -> bytes:
    """Return the next response. A response to an earlier request also makes the socket readable; it
    is dropped."""
    while True:
        with contextlib.suppress(zmq.Again):
            response: bytes = await sock.recv()
            return response


async def _hand_over(
    frames: list[bytes], handle: Callable[[AnyMessage, bytes], Awaitable[None] | None]
) -> None:
    try:
        message = decode(frames[-1])
    except ProtocolMismatch as error:
        log.warning("dropped a message: %s", error)
        return
    result = handle(message, frames[0])
    if result is not None:
        await result
