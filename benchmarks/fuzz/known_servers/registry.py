"""All known servers."""

from benchmarks.fuzz.known_servers import answers, connections, streams, usage
from benchmarks.fuzz.known_servers.known_server import KnownServer

SERVERS: tuple[KnownServer, ...] = (
    *usage.SERVERS,
    *streams.SERVERS,
    *connections.SERVERS,
    *answers.SERVERS,
)
