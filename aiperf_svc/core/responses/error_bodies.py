"""What the body of a response says that is not the endpoint's: with a bad status, of another
content type, or compressed."""

from collections.abc import Sequence
from typing import Final

from aiperf_svc.core.endpoints.base import error_message, find_error
from aiperf_svc.core.endpoints.refused_inputs import hint_for
from aiperf_svc.domain.foreign_text import CUT, one_line
from aiperf_svc.domain.outcomes import ErrorKind

MESSAGE_CHARACTERS: Final = 500
"""Most characters of an error's message."""


def said_under(status: int, body: bytes, *, content_coding: str) -> str:
    """Return the message of the body of a bad status."""
    if content_coding:
        return f"status {status}; the body is compressed, {content_coding}"
    hint = hint_for(status, body)
    limit = MESSAGE_CHARACTERS - (len(hint) + len(CUT) if hint else 0)
    said = one_line(error_message(body), limit=max(0, limit)) or f"status {status}"
    return said + hint


def explain(
    status: int, body: bytes, *, content_type: str, content_coding: str, expected: Sequence[str]
) -> tuple[ErrorKind, str]:
    """Return what is wrong with a body that is not read as a response, of a status below 400, and
    the message of it. `expected` are the content types of the endpoint."""
    if status >= 300:
        said = "" if content_coding else error_message(body)
        text = f"status {status}, and redirects are not followed: {said}"
        return ErrorKind.STATUS, text.removesuffix(": ")
    if content_coding:
        return ErrorKind.CONTENT_TYPE, (
            f"the body is compressed (Content-Encoding {content_coding}), which no request asks "
            "for: turn compression off in the server or in the proxy before it"
        )
    if found := find_error(body):
        return ErrorKind.SERVER, found
    text = f"content type {content_type}, expected {' or '.join(expected)}: {error_message(body)}"
    return ErrorKind.CONTENT_TYPE, text.removesuffix(": ")
