"""Servers whose usage or token counts need care."""

from benchmarks.fuzz.known_servers.known_server import KnownServer

SERVERS: tuple[KnownServer, ...] = ()
