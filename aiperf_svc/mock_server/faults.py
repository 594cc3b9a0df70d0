"""The faults of the mock server: one table with one function each.

A request selects a fault with the header `X-Mock-Fault: NAME`, or with the model name `mock-NAME`;
any other model name is an ordinary model. A fault modifies the draft of the correct response.
"""

import gzip
import re
from collections.abc import Callable
from typing import NamedTuple

from aiperf_svc.mock_server.replies import DONE, Draft, Ending, chunk, draft_error

HUGE_BYTES = 4 * 1024 * 1024
"""Length of the text in the single event of `huge-chunk`."""
_HTML = b"<!doctype html><title>mock</title><p>This is not the API."


def hang(draft: Draft) -> Draft:
    """Accept the request and never respond."""
    return Draft(head=b"", raw=[], ending=Ending.HANG)


def stall(draft: Draft) -> Draft:
    """Send half of the response, then nothing more, and keep the connection open."""
    return _half(draft, Ending.HANG)


def close(draft: Draft) -> Draft:
    """Close the connection without a byte of response."""
    return Draft(head=b"", raw=[], ending=Ending.CUT)


def cut(draft: Draft) -> Draft:
    """Close the connection half way through the response."""
    return _half(draft, Ending.CUT)


def reset(draft: Draft) -> Draft:
    """Reset the connection half way through the response."""
    return _half(draft, Ending.RESET)


