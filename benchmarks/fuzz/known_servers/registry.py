"""All known servers."""

from benchmarks.fuzz.known_servers import (
    answers,
    connections,
    streams,
    token_counts,
    usage,
)
from benchmarks.fuzz.known_servers.known_server import KnownServer

SERVERS: tuple[KnownServer, ...] = (
    *usage.SERVERS,
    *token_counts.SERVERS,
    *streams.SERVERS,
    *connections.SERVERS,
    *answers.SERVERS,
)
