"""Limits connections that have not sent a token, or need none.

Anyone who reaches the port may open connections and send nothing, send a header byte by byte, or
never read the response. A connection is unauthenticated until a request with the token arrives on
it. It is closed after a fixed time, and if there are too many of them, the newest replaces the
oldest. So a client with the token always gets in. Authenticated connections are closed only when
they are idle.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from aiohttp import web


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Limits of connections before and after they have sent the token."""

    unauthenticated: int = 256
    """Maximum number of simultaneous connections without the token."""
    unauthenticated_s: float = 10.0
    """Timeout until a request with the token; a kubelet's probe takes milliseconds."""
    idle_s: float = 75.0
    """Timeout between the requests of a client with the token."""


class GuardedConnections:
    """Creates the protocol of new connections to `server`, and closes unauthenticated ones."""

    def __init__(self, server: web.Server, limits: ConnectionLimits) -> None:
        self._server = server
        self._limits = limits
        self._unauthenticated: dict[GuardedConnection, asyncio.TimerHandle] = {}

    def __call__(self) -> "GuardedConnection":
        """Return the protocol of a new connection, for `loop.create_server`."""
        return GuardedConnection(
            self,
            self._server,
            loop=asyncio.get_running_loop(),
            access_log=None,
            keepalive_timeout=self._limits.idle_s,
            # Time to wait for the unread body of a refused request.
            lingering_time=1.0,
        )

    def admit(self, connection: "GuardedConnection") -> None:
        """Add an unauthenticated connection; if there are too many, close the oldest."""
        later = asyncio.get_running_loop().call_later
        self._unauthenticated[connection] = later(
            self._limits.unauthenticated_s, self._cut, connection
        )
        if len(self._unauthenticated) > self._limits.unauthenticated:
            self._cut(next(iter(self._unauthenticated)))

    def forget(self, connection: "GuardedConnection") -> None:
        """Remove a connection that has closed or shown the token."""
        timer = self._unauthenticated.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _cut(self, connection: "GuardedConnection") -> None:
        self.forget(connection)
        if connection.transport is not None:
            # Abort instead of close, which would wait until the peer has read its response.
            connection.transport.abort()


class GuardedConnection(web.RequestHandler):
    def __init__(self, guard: GuardedConnections, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._guard = guard

    def trust(self) -> None:
        """Record that a request with the token has arrived on this connection."""
        self._guard.forget(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._guard.admit(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._guard.forget(self)
        super().connection_lost(exc)
