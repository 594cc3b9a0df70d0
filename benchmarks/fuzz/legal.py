"""Legal responses in the variety that servers produce: JSON, events, heads and framings."""

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.fuzz.reply import Ending, Reply, Truth

MAX_PAUSE_S: Final = 0.02
MODEL: Final = "fuzz"


@dataclass(frozen=True)
class Body:
    content_type: bytes
    data: bytes
    chunks: int
    tokens: int
    events: tuple[bytes, ...] = ()
    """The events of a stream, each as its server writes it."""


TEXTS: Final = (
    "a", " the", "\n", "\t", '"', "\\", "é", "日本", "🙂", "\u2028", "</s>", "data: x", "[DONE]",
    " " * 40, "x" * 700, "{}", "\u0000", "\x1b[31m", "0\r\n\r\n",
)  # fmt: skip
EXTRA_HEADERS: Final = (
    b"X-Request-Id: 1", b"server:uvicorn", b"Date: Thu, 01 Jan 1970 00:00:00 GMT", b"X-Empty:",
    b"Set-Cookie: a=b; Path=/", b"Set-Cookie: c=d", b"X-Long: " + b"y" * 3000, b"Via: 1.1 proxy",
    b"Cache-Control: no-cache", b"X-Accel-Buffering: no", b"Keep-Alive: timeout=5",
)  # fmt: skip


Encode = Callable[[Any], bytes]


def encoder(rng: random.Random) -> Encode:
    """Return a JSON encoder in the style of one server."""
    separators = rng.choice(((",", ":"), (", ", ": ")))
    is_ascii = rng.random() < 0.5

    def encode(value: Any) -> bytes:
        return json.dumps(value, ensure_ascii=is_ascii, separators=separators).encode()

    return encode


def _usage(rng: random.Random, tokens: int) -> dict[str, Any]:
    prompt = rng.randint(1, 600)
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
    }
    if rng.random() < 0.3:
        usage["completion_tokens_details"] = rng.choice((None, {"reasoning_tokens": 0}))
    if rng.random() < 0.2:
        write = rng.choice((float, str))
        usage = {k: write(v) if isinstance(v, int) else v for k, v in usage.items()}
    return usage


def _unread(rng: random.Random) -> dict[str, Any]:
    """Return members that the client ignores, with numbers that are not valid JSON."""
    if rng.random() < 0.9:
        return {}
    number = rng.choice((math.nan, math.inf, -math.inf))
    return {"logprobs": {"content": [{"token": "NaN", "logprob": number}]}}


def whole_body(rng: random.Random) -> Body:
    tokens = rng.randint(1, 50)
    message = {"role": "assistant", "content": "".join(rng.choices(TEXTS[:-2], k=tokens))}
    body = {
        "id": "x",
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {"index": 0, "message": message, "finish_reason": rng.choice(_FINISHES)} | _unread(rng)
        ],
        "usage": _usage(rng, tokens),
    }
    return Body(b"application/json", encoder(rng)(body), -1, tokens)


_FINISHES: Final = ("stop", "length")


def _events(rng: random.Random) -> tuple[list[bytes], int, int]:
    """Return the events' data of a good stream, and its numbers of chunks and tokens."""
    count = rng.choice((1, 1, 2, 3, 8, 40))
    tokens = -1
    encode = encoder(rng)

    def chunk(**choice: Any) -> bytes:
        opening = {"id": "x", "object": "chat.completion.chunk", "model": MODEL}
        return encode(opening | {"choices": [{"index": 0, "finish_reason": None} | choice]})

    events = []
    if rng.random() < 0.7:
        events.append(chunk(delta={"role": "assistant", "content": rng.choice(("", None))}))
    field = rng.choice(("content", "content", "reasoning_content"))
    choices = rng.choice((1, 1, 1, 2))
    as_parts = rng.random() < 0.1 and field == "content"
    for number in range(count):
        text = rng.choice(TEXTS)
        content = [{"type": "text", "text": text}] if as_parts else text
        # The first event of each choice announces it.
        events.append(chunk(delta={field: content}, index=number % choices, **_unread(rng)))
    is_ended = rng.random() < 0.8
    if is_ended:
        for index in range(choices):
            events.append(chunk(delta={}, finish_reason=rng.choice(_FINISHES), index=index))
    if rng.random() < 0.8:
        tokens = rng.randint(count, 3 * count)
        usage: dict[str, Any] = {"choices": [], "usage": _usage(rng, tokens)}
        events.append(encode(usage))
    if not is_ended or rng.random() < 0.9:
        events.append(b"[DONE]")
    return events, count, tokens


_EMPTY: Final = (
    b"data:", b"data: ", b"data", b"data:\ndata:", b"event: ping\ndata: 2026-01-01T00:00:00Z",
    b"event: ping\ndata: {}", b"event:heartbeat\ndata", b"event: ping",
)  # fmt: skip
"""Events without content."""


