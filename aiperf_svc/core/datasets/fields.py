"""The members that define a prompt in a file's line, the same for single turns and for the turns of
a conversation.

    text, prompt, content   a string (or, as `texts`, a list of strings)
    messages                message objects of the chat API
    payload                 a complete request body
    query, passages         a text, and the list of texts to rank by it; also as `texts`, a list of
                            {"name": "query" or "passages", "contents": [...]}
    output_length           maximum tokens of the response; also max_tokens
    delay                   milliseconds after the previous response; ignored in a first turn, since
                            the load decides when a conversation begins

    image, images           images, with or without a text: paths from the file's folder, or URLs
    audio, audios           sounds, likewise: paths from the file's folder

Unknown members are ignored, since files contain notes. Videos are refused, because the load would
differ from the file's without them.
"""

from typing import Any, Literal

import msgspec

from aiperf_svc.core.datasets.base import MS_NS, PromptTurn
from aiperf_svc.core.endpoints.base import Media, Prompt
from aiperf_svc.domain.json_objects import Json

MAX_DELAY_MS = 86_400_000.0


class NamedTexts(msgspec.Struct):
    """A query or passages, in AIPerf's form."""

    name: Literal["query", "passages"]
    contents: list[str]


class TurnFields(msgspec.Struct):
    """Fields of one prompt as written in the file."""

    text: str | None = None
    prompt: str | None = None
    content: str | None = None
    texts: list[str | NamedTexts] | None = None
    query: str | None = None
    passages: list[str] | None = None
    messages: list[Json] | None = None
    payload: Json | None = None
    role: str | None = None
    output_length: int | None = None
    max_tokens: int | None = None
    delay: float | None = None
    session_id: str | None = None
    id: str | int | None = None
    image: str | None = None
    images: list[str] | None = None
    audio: str | None = None
    audios: list[str] | None = None
    video: Any = None
    videos: Any = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Json] | None = None
    tool_call_id: str | None = None
    tokens: int | None = None


PROMPT_MEMBERS = "one of text, prompt, texts, query (with passages), messages or payload"


def turn_of(fields: TurnFields) -> PromptTurn:
    """Return the turn that `fields` describe. Raises ValueError with the problem."""
    videos = [name for name in ("video", "videos") if getattr(fields, name)]
    if videos:
        raise ValueError(f"`{videos[0]}` is not supported")
    fields = _with_query(fields)
    return PromptTurn(
        prompt=Prompt(
            texts=(texts := _texts(fields)),
            passages=_passages(fields),
            messages=_messages(fields, texts),
            payload=fields.payload,
            media=_media(fields),
            role=fields.role or "user",
            output_tokens=output_tokens(fields),
        ),
        delay_ns=delay_ns(fields.delay or 0.0),
        has_delay=fields.delay is not None,
    )


def _with_query(fields: TurnFields) -> TurnFields:
    """Return the fields with `query` and `passages` in place of named texts."""
    named = [each for each in fields.texts or () if isinstance(each, NamedTexts)]
    if not named:
        return fields
    found: dict[str, list[str]] = {}
    for each in named:
        found.setdefault(each.name, []).extend(each.contents)
    if len(named) != len(fields.texts or ()) or len(found) != 2 or len(found["query"]) != 1:
        raise ValueError("`texts` with names needs one `query`, of one text, and `passages`")
    return msgspec.structs.replace(
        fields, texts=None, query=found["query"][0], passages=found["passages"]
    )


def _media(fields: TurnFields) -> tuple[Media, ...]:
    images = [*filter(None, [fields.image]), *(fields.images or ())]
    sounds = [*filter(None, [fields.audio]), *(fields.audios or ())]
    if (images or sounds) and (fields.messages is not None or fields.payload is not None):
        raise ValueError("`messages` and `payload` already contain images and sounds")
    return (
        *(Media("image/*", reference=each) for each in images),
        *(Media("audio/*", reference=each) for each in sounds),
    )


def _passages(fields: TurnFields) -> tuple[str, ...]:
    if (fields.query is None) != (fields.passages is None):
        raise ValueError("`query` and `passages` need each other")
    if fields.passages is not None and not (fields.passages and all(fields.passages)):
        raise ValueError("`passages` is empty or holds an empty text")
    return tuple(fields.passages or ())


def _texts(fields: TurnFields) -> tuple[str, ...]:
    names = ("text", "prompt", "content", "texts", "query", "messages", "payload")
    members = [name for name in names if getattr(fields, name) is not None]
    if not members and (fields.image or fields.images or fields.audio or fields.audios):
        return ()
    if len(members) != 1:
        found = " and ".join(f"`{name}`" for name in members) or "none"
        raise ValueError(f"needs exactly one prompt, found {found}")
    value = getattr(fields, members[0])
    if not value or (members[0] == "texts" and not all(value)):
        raise ValueError(f"`{members[0]}` is empty")
    if members[0] == "texts":
        return tuple(value)
    return (value,) if isinstance(value, str) else ()


def _messages(fields: TurnFields, texts: tuple[str, ...]) -> tuple[Json, ...]:
    if texts or not fields.messages:
        return ()
    for position, message in enumerate(fields.messages):
        if not isinstance(message.get("role"), str):
            raise ValueError(f"`messages[{position}]` has no `role`")
    return tuple(fields.messages)


def output_tokens(fields: TurnFields) -> int | None:
    """Return the output length in the fields. Raises ValueError if it is invalid."""
    if fields.output_length is not None and fields.max_tokens is not None:
        raise ValueError("has both `output_length` and `max_tokens`")
    value = fields.output_length if fields.output_length is not None else fields.max_tokens
    if value is not None and not 1 <= value < 2**31:
        raise ValueError(f"output length {value} is not a positive number of tokens")
    return value


def delay_ns(delay_ms: float) -> int:
    """Return a delay in nanoseconds. Raises ValueError if it is negative or over a day."""
    if not 0 <= delay_ms <= MAX_DELAY_MS:
        raise ValueError(f"`delay` {delay_ms:g} is not between 0 and 86,400,000 milliseconds")
    return round(delay_ms * MS_NS)
