"""Seeded HTTP responses, composed of legal and broken parts, and the truth about each.

Response `i` of a seed is always the same. A *good* response is legal and complete, however unusual:
a client must record it as completed with the chunks and tokens that it contains. A *bad* response
must be recorded as an error. For an *either* (a good response with a few changed bytes) only the
accounts are known: it ends exactly once.
"""

import gzip
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from benchmarks.fuzz.legal import (
    Body,
    chunked_body,
    encoder,
    good,
    head,
    pause,
    split,
    stream_body,
    whole_body,
    with_length,
)
from benchmarks.fuzz.reply import Ending, Reply, Truth


def reply(index: int, *, seed: int, is_streaming: bool, bad_share: float) -> Reply:
    """Return response `index`. The share `bad_share` of all responses is bad or changed."""
    rng = random.Random(f"{seed}/{index}/{is_streaming}")
    if rng.random() >= bad_share:
        return good(rng, is_streaming)
    return rng.choice(_BROKEN)(rng, is_streaming)


def _bad(kind: str, rng: random.Random, data: bytes, ending: Ending = Ending.CLOSE) -> Reply:
    return Reply(kind, Truth.BAD, split(rng, data) if len(data) > 1 else (), ending)


def _status(rng: random.Random, is_streaming: bool) -> Reply:
    status = rng.choice(
        (b"400 Bad Request", b"401", b"404 Not Found", b"429 Too Many Requests", b"500 Oops",
         b"502 Bad Gateway", b"503 Service Unavailable", b"301 Moved", b"418 \x1b[1mteapot")
    )  # fmt: skip
    bodies = (
        (b"application/json", b'{"error": {"message": "no \\u001b[31m", "type": "x", "code": 1}}'),
        (b"text/html", b"<html><body><h1>502</h1></body></html>"),
        (b"text/plain", b"=cmd|' /C calc'!A0"),
        (b"application/json", b""),
    )
    content_type, data = rng.choice(bodies)
    return _bad(
        "status", rng, with_length(rng, Body(content_type, data, 0, 0), status), Ending.KEEP
    )


def _cut(rng: random.Random, is_streaming: bool) -> Reply:
    """Return a response that ends within its body according to the framing."""
    body = stream_body(rng) if is_streaming else whole_body(rng)
    if rng.random() < 0.5:
        data = with_length(rng, body)
    else:
        data = head(rng, body, b"Transfer-Encoding: chunked") + chunked_body(rng, body)
    end = data.rindex(b"\r\n", 0, -4) if data.endswith(b"\r\n\r\n") else len(data)
    at = rng.randrange(1, max(2, end - 8))
    return _bad("cut", rng, data[:at], rng.choice((Ending.CLOSE, Ending.RESET, Ending.HANG)))


def _no_byte(rng: random.Random, is_streaming: bool) -> Reply:
    return Reply(
        "no byte", Truth.BAD, ((pause(rng), b""),),
        rng.choice((Ending.CLOSE, Ending.RESET, Ending.HANG)),
    )  # fmt: skip


def _unfinished_stream(rng: random.Random, is_streaming: bool) -> Reply:
    """Return a well-framed stream without its end: no finish reason and no [DONE], or cut JSON."""
    body = stream_body(rng) if is_streaming else whole_body(rng)
    if is_streaming:
        events = [b'data: {"choices":[{"delta":{"content":"x"},"index":0}]}\n\n'] * rng.randint(
            1, 9
        )
        body = replace(body, data=b"".join(events))
    else:
        body = replace(body, data=body.data[: rng.randrange(1, len(body.data) - 1)])
    return _bad("unfinished", rng, with_length(rng, body), Ending.KEEP)


