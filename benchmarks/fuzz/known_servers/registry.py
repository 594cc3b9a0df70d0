"""All known servers, and the run of all of them."""

from collections.abc import Collection, Iterator

from benchmarks.fuzz.known_servers import answers, connections, streams, token_counts, usage
from benchmarks.fuzz.known_servers.known_server import KnownServer, measure
from benchmarks.truth.client_runs import RunFailedError

SERVERS: tuple[KnownServer, ...] = (
    *usage.SERVERS,
    *token_counts.SERVERS,
    *streams.SERVERS,
    *connections.SERVERS,
    *answers.SERVERS,
)


def measure_all(names: Collection[str] = ()) -> Iterator[tuple[str, list[str]]]:
    """Measure every known server, or those named, and yield what is wrong with each result."""
    for server in SERVERS:
        if names and server.name not in names:
            continue
        try:
            yield server.name, measure(server)
        except RunFailedError as error:
            yield server.name, [f"the run failed: {error}"]
