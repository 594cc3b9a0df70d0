"""Checks of a trace against the rest of a config, made while the trace is read for the first
time."""

from collections.abc import Iterable, Iterator

from aiperf_svc.config.endpoint import Endpoint
from aiperf_svc.core.datasets.trace_index import TraceIndex
from aiperf_svc.core.datasets.traces import TraceRow
from aiperf_svc.core.endpoints.registry import endpoint_of
from aiperf_svc.domain.endpoint_types import Feature, names_with
from aiperf_svc.domain.errors import DatasetError


def carried_by(endpoint: Endpoint, rows: Iterable[TraceRow]) -> Iterator[TraceRow]:
    """Yield the rows. Raises DatasetError for a prompt that the endpoint cannot carry; a prompt
    that is made of words fits into all of them."""
    render = endpoint_of(endpoint).render
    for row in rows:
        if row.written is not None:
            try:
                render(row.written, endpoint)
            except ValueError as error:
                raise DatasetError(f"{row.place}: {error}") from None
        yield row


def check_conversations(endpoint: Endpoint, index: TraceIndex, source: str) -> None:
    """Raise DatasetError if the trace has sessions of several rows, and the endpoint no
    conversations."""
    if endpoint.type.has(Feature.CONVERSATION):
        return
    for entry in (index.turn_counts > 1).nonzero()[0][:1].tolist():
        number = int(index.numbers[index.firsts[entry]])
        raise DatasetError(
            f"{source}:{number}: a conversation of {int(index.turn_counts[entry])} turns needs "
            f"endpoint.type {names_with(Feature.CONVERSATION)}, not {endpoint.type}"
        )