def _not_http(rng: random.Random, is_streaming: bool) -> Reply:
    data = rng.choice(
        (b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/2 200\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\r\n" * 4,
         b"HTTP/1.1 2OO OK\r\n\r\n", b"HTTP/1.1\r\n\r\n", bytes(range(256)), b"{}\n",
         b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    )  # fmt: skip
    return _bad("not http", rng, data)


def _framing_broken(rng: random.Random, is_streaming: bool) -> Reply:
    body = stream_body(rng) if is_streaming else whole_body(rng)
    header = rng.choice(
        (b"Content-Length: -1", b"Content-Length: 1e3", b"Content-Length: 5\r\nContent-Length: 6",
         b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked, gzip",
         b"Content-Length: 99999999999999999999", b"Content-Length: 0x10")
    )  # fmt: skip
    return _bad("framing", rng, head(rng, body, header) + body.data)


def _chunks_broken(rng: random.Random, is_streaming: bool) -> Reply:
    body = stream_body(rng) if is_streaming else whole_body(rng)
    first = body.data[: rng.randrange(1, len(body.data))]
    wrong = rng.choice((b"xyz", b"-1", b"", b" ", b"ffffffffffffffff", b"5 5", b"0x5"))
    data = b"%x\r\n%b\r\n%b\r\nabcde\r\n0\r\n\r\n" % (len(first), first, wrong)
    return _bad("chunks", rng, head(rng, body, b"Transfer-Encoding: chunked") + data)


def _error_inside(rng: random.Random, is_streaming: bool) -> Reply:
    """Return a success status with an error in the body."""
    error = encoder(rng)({"error": {"message": "out of memory\x1b[2J", "type": "x", "code": 500}})
    if not is_streaming:
        body = Body(b"application/json", error, 0, 0)
        return _bad("error inside", rng, with_length(rng, body), Ending.KEEP)
    token = b'data: {"choices":[{"delta":{"content":"x"},"index":0}]}\n\n'
    data = token * rng.randint(0, 3) + b"data: " + error + b"\n\ndata: [DONE]\n\n"
    body = Body(b"text/event-stream", data, 0, 0)
    return _bad("error inside", rng, with_length(rng, body), Ending.KEEP)


def _malformed(rng: random.Random, is_streaming: bool) -> Reply:
    wrong = rng.choice(
        (b"{", b"null", b"[]", b"42", b'"x"', b'{"choices": 3}', b"\xff\xfe", b'{"choices":[',
         b'{"choices":[{"delta":{"content":"\xc3\x28"}}]}', b"<html>", b"{}" )
    )  # fmt: skip
    if is_streaming:
        body = Body(b"text/event-stream", b"data: " + wrong + b"\n\ndata: [DONE]\n\n", 0, 0)
    else:
        body = Body(b"application/json", wrong, 0, 0)
    return _bad("malformed", rng, with_length(rng, body), Ending.KEEP)


def _other_type(rng: random.Random, is_streaming: bool) -> Reply:
    body = Body(rng.choice((b"text/html", b"image/png")), b"<html>login</html>", 0, 0)
    return _bad("other type", rng, with_length(rng, body), Ending.KEEP)


def _empty(rng: random.Random, is_streaming: bool) -> Reply:
    body = Body(b"text/event-stream" if is_streaming else b"application/json", b"", 0, 0)
    return _bad("empty", rng, with_length(rng, body, b"200 OK"), Ending.KEEP)


def _more_than_asked(rng: random.Random, is_streaming: bool) -> Reply:
    """Return a good response with extra bytes, after which its connection must not be reused."""
    body = stream_body(rng) if is_streaming else whole_body(rng)
    data = with_length(rng, body)
    extra = rng.choice((b"x", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"\r\n"))
    return Reply("more", Truth.GOOD, ((0.0, data + extra),), Ending.KEEP, body.chunks, body.tokens)


def _endless_head(rng: random.Random, is_streaming: bool) -> Reply:
    return _bad("endless head", rng, b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 60_000)


def _aborted(rng: random.Random, is_streaming: bool) -> Reply:
    """Return a stream that the server itself aborts after some tokens."""
    reason = rng.choice((b"abort", b"error"))
    if is_streaming:
        token = b'data: {"choices":[{"delta":{"content":"x"},"index":0}]}\n\n'
        end = b'data: {"choices":[{"delta":{},"index":0,"finish_reason":"%b"}]}\n\n' % reason
        body = Body(b"text/event-stream", token * 3 + end + b"data: [DONE]\n\n", 3, -1)
    else:
        data = b'{"choices":[{"message":{"content":"x"},"finish_reason":"%b"}]}' % reason
        body = Body(b"application/json", data, -1, -1)
    return _bad("aborted", rng, with_length(rng, body), Ending.KEEP)


def _compressed(rng: random.Random, is_streaming: bool) -> Reply:
    """Return a response with an unrequested content coding."""
    body = stream_body(rng) if is_streaming else whole_body(rng)
    packed = replace(body, data=gzip.compress(body.data, mtime=0))
    length = b"Content-Length: %d" % len(packed.data)
    data = head(rng, packed, length, b"Content-Encoding: gzip") + packed.data
    return _bad("compressed", rng, data, Ending.KEEP)


def _changed(rng: random.Random, is_streaming: bool) -> Reply:
    """Return a good response with some bytes flipped, removed, duplicated or inserted."""
    whole = good(rng, is_streaming)
    data = bytearray(whole.data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at : at + rng.choice((1, 2, 16))]
            case 2:
                data[at:at] = data[at : at + rng.choice((1, 8, 64))]
            case 3:
                data[at:at] = rng.randbytes(rng.choice((1, 3)))
        if len(data) < 2:
            break
    parts = split(rng, bytes(data)) if len(data) > 1 else ((0.0, bytes(data)),)
    return Reply("changed", Truth.EITHER, parts, rng.choice((whole.ending, Ending.CLOSE)))


_BROKEN: Final[tuple[Callable[[random.Random, bool], Reply], ...]] = (
    _status, _cut, _no_byte, _unfinished_stream, _not_http, _framing_broken, _chunks_broken,
    _error_inside, _malformed, _other_type, _empty, _more_than_asked, _endless_head, _aborted,
    _compressed, _changed,
    _changed, _changed,
)  # fmt: skip
