"""Servers with unusual events, framings or contents."""

from benchmarks.fuzz.known_servers.known_server import KnownServer

SERVERS: tuple[KnownServer, ...] = ()
