"""Connections to the results API, few and short until they have shown the token.

Whoever reaches the port may open connections and send nothing, or a header a byte at a time, or
never read what is sent back. Until a request with the token has come on it, a connection is a
stranger's: it is cut after a fixed time whatever it does, and when there are too many of them the
oldest one makes room for the newest, so that a client with the token always gets in. Connections
that have shown the token are only closed when they are idle.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from aiohttp import web


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """How much is granted before the token, and after it."""

    strangers: int = 256
    """Connections at a time without the token."""
    stranger_s: float = 10.0
    """Longest time until a request with the token; a kubelet's probe takes milliseconds."""
    idle_s: float = 75.0
    """Between the requests of a client that has the token."""


class GuardedConnections:
    """Makes the protocol of each new connection to `server`, and cuts those of strangers."""

    def __init__(self, server: web.Server, limits: ConnectionLimits) -> None:
        self._server = server
        self._limits = limits
        self._strangers: dict[GuardedConnection, asyncio.TimerHandle] = {}

    def __call__(self) -> "GuardedConnection":
        """The protocol of one connection, as `loop.create_server` asks for it."""
        return GuardedConnection(
            self,
            self._server,
            loop=asyncio.get_running_loop(),
            access_log=None,
            keepalive_timeout=self._limits.idle_s,
            # A body that nobody reads, of a request that was refused, is waited for this long.
            lingering_time=1.0,
        )

    def admit(self, connection: "GuardedConnection") -> None:
        """A stranger has connected; the oldest one is cut if that is one too many."""
        later = asyncio.get_running_loop().call_later
        self._strangers[connection] = later(self._limits.stranger_s, self._cut, connection)
        if len(self._strangers) > self._limits.strangers:
            self._cut(next(iter(self._strangers)))

    def forget(self, connection: "GuardedConnection") -> None:
        """This one has gone, or is no stranger any more."""
        timer = self._strangers.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _cut(self, connection: "GuardedConnection") -> None:
        self.forget(connection)
        if connection.transport is not None:
            # Not closed: that would wait until the peer has read what was sent to it.
            connection.transport.abort()


class GuardedConnection(web.RequestHandler):
    """One connection."""

    def __init__(self, guard: GuardedConnections, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._guard = guard

    def trust(self) -> None:
        """A request with the token has come on it."""
        self._guard.forget(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._guard.admit(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._guard.forget(self)
        super().connection_lost(exc)
