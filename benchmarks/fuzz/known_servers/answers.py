"""Servers that are healthy and were called slow, client-bound or degraded."""

from benchmarks.fuzz.known_servers.known_server import KnownServer

SERVERS: tuple[KnownServer, ...] = ()
