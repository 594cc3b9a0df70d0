"""The bytes of every response, created once and shared by all identical requests.

A response is drafted in parts (`Draft`), which a fault may modify, and then assembled into a
`Reply`: a list of writes, one `send` each, and the action after the last write.
"""

import base64
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any

from aiperf_svc.mock_server.histories import ARGUMENTS, TOOL, argument_parts, call_id, decoded
from aiperf_svc.mock_server.requests import (
    CHAT,
    EMBEDDINGS,
    GENERATE,
    GENERATE_STREAM,
    IMAGES,
    MESSAGES,
    NIM_RANKING,
    RANKINGS,
    RESPONSES,
    TEI_RERANK,
    TRANSCRIPTIONS,
    RequestParams,
)
from aiperf_svc.mock_server.typed_events import (
    WORDS,
    TypedStream,
    compact,
    generate_api,
    image_api,
    message_api,
    message_blocks,
    response_items,
    responses_api,
    transcription_api,
    word,
)

DONE = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"


class Ending(IntEnum):
    """Action after the last write of a reply."""

    KEEP = 0
    """The connection waits for its next request."""
    CLOSE = 1
    """The connection is closed normally: the reply is complete."""
    CUT = 2
    """The connection is closed although the reply is incomplete."""
    RESET = 3
    """Like CUT, with a TCP reset."""
    HANG = 4
    """The server sends nothing more; the connection stays open until the client leaves."""
    REPEAT = 5
    """The paced writes start again: the reply never ends."""


class Reply:
    """A response as the server sends it. Immutable once assembled; shared by many connections.

    `writes` are sent one at a time: the first `early` of them at once, the next after the time to
    first token, each further one an inter-token time later. `delay_tokens` is the number of
    inter-token times before the only write of a non-streaming response. `whole` is the
    concatenation of the writes, for a server without delays, if there is only one paced write.
    """

    __slots__ = (
        "cached_tokens",
        "count",
        "delay_tokens",
        "early",
        "ending",
        "is_plain",
        "prompt_tokens",
        "status",
        "tokens",
        "whole",
        "writes",
    )

    def __init__(
        self, *, status: int, writes: list[bytes], early: int, delay_tokens: int, ending: Ending
    ) -> None:
        self.status = status
        self.writes = writes
        self.early = early
        self.delay_tokens = delay_tokens
        self.ending = ending
        self.count = len(writes)
        is_single = self.count - early == 1 and ending is not Ending.REPEAT
        self.whole = b"".join(writes) if is_single else None
        self.is_plain = status == 200 and ending is Ending.KEEP
        self.prompt_tokens = 0
        self.cached_tokens = -1
        self.tokens = 0
        """Tokens of the request and of the complete response; 0 if no model responded."""


@dataclass(slots=True)
class Draft:
    """A response in parts. A stream has `events`, one per token, and a `tail` that is sent with the
    last one; any other response has a `body`. `raw` replaces everything after the head, `head`
    replaces the head.
    """

    status: int = 200
    content_type: str = "application/json"
    is_stream: bool = False
    events: list[bytes] = field(default_factory=list)
    tail: list[bytes] = field(default_factory=list)
    opening: list[bytes] = field(default_factory=list)
    """Events that are sent with the head, before the first token: the role."""
    body: bytes = b""
    delay_tokens: int = 0
    ending: Ending = Ending.KEEP
    has_last_chunk: bool = True
    content_length: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    head: bytes | None = None
    raw: list[bytes] | None = None


@lru_cache(maxsize=4096)
def chunk(data: bytes) -> bytes:
    """Return one chunk of the chunked transfer coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def draft_error(status: int, message: str, *, kind: str = "mock_error", path: str = CHAT) -> Draft:
    """Return an error in the format of the path's API: Anthropic's, TGI's, or else OpenAI's."""
    headers = (("Retry-After", "1"),) if status in (429, 503) else ()
    if path in (GENERATE, GENERATE_STREAM, TEI_RERANK):
        content = compact({"error": message, "error_type": kind})
        return Draft(status=status, body=content, headers=headers)
    error: dict[str, object] = {"message": message, "type": kind}
    if path != MESSAGES:
        error |= {"param": None, "code": status}
    body: dict[str, object] = {"type": "error"} if path == MESSAGES else {}
    return Draft(status=status, body=compact(body | {"error": error}), headers=headers)


_TYPED = {
    RESPONSES: responses_api,
    MESSAGES: message_api,
    GENERATE: generate_api,
    GENERATE_STREAM: generate_api,
    TRANSCRIPTIONS: transcription_api,
    IMAGES: image_api,
}
"""APIs whose responses do not have the format of OpenAI's completions."""


def _typed_draft(params: RequestParams, made: TypedStream) -> Draft:
    if not params.is_stream:
        return Draft(body=compact(made.whole), delay_tokens=max(params.tokens - 1, 0))
    return Draft(
        content_type="text/event-stream; charset=utf-8",
        is_stream=True,
        opening=made.opening,
        events=made.events,
        tail=made.tail,
    )


