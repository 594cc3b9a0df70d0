"""Encrypts and decrypts one connection without reading or writing its socket, so timestamps are
still the kernel's."""

import ssl
from typing import Final, Protocol

from aiperf_svc.domain.outcomes import ErrorKind

READ_SIZE: Final = 65_536

_NAME_MISMATCH: Final = (62, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_DATES: Final = (9, 10)
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""
_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
"""OpenSSL's reasons for bytes that are not TLS."""
_IS_PLAIN: Final = "is its URL http://?"
"""The hint for a server that may not speak TLS."""
_UNCHECKED: Final = "endpoint.tls.verify: false (--no-tls-verify) accepts any certificate"


class StreamProblem(ssl.SSLError):
    """Raised when a layer that replaces TLS, or is above it, has failed."""

    kind = ErrorKind.TLS
    """Error kind of a request on the connection, or waiting for it."""
    is_unprocessed = False
    """Whether the server reported that it did not process the request."""


class Stream(Protocol):
    """The layer between a connection's bytes and HTTP/1.1: TLS, HTTP/2, or both. See `TlsStream`
    for the methods."""

    handshake_kind: ErrorKind
    """Error kind of a request whose connection ends during the handshake."""
    closed_text: str
    """Its message."""

    @property
    def timeout(self) -> tuple[ErrorKind, str]:
        """Return the error kind and message of a request whose connection is not ready in time."""

    @property
    def problem(self) -> StreamProblem | None:
        """Return the reason why nothing follows the decrypted bytes; None if more may follow."""

    @property
    def is_closed(self) -> bool:
        """Return whether the server has announced that no more data follows."""

    @property
    def may_reuse(self) -> bool:
        """Return whether another request may follow."""

    @property
    def is_sending(self) -> bool:
        """Return whether a part of the request waits for the server's window."""

    def receive(self, data: bytes) -> None: ...
    def handshake(self) -> bool: ...
    def encrypt(self, data: bytes) -> None: ...
    def decrypted(self) -> bytes: ...
    def to_send(self) -> bytes: ...


class TlsStream:
    """Takes received bytes and returns bytes to send. All other methods raise ssl.SSLError."""

    __slots__ = ("_incoming", "_outgoing", "_tls", "is_closed")

    handshake_kind = ErrorKind.TLS
    closed_text = "closed during the TLS handshake"
    problem = None
    is_sending = False

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self.is_closed = False
        """Whether the server announced that it sends nothing more (`close_notify`)."""

    @property
    def timeout(self) -> tuple[ErrorKind, str]:
        return ErrorKind.TLS, f"timed out in the TLS handshake: {_IS_PLAIN}"

    @property
    def may_reuse(self) -> bool:
        return not self.is_closed

    @property
    def alpn(self) -> str | None:
        """Return the protocol that the server chose in the handshake."""
        return self._tls.selected_alpn_protocol()

    def receive(self, data: bytes) -> None:
        self._incoming.write(data)

    def handshake(self) -> bool:
        """Continue the handshake. Returns whether it is done."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def encrypt(self, data: bytes) -> None:
        """Accept plain bytes to send."""
        self._tls.write(data)

    def decrypted(self) -> bytes:
        """Return the plain bytes received so far, up to the last complete record."""
        parts = []
        try:
            while part := self._tls.read(READ_SIZE):
                parts.append(part)
            self.is_closed = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.is_closed = True
        return b"".join(parts)

    def to_send(self) -> bytes:
        return self._outgoing.read()


def handshake_problem(error: ssl.SSLError) -> str:
    """Return the reason why the handshake failed, and the setting that helps."""
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"the server's certificate is rejected: {error.verify_message}"
        if error.verify_code in _NAME_MISMATCH:
            remedy = "endpoint.tls.server_name (--tls-server-name) is the name to expect in it"
        elif error.verify_code in _DATES:
            remedy = "renew it, or check this machine's clock"
        else:
            remedy = "endpoint.tls.ca_file (--tls-ca-file) names the authorities to trust"
        return f"{text}; {remedy}; {_UNCHECKED}"
    if error.reason in _NOT_TLS:
        return f"{error}; the server does not speak TLS here: {_IS_PLAIN}"
    return str(error)