def malformed(draft: Draft) -> Draft:
    """Cut off JSON, in the middle event or in the body."""
    if draft.is_stream:
        return _middle(draft, b'data: {"choices":[{"index":0,"delta":{"content":\n\n')
    draft.body = draft.body[: len(draft.body) // 2]
    return draft


def invalid_utf8(draft: Draft) -> Draft:
    """Put bytes that are not UTF-8 into a JSON string."""
    if draft.is_stream:
        return _with_text(draft, b"\xff\xfe")
    draft.body = draft.body[:-1] + b',"note":"\xff\xfe"}'
    return draft


def wrong_content_type(draft: Draft) -> Draft:
    """Send an HTML page with status 200."""
    return Draft(content_type="text/html", body=_HTML)


def huge_chunk(draft: Draft) -> Draft:
    """Send one event (or body) of several MiB."""
    text = b"x" * HUGE_BYTES
    if draft.is_stream:
        return _with_text(draft, text)
    draft.body = draft.body[:-1] + b',"note":"%b"}' % text
    return draft


def never_ends(draft: Draft) -> Draft:
    """Send a stream that continues until the client disconnects. A non-streaming response stops
    after half of its bytes."""
    if not draft.is_stream:
        return _half(draft, Ending.HANG)
    draft.tail, draft.has_last_chunk, draft.ending = [], False, Ending.REPEAT
    return draft


def error_in_stream(draft: Draft) -> Draft:
    """Send an error object as the middle event, then end the stream normally."""
    if not draft.is_stream:
        return draft_error(500, "mock error")
    keep = draft.events[: len(draft.events) // 2]
    draft.events = [
        *keep,
        b'data: {"error":{"message":"mock error in stream","type":"mock_error","code":500}}\n\n',
    ]
    draft.tail = [DONE]
    return draft


def no_done(draft: Draft) -> Draft:
    """Send a stream whose HTTP body ends normally, without `[DONE]`."""
    draft.tail = [event for event in draft.tail if event != DONE]
    return draft


def no_usage(draft: Draft) -> Draft:
    """Send a stream without the usage event that the request asked for."""
    draft.tail = [event for event in draft.tail if b'"usage"' not in event]
    return draft


def empty(draft: Draft) -> Draft:
    """Send a stream without any token, or an empty body."""
    draft.events, draft.body = [], b""
    return draft


def abort(draft: Draft) -> Draft:
    """Send half of the tokens, then the end with which a server reports an abort. Refused if the
    API has no such end; servers of such an API abort with `error-in-stream`."""
    draft.events = draft.events[: max(1, len(draft.events) // 2)]
    return _finished(draft, _ABORTED) or draft_error(400, "abort: this API states no such end")


def content_filter(draft: Draft) -> Draft:
    """Send all tokens, with a filter as the finish reason. Refused if the API has none."""
    found = _finished(draft, _FILTERED)
    return found or draft_error(400, "content-filter: this API states no such end")


def ends_at_once(draft: Draft) -> Draft:
    """End a stream with its first token: no content, and one token in the usage. A non-streaming
    response is empty."""
    draft.events, draft.body = [], b""
    draft.tail = [_OUTPUT_TOKENS.sub(rb"\g<1>1", event) for event in draft.tail]
    return _finished(draft, _STOPPED) or draft


def compressed(draft: Draft) -> Draft:
    """Send the correct response, compressed without a request for it."""
    draft.headers = (*draft.headers, ("Content-Encoding", "gzip"))
    if draft.is_stream:
        stream = gzip.compress(b"".join(draft.opening + draft.events + draft.tail))
        draft.raw = [chunk(stream) + _LAST_CHUNK]
    else:
        draft.body = gzip.compress(draft.body)
    return draft


def padded_chunks(draft: Draft) -> Draft:
    """Send the stream with zeros before its chunk sizes, extensions and a trailer: legal."""
    if draft.is_stream:
        events = draft.opening + draft.events + draft.tail
        framed = (b"%016X;n=v\r\n%b\r\n" % (len(event), event) for event in events)
        draft.raw = [*framed, b"0000\r\nX-Trailer: yes\r\n\r\n"]
    return draft


def no_last_chunk(draft: Draft) -> Draft:
    """Send all events, then close the connection without the chunk of length 0."""
    draft.has_last_chunk, draft.ending = False, Ending.CUT
    return draft


def bad_chunk_size(draft: Draft) -> Draft:
    """Send a chunk length that is not a hexadecimal number; in a non-streaming response, an invalid
    Content-Length.
    """
    if draft.is_stream:
        draft.raw, draft.ending = [b"XYZ\r\ndata: {}\n\n\r\n"], Ending.CUT
        return draft
    return Draft(
        head=b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", body=b"{}", ending=Ending.CUT
    )


def short_body(draft: Draft) -> Draft:
    """Send a Content-Length greater than the body that follows, then close the connection."""
    return Draft(body=b'{"choices":[', content_length=1000, ending=Ending.CUT)


def garbage(draft: Draft) -> Draft:
    """Send a response that is not HTTP."""
    return Draft(head=b"", raw=[b"SSH-2.0-mock\r\n"], ending=Ending.CUT)


def one_byte_writes(draft: Draft) -> Draft:
    """Send the correct response with one byte in each write: legal, and tests every split."""
    if draft.is_stream:
        stream = b"".join(map(chunk, draft.opening + draft.events + draft.tail)) + b"0\r\n\r\n"
    else:
        stream, draft.content_length = draft.body, len(draft.body)
    draft.raw = [bytes((byte,)) for byte in stream]
    return draft


def one_chunk(draft: Draft) -> Draft:
    """Send the correct stream with all events in one HTTP chunk: legal."""
    draft.opening, draft.events = [], [b"".join(draft.opening + draft.events + draft.tail)]
    draft.tail = []
    return draft


def crlf(draft: Draft) -> Draft:
    """Send the correct stream with CRLF line ends, comments and event names: legal."""
    for part in (draft.opening, draft.events, draft.tail):
        part[:] = [
            b": keep-alive\r\n\r\nevent: message\r\n" + event.replace(b"\n", b"\r\n")
            for event in part
        ]
    return draft


FAULTS: dict[str, Callable[[Draft], Draft]] = {
    "hang": hang,
    "stall": stall,
    "close": close,
    "cut": cut,
    "reset": reset,
    "malformed": malformed,
    "invalid-utf8": invalid_utf8,
    "wrong-content-type": wrong_content_type,
    "huge-chunk": huge_chunk,
    "never-ends": never_ends,
    "error-in-stream": error_in_stream,
    "no-done": no_done,
    "no-usage": no_usage,
    "empty": empty,
    "abort": abort,
    "content-filter": content_filter,
    "ends-at-once": ends_at_once,
    "compressed": compressed,
    "padded-chunks": padded_chunks,
    "no-last-chunk": no_last_chunk,
    "bad-chunk-size": bad_chunk_size,
    "short-body": short_body,
    "garbage": garbage,
    "one-byte-writes": one_byte_writes,
    "one-chunk": one_chunk,
    "crlf": crlf,
}
"""Faults by name. In addition, `error-STATUS` (400 to 599) responds with that status."""

_TEXT = re.compile(rb'"(?:content|reasoning_content|text|delta)":"')
"""Start of a token's text in the events of every endpoint type."""
_OUTPUT_TOKENS = re.compile(rb'("(?:completion|output)_tokens":)\d+')
_LAST_CHUNK = b"0\r\n\r\n"
_ERROR = re.compile(r"error-([45]\d\d)")


def find_fault(name: str) -> Callable[[Draft], Draft] | None:
    """Return the fault with this name; None if there is none."""
    match = _ERROR.fullmatch(name)
    if match is not None:
        status = int(match[1])
        return lambda draft: draft_error(status, f"mock error {status}, as requested")
    return FAULTS.get(name)


class _End(NamedTuple):
    """The end of a response in each API."""

    finish_reason: bytes
    """For OpenAI's completions."""
    stop_reason: bytes
    """For Anthropic's messages; empty if they have no such reason."""
    response: tuple[bytes, bytes, bytes, bytes]
    """For OpenAI's responses: the event, and the members in the order of `_RESPONSE_MEMBERS`."""


_STOPPED = _End(b"stop", b"end_turn", (b"completed", b"completed", b"null", b"null"))
_FILTERED = _End(
    b"content_filter",
    b"refusal",
    (b"incomplete", b"incomplete", b"null", b'{"reason":"content_filter"}'),
)
_ABORTED = _End(
    b"abort",
    b"",
    (b"failed", b"failed", b'{"code":"server_error","message":"mock abort"}', b"null"),
)
# TGI has a `finish_reason` too, but none of its values mean these ends.
_FINISH_REASON = re.compile(rb'("choices":\[\{.*"finish_reason":")\w+')
_STOP_REASON = re.compile(rb'("stop_reason":")\w+')
_RESPONSE_MEMBERS = (
    re.compile(rb'(event: response\.|"type":"response\.)(?:completed|incomplete)(?=["\n])'),
    re.compile(rb'("object":"response","created_at":\d+,"status":")\w+'),
    re.compile(rb'("error":)null(?=,"incomplete_details")'),
    re.compile(rb'("incomplete_details":)(?:null|\{[^}]*\})'),
)


def _half(draft: Draft, ending: Ending) -> Draft:
    """Return the first half of the draft, at least one event, with this ending."""
    if draft.is_stream:
        draft.events = draft.events[: max(1, len(draft.events) // 2)]
        draft.tail, draft.has_last_chunk = [], False
    else:
        draft.content_length = len(draft.body)
        draft.body = draft.body[: len(draft.body) // 2]
    draft.ending = ending
    return draft


def _finished(draft: Draft, end: _End) -> Draft | None:
    """Return the draft with this end; None if its API has no such end. Copies the list, because
    events are shared."""
    is_stated = False

    def restated(part: bytes) -> bytes:
        nonlocal is_stated
        for pattern, to in (
            (_FINISH_REASON, end.finish_reason),
            (_STOP_REASON, end.stop_reason),
            *zip(_RESPONSE_MEMBERS, end.response, strict=True),
        ):
            if to:
                part, count = pattern.subn(rb"\g<1>" + to, part)
                is_stated = is_stated or count > 0
        return part

    draft.tail = [restated(event) for event in draft.tail]
    draft.body = restated(draft.body)
    return draft if is_stated else None


def _middle(draft: Draft, event: bytes) -> Draft:
    """Return the draft with its middle event replaced, in a copied list: events are shared."""
    events = list(draft.events)
    events[len(events) // 2 : len(events) // 2 + 1] = [event]
    draft.events = events
    return draft


def _with_text(draft: Draft, text: bytes) -> Draft:
    """Return the draft with text inserted at the start of its middle event's text."""
    if not draft.events:
        return draft
    event = draft.events[len(draft.events) // 2]
    return _middle(draft, _TEXT.sub(lambda begin: begin[0] + text, event, count=1))
