"""Translates between HTTP/2 on a connection and the client's HTTP/1.1, with or without TLS."""

from collections.abc import Iterable

from aiperf_svc.adapters.inference.tls_stream import StreamProblem, TlsStream
from aiperf_svc.core.http2.connection import REMEDY, Http2Connection, Http2Problem
from aiperf_svc.domain.outcomes import ErrorKind

ALPN = "h2"


class NoHttp2(StreamProblem):
    """The server did not choose HTTP/2 in the TLS handshake."""


def check_alpn(chosen: str | None) -> None:
    """Raise NoHttp2 unless the server chose HTTP/2."""
    if chosen != ALPN:
        raise NoHttp2(f"the server does not offer HTTP/2 (ALPN {ALPN}); {REMEDY}")


def new_connection(scheme: str) -> Http2Connection:
    # Imported only by runs over HTTP/2.
    from hpack import Decoder, HPACKError

    decoder = Decoder()

    def decode(block: bytes) -> Iterable[tuple[bytes, bytes]]:
        try:
            return [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
        except HPACKError as error:
            raise ValueError(str(error) or type(error).__name__) from error

    return Http2Connection(decode, scheme)


class Http2Stream:
    """Implements `Stream`: `encrypt` takes HTTP/1.1 requests, `decrypted` returns HTTP/1.1
    responses. The handshake ends when the server's settings arrive, so a server without HTTP/2 is
    detected before a request is written."""

    __slots__ = ("_http2", "_is_inner_ready", "_problem", "_received", "_tls")

    handshake_kind = ErrorKind.PROTOCOL
    closed_text = f"closed by the server before its HTTP/2 settings arrived; {REMEDY}"

    def __init__(self, tls: TlsStream | None) -> None:
        """Without `tls`, the server must expect HTTP/2 (prior knowledge)."""
        self._tls = tls
        self._http2 = new_connection("http" if tls is None else "https")
        self._is_inner_ready = tls is None
        self._received = b""
        """Bytes received without TLS and not yet processed."""
        self._problem: StreamProblem | None = None

    @property
    def problem(self) -> StreamProblem | None:
        problem = self._http2.problem
        if problem is not None and self._problem is None:
            self._problem = _translated(problem)
        return self._problem

    @property
    def timeout(self) -> tuple[ErrorKind, str]:
        if self._tls is not None and not self._is_inner_ready:
            return self._tls.timeout
        return (
            self.handshake_kind,
            f"timed out before the server's HTTP/2 settings arrived; {REMEDY}",
        )

    @property
    def is_closed(self) -> bool:
        return self._http2.is_closed or (self._tls is not None and self._tls.is_closed)

    @property
    def may_reuse(self) -> bool:
        return self._http2.may_reuse and (self._tls is None or self._tls.may_reuse)

    @property
    def is_sending(self) -> bool:
        return self._http2.is_sending

    def receive(self, data: bytes) -> None:
        if self._tls is None:
            self._received += data
        else:
            self._tls.receive(data)

    def handshake(self) -> bool:
        """Continue the TLS and HTTP/2 handshakes. Returns whether they are done."""
        if self._tls is not None and not self._is_inner_ready:
            if not self._tls.handshake():
                return False
            check_alpn(self._tls.alpn)
            self._is_inner_ready = True
        self.decrypted()
        if self.problem is not None:
            raise self.problem
        if self.is_closed:
            raise _translated(Http2Problem(self.closed_text, self.handshake_kind))
        return self._http2.is_ready

    def leave_stream(self) -> None:
        """Reset the stream of an unwanted response."""
        self._http2.leave_stream()

    def encrypt(self, data: bytes) -> None:
        """Accept a complete request."""
        self._http2.send(data)

    def decrypted(self) -> bytes:
        """Return the received part of the response."""
        if self._tls is None:
            data, self._received = self._received, b""
        else:
            data = self._tls.decrypted()
        return self._http2.receive(data)

    def to_send(self) -> bytes:
        if not self._is_inner_ready or self._tls is None:
            return self._http2.to_send() if self._tls is None else self._tls.to_send()
        data = self._http2.to_send()
        if data:
            self._tls.encrypt(data)
        return self._tls.to_send()


def _translated(problem: Http2Problem) -> StreamProblem:
    found = StreamProblem(str(problem))
    found.kind, found.is_unprocessed = problem.kind, problem.is_unprocessed
    return found
