"""One request to the target beside the load, by a plain blocking socket."""

import socket
import ssl
from time import monotonic
from typing import Final

from aiperf_svc.adapters.inference.http2_stream import check_alpn, new_connection
from aiperf_svc.adapters.inference.proxy import after_head
from aiperf_svc.adapters.inference.resolved_target import Target
from aiperf_svc.core.responses.http1 import ChunkedBody, ProtocolViolation, parse_head
from aiperf_svc.protocol.records import Framing

_MAX_BYTES: Final = 1 << 20
_READ_BYTES: Final = 65_536
_END_OF_HEAD: Final = b"\r\n\r\n"


def exchange(target: Target, request: bytes, *, timeout_s: float) -> tuple[int, bytes]:
    """Send a whole request to the target, on a connection of its own, and return status and body of
    the response. Blocks. Raises OSError and ProtocolViolation."""
    deadline = monotonic() + timeout_s
    host, port, tunnel, *_ = target.way
    with socket.create_connection((host, port), timeout=timeout_s) as plain:
        if tunnel:
            _open_tunnel(plain, tunnel)
        context = target.tls_context
        sock = context.wrap_socket(plain, server_hostname=target.server_name) if context else plain
        with sock:
            one = Exchange(request, sock, is_http2=target.is_http2)
            found = None
            while found is None:
                sock.sendall(one.to_send())
                left_s = deadline - monotonic()
                if left_s <= 0:
                    raise TimeoutError(f"no complete response within {timeout_s:g} s")
                sock.settimeout(left_s)
                found = one.receive(sock.recv(_READ_BYTES))
    return found


class Exchange:
    """What is sent and received for one request, in the target's version of HTTP."""

    def __init__(self, request: bytes, socket: object, *, is_http2: bool) -> None:
        """`socket` is that of the connection, as far as it shows what TLS has chosen. Raises
        NoHttp2."""
        self._out, self._received, self._http2 = request, b"", None
        if is_http2:
            if isinstance(socket, ssl.SSLSocket | ssl.SSLObject):
                check_alpn(socket.selected_alpn_protocol())
                self._http2 = new_connection("https")
            else:
                self._http2 = new_connection("http")
            self._http2.send(request)

    def to_send(self) -> bytes:
        """Return what is to be sent now."""
        if self._http2 is not None:
            return self._http2.to_send()
        out, self._out = self._out, b""
        return out

    def receive(self, part: bytes) -> tuple[int, bytes] | None:
        """Take what has come, nothing if the server has closed. Return status and body; None while
        there is more to come. Raises ProtocolViolation."""
        problem = None
        if self._http2 is None:
            self._received += part
        else:
            self._received += self._http2.receive(part)
            problem = self._http2.problem
        is_closed = not part or problem is not None or len(self._received) > _MAX_BYTES
        found = whole_response(self._received, is_closed=is_closed and problem is None)
        if found is None and is_closed:
            raise ProtocolViolation(str(problem or "closed before the response was whole"))
        return found


def _open_tunnel(plain: socket.socket, tunnel: bytes) -> None:
    plain.sendall(tunnel)
    received = b""
    while after_head(received) is None:
        part = plain.recv(_READ_BYTES)
        if not part:
            raise ProtocolViolation("the proxy closed the connection instead of opening a tunnel")
        received += part


def whole_response(received: bytes, *, is_closed: bool) -> tuple[int, bytes] | None:
    """Return status and body; None while there is more to come."""
    at, status = 0, 0
    while status < 200:
        end = received.find(_END_OF_HEAD, at)
        if end < 0:
            return None
        head = parse_head(received[at : end + len(_END_OF_HEAD)])
        at, status = end + len(_END_OF_HEAD), head.status
    if head.framing == Framing.LENGTH:
        is_whole, body = len(received) >= at + head.length, received[at : at + head.length]
    elif head.framing == Framing.CHUNKED:
        chunks = ChunkedBody()
        pieces = chunks.feed(received, at, len(received))
        is_whole = chunks.is_complete
        body = b"".join(received[begin:end] for begin, end in pieces)
    else:
        is_whole, body = False, received[at:]
    return (status, body) if is_whole or is_closed else None
