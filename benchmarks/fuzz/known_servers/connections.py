"""Servers with unusual connections, handshakes and metrics pages."""

from benchmarks.fuzz.known_servers.known_server import KnownServer

SERVERS: tuple[KnownServer, ...] = ()
