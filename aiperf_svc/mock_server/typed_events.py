"""The APIs whose streams are not chat chunks: OpenAI's responses, transcriptions and images,
Anthropic's messages, and `/generate` of Text Generation Inference.

A response has one item (or block) of reasoning, if it has reasoning, and one of text. The events
that start and end an item are sent with the token next to them, so a stream still has one write per
token.
"""

import json
from dataclasses import dataclass, field

from aiperf_svc.mock_server.histories import ARGUMENTS, TOOL, argument_parts, call_id
from aiperf_svc.mock_server.requests import RequestParams

_TEXT = """
the quick model reads every word and writes one more token at a time while people wait for it to say
what they hope is true about long rivers small cities old machines new music cold winters warm bread
bright stars deep water open roads quiet books green hills and kind friends
"""
WORDS = _TEXT.split()
"""Token i of every response is word `i % len(WORDS)`."""
PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
)
"""Every generated image: one grey pixel, as PNG."""
_TOKENS_PER_PICTURE = 272
"""Output tokens reported for an image, whatever its size."""


def word(index: int) -> str:
    """Return the text of a token."""
    return (" " if index else "") + WORDS[index % len(WORDS)]


def compact(value: object) -> bytes:
    """Encode JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


Members = dict[str, object]


@dataclass(slots=True)
class TypedStream:
    """A response in both forms: as one object and as events."""

    whole: Members
    opening: list[bytes] = field(default_factory=list)
    """Events before the first token."""
    events: list[bytes] = field(default_factory=list)
    """Events of each token."""
    tail: list[bytes] = field(default_factory=list)
    """Events that are sent with the last token."""


def _text(count: int, turn: int = 0) -> str:
    return "".join(map(word, range(turn, turn + count)))


def typed_event(kind: str, **members: object) -> bytes:
    """Return an event whose data contain their type."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), compact({"type": kind, **members}))


def response_items(params: RequestParams) -> list[Members]:
    """Return the output of a response of `/v1/responses`."""
    shown, turn = params.tokens - params.reasoning, params.turn
    items: list[Members] = []
    if params.reasoning:
        content = [{"type": "reasoning_text", "text": _text(params.reasoning, turn)}]
        items.append({"type": "reasoning", "id": "rs_mock", "summary": [], "content": content})
        items[0]["encrypted_content"] = f"gAAAA{turn}+/="
    content = [{"type": "output_text", "text": _text(shown, turn)}]
    message = {"type": "message", "id": "msg_mock", "role": "assistant", "status": "completed"}
    items.append(message | {"content": content})
    for number in range(params.tool_calls):
        call: Members = {"type": "function_call", "id": f"fc_mock_{number}", "status": "completed"}
        call |= {"call_id": call_id(turn, number), "name": TOOL, "arguments": ARGUMENTS}
        items.append(call)
    return items


def responses_api(params: RequestParams, created_s: int) -> TypedStream:
    """Return a response of `/v1/responses`."""
    shown = params.tokens - params.reasoning
    items = response_items(params)
    status = "incomplete" if params.is_cut_short else "completed"
    begun: Members = {
        "id": "resp_mock",
        "object": "response",
        "created_at": created_s,
        "status": "in_progress",
        "model": params.model,
        "error": None,
        "incomplete_details": None,
        "output": [],
    }
    whole = begun | {"status": status, "output": items}
    if params.is_cut_short:
        whole["incomplete_details"] = {"reason": "max_output_tokens"}
    if params.has_usage:
        whole["usage"] = {
            "input_tokens": params.prompt_tokens,
            "input_tokens_details": {"cached_tokens": max(0, params.cached_tokens)},
            "output_tokens": params.tokens,
            "output_tokens_details": {"reasoning_tokens": params.reasoning},
            "total_tokens": params.prompt_tokens + params.tokens,
        }
    made = TypedStream(whole)
    made.opening = [typed_event("response.created", response=begun)]
    for index, item in enumerate(items):
        if item["type"] == "function_call":
            made.tail += _call_events(index, item)
            continue
        is_reasoning = item["type"] == "reasoning"
        place = {"item_id": item["id"], "output_index": index, "content_index": 0}
        kept = {key: value for key, value in item.items() if key != "encrypted_content"}
        empty = kept | {"content": []}
        added = typed_event("response.output_item.added", output_index=index, item=empty)
        done = typed_event("response.output_item.done", output_index=index, item=item)
        kind = "reasoning_text" if is_reasoning else "output_text"
        tokens = [
            typed_event(f"response.{kind}.delta", **place, delta=word(i + params.turn))
            for i in range(params.reasoning if is_reasoning else shown)
        ]
        _add_item(made, added, tokens, done)
    made.tail.append(typed_event(f"response.{status}", response=whole))
    return made


