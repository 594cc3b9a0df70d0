"""The APIs whose events have types: OpenAI's responses and Anthropic's messages.

A response has one item (or block) of reasoning, if it has reasoning, and one of text. The events
that begin and end an item go with the token next to them, so that a stream still has one write per
token.
"""

from dataclasses import dataclass, field

from aiperf_svc.mock_server.requests import RequestParams
from aiperf_svc.mock_server.texts import compact, word

Members = dict[str, object]


@dataclass(slots=True)
class TypedStream:
    """A response in both forms: as one object, and as events."""

    whole: Members
    opening: list[bytes] = field(default_factory=list)
    """Events before the first token."""
    events: list[bytes] = field(default_factory=list)
    """Events of each token."""
    tail: list[bytes] = field(default_factory=list)
    """Events that go with the last token."""


def _text(count: int) -> str:
    return "".join(map(word, range(count)))


def typed_event(kind: str, **members: object) -> bytes:
    """An event whose data name their type."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), compact({"type": kind, **members}))


def responses_api(params: RequestParams, created_s: int) -> TypedStream:
    """A response of `/v1/responses`."""
    shown = params.tokens - params.reasoning
    items: list[Members] = []
    if params.reasoning:
        content = [{"type": "reasoning_text", "text": _text(params.reasoning)}]
        items.append({"type": "reasoning", "id": "rs_mock", "summary": [], "content": content})
    content = [{"type": "output_text", "text": _text(shown)}]
    message = {"type": "message", "id": "msg_mock", "role": "assistant", "status": "completed"}
    items.append(message | {"content": content})
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
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": params.tokens,
            "output_tokens_details": {"reasoning_tokens": params.reasoning},
            "total_tokens": params.prompt_tokens + params.tokens,
        }
    made = TypedStream(whole)
    made.opening = [typed_event("response.created", response=begun)]
    for index, item in enumerate(items):
        is_reasoning = item["type"] == "reasoning"
        place = {"item_id": item["id"], "output_index": index, "content_index": 0}
        empty = {key: value for key, value in item.items() if key != "content"} | {"content": []}
        added = typed_event("response.output_item.added", output_index=index, item=empty)
        done = typed_event("response.output_item.done", output_index=index, item=item)
        kind = "reasoning_text" if is_reasoning else "output_text"
        tokens = [
            typed_event(f"response.{kind}.delta", **place, delta=word(i))
            for i in range(params.reasoning if is_reasoning else shown)
        ]
        _add_item(made, added, tokens, done)
    made.tail.append(typed_event(f"response.{status}", response=whole))
    return made


def message_api(params: RequestParams, created_s: int) -> TypedStream:
    """A response of `/v1/messages`, which states no time."""
    shown = params.tokens - params.reasoning
    blocks: list[Members] = []
    if params.reasoning:
        blocks.append({"type": "thinking", "thinking": _text(params.reasoning), "signature": "m"})
    blocks.append({"type": "text", "text": _text(shown)})
    stop: Members = {
        "stop_reason": "max_tokens" if params.is_cut_short else "end_turn",
        "stop_sequence": None,
    }
    usage: Members = {"input_tokens": params.prompt_tokens, "output_tokens": params.tokens}
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
        key = "thinking" if block["type"] == "thinking" else "text"
        added = typed_event("content_block_start", index=index, content_block=block | {key: ""})
        done = typed_event("content_block_stop", index=index)
        tokens = [
            typed_event(
                "content_block_delta", index=index, delta={"type": f"{key}_delta", key: word(i)}
            )
            for i in range(params.reasoning if key == "thinking" else shown)
        ]
        _add_item(made, added, tokens, done)
    made.tail += [typed_event("message_delta", **ending), typed_event("message_stop")]
    return made


def _add_item(made: TypedStream, added: bytes, tokens: list[bytes], done: bytes) -> None:
    """Add the events of one item; the end of the one before goes with its beginning."""
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
