"""Outcomes of a request or a credit, and the names under which errors are counted."""

from enum import IntEnum


class Phase(IntEnum):
    """The phases of a run; only `PROFILING` is in the results."""

    WARMUP = 0
    PROFILING = 1


class Outcome(IntEnum):
    """Outcome of a credit. Every issued credit has exactly one."""

    COMPLETED = 0
    """The response was complete and had a success status."""
    ERRORED = 1
    """The response was an error or missing; see `ErrorKind`."""
    CANCELLED = 2
    """Written, then cut by the end of the grace period or by the user."""
    UNSENT = 3
    """Due before the stop, but its first byte was not written by then (open loop only)."""
    LOST = 4
    """Lost with its worker."""
    ABANDONED = 5
    """Written, then abandoned by its client before the end of the response, as configured."""


class ErrorKind(IntEnum):
    """Kind of a request's error, in the order in which they can occur."""

    NONE = 0
    DNS = 1
    CONNECT = 2
    """Refused, unreachable, or timed out before the connection was established."""
    TLS = 3
    NO_RESOURCES = 4
    """This machine ran out of file descriptors or local ports, which is the client's fault."""
    SEND = 5
    """The connection broke while the request was written."""
    TIMEOUT = 6
    """Connected and written, but no complete response within the request's timeout."""
    PROTOCOL = 7
    """The response is not HTTP of the expected version, or its framing is broken."""
    STATUS = 8
    """A status of 400 or above, which is recorded."""
    DISCONNECTED = 9
    """Closed by the server before the response was complete."""
    CONTENT_TYPE = 10
    """The content type is not the endpoint's."""
    MALFORMED = 11
    """A body or event that is not valid UTF-8 or JSON of the endpoint's shape."""
    SERVER = 12
    """An error object inside a response with a good status."""
    EMPTY = 13
    """A complete response without any content."""
    TOO_LARGE = 14
    """A response above this tool's size limit."""
    DATASET = 15
    """The request could not be built, e.g. its history."""
    NO_RESPONSE = 16
    """Written completely; the server closed the connection without a byte of a response."""
    ABORTED = 17
    """The server ended the response with a finish reason such as `abort` or `error`."""
    STREAM_RESET = 18
    """The server reset the HTTP/2 stream before the response was complete."""
    CONTEXT_OVERFLOW = 19
    """The server refused a prompt that exceeds its model's context."""