class Drafts:
    """Drafts the responses; `created_s` is their creation time, in seconds since the epoch."""

    def __init__(self, *, created_s: int, role_chunk: bool, embedding_dimensions: int) -> None:
        self._created_s = created_s
        self._role_chunk = role_chunk
        self._dimensions = embedding_dimensions
        self._events: dict[tuple[str, str, str], list[bytes]] = {}

    def draft(self, params: RequestParams) -> Draft:
        """Return the response to a request with these parameters."""
        if params.path == EMBEDDINGS:
            return Draft(body=self._embeddings(params))
        if params.path in RANKINGS:
            return Draft(body=_ranking(params))
        if params.path in _TYPED:
            return _typed_draft(params, _TYPED[params.path](params, self._created_s))
        if params.is_stream:
            return self._stream(params)
        return Draft(body=self._completion(params), delay_tokens=max(params.tokens - 1, 0))

    def models(self, model: str) -> Draft:
        """Return the list of models, which has one entry."""
        entry = {"id": model, "object": "model", "created": self._created_s, "owned_by": "mock"}
        return Draft(body=compact({"object": "list", "data": [entry]}))

    def _stream(self, params: RequestParams) -> Draft:
        is_chat = params.path == CHAT
        made = Draft(content_type="text/event-stream; charset=utf-8", is_stream=True)
        text_key = "refusal" if params.refuses else "content"
        response = self._tokens(
            params, text_key if is_chat else "text", params.tokens - params.reasoning
        )
        made.events = self._tokens(params, "reasoning_content", params.reasoning) + response
        if is_chat:
            role = {"role": "assistant"}
            if self._role_chunk:
                made.opening.append(self._event(params, {"delta": role | {"content": ""}}))
            elif made.events:
                key = "reasoning_content" if params.reasoning else text_key
                first = word(params.turn % len(WORDS))
                made.events[0] = self._event(params, {"delta": role | {key: first}})
        made.tail += map(partial(self._event, params), _call_deltas(params))
        finish: dict[str, object] = {"delta": {}} if is_chat else {"text": ""}
        made.tail.append(self._event(params, finish, finish_reason=_finish_reason(params)))
        if params.has_usage:
            made.tail.append(
                b"data: %b\n\n" % compact(self._envelope(params, []) | {"usage": _usage(params)})
            )
        made.tail.append(DONE)
        return made

    def _tokens(self, params: RequestParams, key: str, count: int) -> list[bytes]:
        """Return the events of `count` tokens. The events of one cycle through the words are
        created once per model.
        """
        if count == 0:
            return []
        turn = self._events.get((params.path, params.model, key))
        if turn is None:
            if len(self._events) >= 256:
                self._events.clear()
            made = [
                self._event(
                    params, {"text": word(i)} if key == "text" else {"delta": {key: word(i)}}
                )
                for i in range(len(WORDS))
            ]
            turn = self._events[params.path, params.model, key] = made
        first = params.turn % len(turn)
        return (turn * ((first + count) // len(turn) + 1))[first : first + count]

    def _event(
        self, params: RequestParams, part: dict[str, object], *, finish_reason: str | None = None
    ) -> bytes:
        choice = {"index": 0, **part, "finish_reason": finish_reason}
        return b"data: %b\n\n" % compact(self._envelope(params, [choice]))

    def _envelope(
        self, params: RequestParams, choices: list[dict[str, object]]
    ) -> dict[str, object]:
        is_chat = params.path == CHAT
        if not is_chat:
            kind = "text_completion"
        elif params.is_stream:
            kind = "chat.completion.chunk"
        else:
            kind = "chat.completion"
        return {
            "id": "chatcmpl-mock" if is_chat else "cmpl-mock",
            "object": kind,
            "created": self._created_s,
            "model": params.model,
            "choices": choices,
        }

    def _completion(self, params: RequestParams) -> bytes:
        choice: dict[str, object] = {"index": 0, "finish_reason": _finish_reason(params)}
        if params.path == CHAT:
            choice["message"] = _chat_message(params)
        else:
            choice["text"] = "".join(map(word, range(params.tokens)))
        made = self._envelope(params, [choice])
        if params.has_usage:
            made["usage"] = _usage(params)
        return compact(made)

    def _embeddings(self, params: RequestParams) -> bytes:
        numbers = [(i % 17 - 8) / 16 for i in range(self._dimensions)]
        packed = struct.pack(f"<{len(numbers)}f", *numbers)
        value = base64.b64encode(packed).decode() if params.is_base64 else numbers
        data = [
            {"object": "embedding", "index": index, "embedding": value}
            for index in range(params.inputs)
        ]
        usage = {"prompt_tokens": params.prompt_tokens, "total_tokens": params.prompt_tokens}
        return compact({"object": "list", "data": data, "model": params.model, "usage": usage})


def _ranking(params: RequestParams) -> bytes:
    """Return scores of the passages, the best one first, in the format of the path's API."""
    scores = [(index, 1.0 / (index + 1)) for index in range(params.inputs)]
    if params.path == TEI_RERANK:
        return compact([{"index": index, "score": score} for index, score in scores])
    usage = {"prompt_tokens": params.prompt_tokens, "total_tokens": params.prompt_tokens}
    if params.path == NIM_RANKING:
        found = [{"index": index, "logit": score} for index, score in scores]
        return compact({"rankings": found, "usage": usage})
    found = [{"index": index, "relevance_score": score} for index, score in scores]
    return compact({"id": "rerank-mock", "model": params.model, "usage": usage, "results": found})


def assemble(draft: Draft, *, close: bool, early_head: bool) -> Reply:
    """Return the reply for a draft.

    With `close`, the head has `Connection: close` and the connection is closed afterwards. With
    `early_head`, the head of a stream is a separate write, sent before the first token; otherwise
    it is sent with the first token.
    """
    ending = Ending.CLOSE if close and draft.ending is Ending.KEEP else draft.ending
    head = draft.head if draft.head is not None else _head(draft, close=close)
    early = 0
    if draft.raw is not None:
        writes = [head + draft.raw[0], *draft.raw[1:]] if draft.raw else []
        if not writes and head:
            writes = [head]
    elif draft.is_stream:
        opening = head + b"".join(map(chunk, draft.opening))
        writes = [chunk(event) for event in draft.events]
        tail = b"".join(map(chunk, draft.tail)) + (LAST_CHUNK if draft.has_last_chunk else b"")
        if writes:
            writes[-1] += tail
        elif tail:
            writes = [tail]
        if early_head or not writes:
            writes.insert(0, opening)
            early = 1
        else:
            writes[0] = opening + writes[0]
    else:
        writes = [head + draft.body]
    return Reply(
        status=draft.status,
        writes=writes,
        early=early,
        delay_tokens=draft.delay_tokens,
        ending=ending,
    )


def _head(draft: Draft, *, close: bool) -> bytes:
    try:
        reason = HTTPStatus(draft.status).phrase
    except ValueError:
        reason = "Mock"
    lines = [f"HTTP/1.1 {draft.status} {reason}", f"Content-Type: {draft.content_type}"]
    if draft.is_stream:
        lines += ["Cache-Control: no-cache", "Transfer-Encoding: chunked"]
    else:
        length = len(draft.body) if draft.content_length is None else draft.content_length
        lines.append(f"Content-Length: {length}")
    lines += [f"{name}: {value}" for name, value in draft.headers]
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode()


def _finish_reason(params: RequestParams) -> str:
    if params.is_cut_short:
        return "length"
    return "tool_calls" if params.tool_calls else "stop"


def _chat_message(params: RequestParams) -> dict[str, Any]:
    """Return the message of a chat response. A stream repeats its words without a space."""

    def text(count: int) -> str:
        places = range(params.turn, params.turn + count)
        return "".join(word(i % len(WORDS) if params.is_stream else i) for i in places)

    message: dict[str, Any] = {"role": "assistant"}
    shown = text(params.tokens - params.reasoning)
    message |= {"content": None, "refusal": shown} if params.refuses else {"content": shown}
    if params.reasoning:
        message["reasoning_content"] = text(params.reasoning)
    if params.tool_calls:
        message["tool_calls"] = [
            {
                "id": call_id(params.turn, number),
                "type": "function",
                "function": {"name": TOOL, "arguments": ARGUMENTS},
            }
            for number in range(params.tool_calls)
        ]
    return message


def _call_deltas(params: RequestParams) -> Iterator[dict[str, object]]:
    """Return the deltas of a stream's tool calls: id and name once, then the arguments."""
    for number in range(params.tool_calls):
        function = {"name": TOOL, "arguments": ""}
        begun = {"id": call_id(params.turn, number), "type": "function", "function": function}
        yield {"delta": {"tool_calls": [{"index": number} | begun]}}
        for part in argument_parts():
            yield {"delta": {"tool_calls": [{"index": number, "function": {"arguments": part}}]}}


def response_of(params: RequestParams) -> list[dict[str, Any]]:
    """Return what clients send back of a response: its message, blocks or items."""
    if params.path == RESPONSES:
        sent: list[Any] = [*response_items(params)]
    else:
        sent = [*message_blocks(params)] if params.path == MESSAGES else [_chat_message(params)]
    found: list[dict[str, Any]] = decoded(compact(sent))
    for each in found:
        if params.is_stream and each.get("type") == "tool_use":
            each["input"] = decoded(ARGUMENTS)  # a stream sends their text
        if params.refuses and not params.tool_calls:
            each["content"] = ""  # the API accepts null only beside tool calls
    return found


def _usage(params: RequestParams) -> dict[str, object]:
    usage: dict[str, object] = {
        "prompt_tokens": params.prompt_tokens,
        "completion_tokens": params.tokens,
        "total_tokens": params.prompt_tokens + params.tokens,
    }
    if params.reasoning:
        usage["completion_tokens_details"] = {"reasoning_tokens": params.reasoning}
    if params.cached_tokens >= 0:
        usage["prompt_tokens_details"] = {"cached_tokens": params.cached_tokens}
    return usage
