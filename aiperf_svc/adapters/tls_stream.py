"""TLS of one connection, over bytes that others read and write: their stamps stay the kernel's."""

import ssl
from typing import Final

READ_SIZE: Final = 65_536


class TlsStream:
    """What is received goes in by `receive`; what must be sent comes out of `to_send`. All but
    those raise ssl.SSLError."""

    __slots__ = ("_incoming", "_outgoing", "_tls")

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)

    def receive(self, data: bytes) -> None:
        """Take encrypted bytes."""
        self._incoming.write(data)

    def handshake(self) -> bool:
        """Go on with the handshake; whether it is done."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def encrypt(self, data: bytes) -> None:
        """Take plain bytes that are to be sent."""
        self._tls.write(data)

    def decrypted(self) -> bytes:
        """The plain bytes of what has been received; empty where a record is not whole yet."""
        parts = []
        try:
            while part := self._tls.read(READ_SIZE):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        return b"".join(parts)

    def to_send(self) -> bytes:
        """Encrypted bytes that are to be sent now."""
        return self._outgoing.read()