def stream_body(rng: random.Random) -> Body:
    """Return a stream. Half of the streams are as plain as those of most servers."""
    events, count, tokens = _events(rng)
    oddity = rng.choice((0.0, 0.1))
    eol = rng.choice((b"\n", b"\r\n", b"\r")) if oddity else b"\n"
    field = rng.choice((b"data: ", b"data: ", b"data:"))
    out = [b"\xef\xbb\xbf"] if rng.random() < oddity else []
    for data in events:
        if rng.random() < oddity:
            out.append(rng.choice((b": keep-alive", b"id: 7", b"retry: 10", b":")) + eol)
            if rng.random() < 0.5:
                out.append(eol)
        if rng.random() < oddity:
            out.append(rng.choice(_EMPTY).replace(b"\n", eol) + eol * 2)
        if rng.random() < oddity:
            out.append(b"event: message" + eol)
        out.append(field + data + eol + eol)
    return Body(b"text/event-stream", b"".join(out), count, tokens, tuple(out))


def _case(rng: random.Random, name: bytes) -> bytes:
    return rng.choice((name, name.lower(), name.upper()))


def head(rng: random.Random, body: Body, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    version = b"HTTP/1.1 "
    kind = _case(rng, b"Content-Type") + b":" + rng.choice((b" ", b"", b"\t")) + body.content_type
    if rng.random() < 0.5:
        kind += rng.choice((b"; charset=utf-8", b";charset=UTF-8"))
    lines = [kind, *headers, *rng.sample(EXTRA_HEADERS, rng.randint(0, 3))]
    rng.shuffle(lines)
    interim = b""
    if rng.random() < 0.05:
        interim = rng.choice(
            (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
        )
    return interim + b"\r\n".join((version + status, *lines)) + b"\r\n\r\n"


def chunked_body(rng: random.Random, body: Body) -> bytes:
    """Return the body with one chunk per event, or chunked at random positions."""
    is_plain = bool(body.events) and rng.random() < 0.6
    out = []
    for piece in body.events if is_plain else _pieces(rng, body.data):
        digits, extension = b"%x" % len(piece), b""
        if not is_plain:
            digits = rng.choice((digits, digits.upper().zfill(rng.choice((2, 4, 8)))))
            extension = rng.choice((b"", b"", b"", b";a=b", b' ;q="x y"'))
        out.append(digits + extension + b"\r\n" + piece + b"\r\n")
    trailer = rng.choice((b"", b"", b"X-Trailer: 1\r\n"))
    return b"".join(out) + rng.choice((b"0", b"0", b"000", b"0;e")) + b"\r\n" + trailer + b"\r\n"


def _pieces(rng: random.Random, data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = rng.choice((1, 7, 64, 300, 5_000))
        yield data[at : at + size]
        at += size


def _framed(rng: random.Random, body: Body) -> tuple[bytes, Ending]:
    """Return a complete response in one of the three framings."""
    framing = rng.choice(("chunked", "chunked", "length", "close"))
    closing = rng.random() < 0.15
    connection = [_case(rng, b"Connection") + b": close"] if closing else []
    if framing == "length":
        length = _case(rng, b"Content-Length") + b": %d" % len(body.data)
        data = head(rng, body, length, *connection) + body.data
    elif framing == "chunked":
        coding = _case(rng, b"Transfer-Encoding") + rng.choice((b": chunked", b":Chunked"))
        data = head(rng, body, coding, *connection) + chunked_body(rng, body)
    else:
        return head(rng, body, b"Connection: close") + body.data, Ending.CLOSE
    return data, Ending.CLOSE if closing else Ending.KEEP


def with_length(rng: random.Random, body: Body, status: bytes = b"200 OK") -> bytes:
    return head(rng, body, b"Content-Length: %d" % len(body.data), status=status) + body.data


def split(rng: random.Random, data: bytes) -> tuple[tuple[float, bytes], ...]:
    """Return the bytes in pieces, as from a network or a slow server."""
    choice = rng.random()
    if choice < 0.4:
        return ((pause(rng), data),)
    cuts = sorted(rng.randrange(1, len(data)) for _ in range(rng.choice((1, 2, 5, 20))))
    edges = [0, *cuts, len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(edges) if b > a]
    return tuple((pause(rng) if rng.random() < 0.3 else 0.0, piece) for piece in pieces)


def pause(rng: random.Random) -> float:
    return rng.choice((0.0, 0.0, 0.001, MAX_PAUSE_S * rng.random()))


def _unterminated(rng: random.Random, body: Body) -> bytes:
    """Return a stream that ends with `[DONE]` while its framing continues."""
    if rng.random() < 0.5:
        return head(rng, body, b"Content-Length: 100000") + body.data
    events = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in body.events)
    return head(rng, body, b"Transfer-Encoding: chunked") + events


def good(rng: random.Random, is_streaming: bool) -> Reply:
    body = stream_body(rng) if is_streaming else whole_body(rng)
    data, ending = _framed(rng, body)
    if is_streaming and body.data.rstrip().endswith(b"\ndata: [DONE]") and rng.random() < 0.05:
        data, ending = _unterminated(rng, body), Ending.HANG
    return Reply("good", Truth.GOOD, split(rng, data), ending, body.chunks, body.tokens)