def _call_events(index: int, item: Members) -> list[bytes]:
    place = {"item_id": item["id"], "output_index": index}
    begun = item | {"arguments": "", "status": "in_progress"}
    return [
        typed_event("response.output_item.added", output_index=index, item=begun),
        *(
            typed_event("response.function_call_arguments.delta", **place, delta=part)
            for part in argument_parts()
        ),
        typed_event("response.function_call_arguments.done", **place, arguments=ARGUMENTS),
        typed_event("response.output_item.done", output_index=index, item=item),
    ]


def message_blocks(params: RequestParams) -> list[Members]:
    """Return the content of a response of `/v1/messages`."""
    shown, turn = params.tokens - params.reasoning, params.turn
    blocks: list[Members] = []
    if params.reasoning:
        signature = f"m{turn}" if turn else "m"
        thinking = _text(params.reasoning, turn)
        blocks.append({"type": "thinking", "thinking": thinking, "signature": signature})
    if params.reasoning and turn:
        blocks.append({"type": "redacted_thinking", "data": f"ENC{turn}+/="})
    blocks.append({"type": "text", "text": _text(shown, turn)})
    for number in range(params.tool_calls):
        use: Members = {"type": "tool_use", "id": call_id(turn, number), "name": TOOL}
        blocks.append(use | {"input": json.loads(ARGUMENTS)})
    return blocks


def _block_events(index: int, block: Members, turn: int, count: int) -> tuple[bytes, list[bytes]]:
    """Return the event that starts a block, and the events that add to it, without the end."""
    kind = block["type"]
    if kind == "redacted_thinking":
        return typed_event("content_block_start", index=index, content_block=block), []
    if kind == "tool_use":
        begun = typed_event("content_block_start", index=index, content_block=block | {"input": {}})
        parts: list[Members] = [
            {"type": "input_json_delta", "partial_json": p} for p in argument_parts()
        ]
    else:
        key = "thinking" if kind == "thinking" else "text"
        begun_block = block | {key: ""} | ({"signature": ""} if key == "thinking" else {})
        begun = typed_event("content_block_start", index=index, content_block=begun_block)
        parts = [{"type": f"{key}_delta", key: word(i + turn)} for i in range(count)]
        if key == "thinking":
            parts.append({"type": "signature_delta", "signature": block["signature"]})
    return begun, [typed_event("content_block_delta", index=index, delta=part) for part in parts]


def message_api(params: RequestParams, created_s: int) -> TypedStream:
    """Return a response of `/v1/messages`, which has no timestamp."""
    shown = params.tokens - params.reasoning
    blocks = message_blocks(params)
    ending_word = "tool_use" if params.tool_calls else "end_turn"
    stop: Members = {
        "stop_reason": "max_tokens" if params.is_cut_short else ending_word,
        "stop_sequence": None,
    }
    usage: Members = {"input_tokens": params.prompt_tokens, "output_tokens": params.tokens}
    if params.cached_tokens >= 0:
        usage["input_tokens"] = params.prompt_tokens - params.cached_tokens
        usage["cache_read_input_tokens"] = params.cached_tokens
        usage["cache_creation_input_tokens"] = 0
    whole: Members = {
        "id": "msg_mock",
        "type": "message",
        "role": "assistant",
        "model": params.model,
        "content": blocks,
        **stop,
    }
    begun = whole | {"content": [], "stop_reason": None}
    ending: Members = {"delta": stop}
    if params.has_usage:
        whole["usage"] = usage
        begun["usage"] = usage | {"output_tokens": 1}
        ending["usage"] = {"output_tokens": params.tokens}
    made = TypedStream(whole)
    made.opening = [typed_event("message_start", message=begun)]
    for index, block in enumerate(blocks):
        count = params.reasoning if block["type"] == "thinking" else shown
        added, parts = _block_events(index, block, params.turn, count)
        done = typed_event("content_block_stop", index=index)
        if block["type"] in ("tool_use", "redacted_thinking"):
            made.tail += [added, *parts, done]
        elif block["type"] == "thinking":
            _add_item(made, added, parts[:-1], parts[-1] + done)
        else:
            _add_item(made, added, parts, done)
    made.tail += [typed_event("message_delta", **ending), typed_event("message_stop")]
    return made


def _add_item(made: TypedStream, added: bytes, tokens: list[bytes], done: bytes) -> None:
    """Add the events of one item; the end of the previous item is sent with its start."""
    begins = b"".join([*made.tail, added])
    made.tail = []
    if not made.events:
        made.opening.append(begins)
    elif tokens:
        tokens = [begins + tokens[0], *tokens[1:]]
    else:
        made.tail.append(begins)
    made.events += tokens
    made.tail.append(done)


def generate_api(params: RequestParams, created_s: int) -> TypedStream:
    """Return a response of TGI, without a timestamp. The last token's event has the counts."""
    text = "".join(map(word, range(params.tokens)))
    details: dict[str, object] = {
        "finish_reason": "length" if params.is_cut_short else "eos_token",
        "generated_tokens": params.tokens,
        "seed": None,
    }
    made = TypedStream({"generated_text": text, "details": details | {"prefill": []}})
    ending = {"generated_text": text, "details": details | {"input_length": params.prompt_tokens}}
    for i in range(params.tokens):
        token = {"id": i, "text": word(i), "logprob": -0.5, "special": False}
        is_last = i == params.tokens - 1
        more = ending if is_last else {"generated_text": None, "details": None}
        made.events.append(b"data:%b\n\n" % compact({"index": i + 1, "token": token, **more}))
    return made


def transcription_api(params: RequestParams, created_s: int) -> TypedStream:
    """Return a response of `/v1/audio/transcriptions`, which has no timestamp."""
    text = "".join(map(word, range(params.tokens)))
    whole: Members = {"text": text}
    if params.has_usage:
        whole["usage"] = {
            "type": "tokens",
            "input_tokens": params.prompt_tokens,
            "input_token_details": {"text_tokens": 0, "audio_tokens": params.prompt_tokens},
            "output_tokens": params.tokens,
            "total_tokens": params.prompt_tokens + params.tokens,
        }
    made = TypedStream(whole)
    made.events = [
        typed_event("transcript.text.delta", delta=word(i)) for i in range(params.tokens)
    ]
    made.tail.append(typed_event("transcript.text.done", **whole))
    return made


def image_api(params: RequestParams, created_s: int) -> TypedStream:
    """Return a response of `/v1/images/generations`. In a stream, each image counts as a token."""
    usage = {
        "input_tokens": params.prompt_tokens,
        "input_tokens_details": {"text_tokens": params.prompt_tokens, "image_tokens": 0},
        "output_tokens": _TOKENS_PER_PICTURE,
        "total_tokens": params.prompt_tokens + _TOKENS_PER_PICTURE,
    }
    data = [{"b64_json": PICTURE}] * params.inputs
    made = TypedStream({"created": created_s, "data": data, "usage": usage})
    about = {"b64_json": PICTURE, "created_at": created_s, "size": "1024x1024"}
    made.events = [
        typed_event("image_generation.partial_image", **about, partial_image_index=i)
        for i in range(params.tokens - 1)
    ]
    made.events.append(typed_event("image_generation.completed", **about, usage=usage))
    return made
