"""The definition of an endpoint: how a prompt becomes a request's body, and how a response's JSON
becomes a Delta.

An endpoint is a value, not a class: one module has its functions and one `Endpoint` constant, and
`registry` lists them. `domain/endpoint_types.py` has its name and what it can do. The table of
CONTRIBUTING.md lists all files of a new one.

Bodies are rendered once, when the dataset is built. `parse_event` runs once per token of every
response, so responses are decoded into minimal structs (unknown fields are skipped, never built).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from html import unescape
from typing import Any, NamedTuple, TypeVar

import msgspec

from aiperf_svc.config import endpoint as config
from aiperf_svc.domain.endpoint_types import EndpointType, Feature
from aiperf_svc.domain.finish_reasons import finish_reason_of
from aiperf_svc.domain.json_objects import Json

Shape = TypeVar("Shape", bound=msgspec.Struct)

DONE = b"[DONE]"
"""Data of the event that ends a stream; some servers append a space. It is not JSON and is never
passed to `parse_event`."""

EVENT_STREAM = ("text/event-stream",)
JSON = ("application/json",)

SYSTEM_ROLES = ("system", "developer")
"""Roles of messages of the chat API that instruct the model."""

MAX_CHOICES = 128
"""Maximum number of choices that are distinguished, which is OpenAI's own limit. Others count as
the last one."""
_MAX_COUNT = 2**31 - 1

_MESSAGE_LIMIT = 500
"""Maximum stored characters of an error message: enough to recognise it, small in every
record."""
_READ_LIMIT = 16_384
"""Bytes of a body that are searched for a message: an HTML page can begin with long styles."""
_NO_NUMBERS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?\b(?:NaN|Infinity)\b', re.DOTALL)
"""JSON strings, which come first so that nothing inside them matches, and non-JSON numbers."""
_HALVES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F])[0-9a-fA-F]{2}"
    rb"|\\.",
    re.DOTALL,
)
"""JSON escapes. Surrogate pairs come first, so that the group only matches lone surrogates."""
_REPLACEMENT = rb"\ufffd"
_HTML = re.compile(r"<(!doctype\s+html|html)\b", re.IGNORECASE)
_MARKUP = re.compile(r"<(script|style)\b.*?(</\1\s*>|$)|<!--.*?(-->|$)|<[^>]*>?", re.I | re.S)
"""Parts that a browser does not show: scripts, styles, comments, tags."""


class MalformedResponse(ValueError):
    """Invalid UTF-8, invalid JSON, or JSON that does not match the endpoint."""


UNREADABLE = (MalformedResponse, msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of an endpoint's functions for such data. `parse_again` converts all to the first."""


def parse_odd(parse: Callable[[bytes], "Delta"], data: bytes) -> "Delta":
    """Parse data that may be valid without being JSON, see `parse_again`. Raises
    MalformedResponse."""
    try:
        return parse(data)
    except UNREADABLE as error:
        return parse_again(parse, data, error)


def parse_again(parse: Callable[[bytes], "Delta"], data: bytes, error: Exception) -> "Delta":
    """Parse data for which `parse` raised `error`: as `valid_json`, or as an empty Delta if it is
    only white space. Raises MalformedResponse."""
    if isinstance(error, RecursionError):
        raise MalformedResponse("JSON of too many levels") from None
    if not data.strip():
        return Delta()
    if (valid := valid_json(data)) != data:
        with suppress(*UNREADABLE):
            return parse(valid)
    raise error if isinstance(error, MalformedResponse) else malformed(error, data) from None


def valid_json(data: bytes) -> bytes:
    """Return JSON with NaN and Infinity replaced by null, and escapes of lone surrogates by U+FFFD.
    Python's `json` writes such numbers, e.g. for log probabilities, and lone surrogates where a
    token ends within an emoji."""
    if b"NaN" in data or b"Infinity" in data:
        data = _NO_NUMBERS.sub(_null_or_string, data)
    if b"\\u" in data:
        data = _HALVES.sub(_whole_character, data)
    return data


def _null_or_string(found: re.Match[bytes]) -> bytes:
    return found[0] if found[0].startswith(b'"') else b"null"


def _whole_character(found: re.Match[bytes]) -> bytes:
    return _REPLACEMENT if found[1] else found[0]


class Part(NamedTuple):
    """Text of one of several choices."""

    choice: int
    text: str
    """Content and tool calls."""
    reasoning: str = ""


class Drafts(NamedTuple):
    """Speculation for one request; -1: the server does not report a count."""

    steps: int = -1
    drafted: int = -1
    accepted: int = -1


class Delta(msgspec.Struct, gc=False):
    """Content that one event, or one whole body, adds to a response. Counts are -1 if not
    reported."""

    content: str = ""
    reasoning: str = ""
    tool_calls: str = ""
    """Names and arguments of tool calls, concatenated. They are output, but not text for a
    history."""
    prompt_tokens: int = -1
    completion_tokens: int = -1
    reasoning_tokens: int = -1
    cached_tokens: int = -1
    """Prompt tokens that the server read from a cache."""
    cache_write_tokens: int = -1
    """Prompt tokens that it wrote to a cache, if counted separately."""
    drafts: Drafts | None = None
    """The server's report about its speculation for this request."""
    finish_reason: str = ""
    """The server's finish reason; for several choices, the one with the highest code."""
    choice: int = 0
    """Highest index of its choices, at most MAX_CHOICES - 1."""
    finished: int = 0
    """Choices that this event ends: bit `i` for the choice with index `i`."""
    error: str = ""
    """Message of an error object inside a response with a success status."""
    parts: tuple["Part", ...] = ()
    """Additions of each choice, if there are several."""
    items: int = 0
    """Number of embeddings, ranked passages, pictures or pieces of sound received."""
    item_bytes: int = 0
    """Size of the pieces of sound as sent."""
    is_blank: bool = False
    """True for an empty text and nothing else. It may represent a token."""
    names_role: bool = False
    """True if such a delta has a role, like the first one of a message."""
    is_summary: bool = False
    """True if `reasoning` is a summary instead of the text of the reasoning tokens."""

    @property
    def has_output(self) -> bool:
        """True if this contains output, not only a role, a usage or an end. Such an event counts
        for the time to first token."""
        return bool(self.content or self.reasoning or self.tool_calls or self.items)


class Media(msgspec.Struct, frozen=True):
    """A picture or a sound in a prompt."""

    type: str
    """Media type, `image/png`; `image/*` or `audio/*` while only a reference is known."""
    data: str = ""
    """The file in base64."""
    reference: str = ""
    """URL that the server loads, or path of a file that has not been read yet."""

    @property
    def is_image(self) -> bool:
        return self.type.startswith("image/")

    @property
    def url(self) -> str:
        """Return its URL: a data URL if the content is known."""
        return f"data:{self.type};base64,{self.data}" if self.data else self.reference


class Prompt(msgspec.Struct, frozen=True):
    """Content of one request; exactly one of `texts`, `messages` and `payload` is set, or none
    beside `media`."""

    texts: tuple[str, ...] = ()
    messages: tuple[Mapping[str, Any], ...] = ()
    """Message objects of the chat API, sent unchanged."""
    payload: Mapping[str, Any] | None = None
    """Complete body, see `finish_body`."""
    passages: tuple[str, ...] = ()
    """Texts to rank; `texts` then contains only the query."""
    system: str = ""
    """System prompt before `texts`, for APIs with messages."""
    media: tuple[Media, ...] = ()
    """Pictures and sounds, in addition to `texts`."""
    role: str = "user"
    """Role of the message that `texts` become."""
    output_tokens: int | None = None
    """Output tokens, sent as the request's maximum."""
    members: Mapping[str, Any] = {}
    """Members of the body in addition to `texts` or `messages`; `tools` as in the chat API."""

    @property
    def body_members(self) -> Mapping[str, Any]:
        """Members of the body that the dataset sets."""
        return self.members if self.payload is None else self.payload

    @property
    def is_empty(self) -> bool:
        """Whether it has no content of its own, like a turn that only has tool results."""
        return not (self.texts or self.messages or self.payload or self.media or self.system)

    @property
    def is_media_alone(self) -> bool:
        """Whether it has pictures or sounds but no text."""
        return bool(self.media and not self.texts)


class Rendered(msgspec.Struct, frozen=True):
    """A request's body in three parts; with a history it is `head + history + body + tail`."""

    body: bytes
    head: bytes = b""
    tail: bytes = b""
    requested_tokens: int = -1
    """Output tokens that the body asks for, see `requested_tokens`."""

    @property
    def whole(self) -> bytes:
        """The body of a request without history."""
        return self.head + self.body + self.tail


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Definition of one HTTP API."""

    type: EndpointType
    path: str
    """Path after the base URL, unless the config sets another."""
    prompt_key: str
    """Member of the body with the prompt; empty if the config determines it."""
    render: Callable[[Prompt, config.Endpoint], Rendered]
    """Renders a prompt. Raises ValueError with the reason for a prompt that this API does not
    support."""
    parse_event: Callable[[bytes], Delta]
    """Parses the data of one server-sent event. Raises UNREADABLE."""
    parse_body: Callable[[bytes], Delta]
    """Parses a complete response that is not a stream. Raises UNREADABLE."""
    passages_key: str = ""
    """Member with the texts to rank, if the API ranks."""
    stream_path: str = ""
    """Path for streaming requests, if it differs."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that this API requires in every request, unless the config sets them."""
    content_type: str = "application/json"
    """Media type of every request's body."""
    api_key_header: str = "Authorization"
    """Header that carries the API key, unless the config sets another."""

    extra_problems: Callable[[config.Endpoint], list[str]] = lambda options: []
    """Returns this API's own errors about `extra_inputs`."""
    has_end_mark: bool = True
    """Whether a complete stream ends with `[DONE]` or a finish reason."""
    may_repeat: bool = False
    """Whether an event of a stream may repeat the whole text so far instead of adding to it."""

    def content_types(self, *, streaming: bool) -> tuple[str, ...]:
        """Return the media types, without parameters, of a successful response."""
        return EVENT_STREAM if streaming else JSON


Count = float | str | None
"""A count as reported by servers: some write whole numbers as `12.0` or `"12"`."""


class CompletionDetails(msgspec.Struct, gc=False):
    """Part of a usage object."""

    reasoning_tokens: Count = None


class PromptDetails(msgspec.Struct, gc=False):
    """Part of a usage object."""

    cached_tokens: Count = None
    cache_write_tokens: Count = None


class Usage(msgspec.Struct, gc=False):
    """The `usage` object, common to all APIs in OpenAI's form."""

    prompt_tokens: Count = None
    completion_tokens: Count = None
    total_tokens: Count = None
    completion_tokens_details: CompletionDetails | None = None
    reasoning_tokens: Count = None
    """Like the member of the details, in SGLang's form; 0 if it does not count them."""
    prompt_tokens_details: PromptDetails | None = None
    cached_tokens: Count = None
    """Cached prompt tokens in Moonshot's form; the next two are in DeepSeek's."""
    prompt_cache_hit_tokens: Count = None
    prompt_cache_miss_tokens: Count = None


class Timings(msgspec.Struct, gc=False):
    """The `timings` object of llama.cpp."""

    prompt_n: Count = None
    """Prompt tokens that the server computed."""
    cache_n: Count = None
    """Prompt tokens that the server found in its cache."""
    draft_n: Count = None
    """Drafted tokens, and how many of them were accepted."""
    draft_n_accepted: Count = None


class Speculation(msgspec.Struct, gc=False):
    """Part of vLLM's `metrics` object."""

    num_spec_steps: Count = None
    num_draft_tokens: Count = None
    num_accepted_draft_tokens: Count = None


class ServerMetrics(msgspec.Struct, gc=False):
    """The `metrics` object of vLLM (`--per-request-spec-decode-metrics`)."""

    speculative_decoding: Speculation | None = None


class CommonMembers(msgspec.Struct, gc=False):
    """Members of a response, besides its output, that any API may have."""

    usage: Usage | None = None
    timings: Any = None
    """`Timings` of llama.cpp. No API defines this member and the next one, so servers may use the
    names for other purposes."""
    metrics: Any = None
    """`ServerMetrics` of vLLM."""
    error: Any = None


def add_usage_and_error(delta: Delta, members: CommonMembers) -> None:
    """Write the reported counts and the message of an error into `delta`."""
    usage = members.usage
    if usage is not None:
        delta.prompt_tokens = count_of(usage.prompt_tokens)
        _add_cached(delta, usage)
        delta.completion_tokens = count_of(usage.completion_tokens)
        details = usage.completion_tokens_details
        stated = -1 if details is None else count_of(details.reasoning_tokens)
        stated = max(stated, count_of(usage.reasoning_tokens) or -1)
        add_reasoning_tokens(delta, stated, usage.total_tokens)
    metrics = None if members.metrics is None else _in_form(ServerMetrics, members.metrics)
    if metrics is not None and metrics.speculative_decoding is not None:
        decoding = metrics.speculative_decoding
        counts = (
            decoding.num_spec_steps,
            decoding.num_draft_tokens,
            decoding.num_accepted_draft_tokens,
        )
        delta.drafts = Drafts(*map(count_of, counts))
    timings = None if members.timings is None else _in_form(Timings, members.timings)
    if timings is not None and timings.draft_n is not None:
        delta.drafts = Drafts(-1, count_of(timings.draft_n), count_of(timings.draft_n_accepted))
    if timings is not None and delta.cached_tokens < 0:
        delta.cached_tokens = count_of(timings.cache_n)
        computed = count_of(timings.prompt_n)
        if delta.prompt_tokens < 0 <= min(delta.cached_tokens, computed):
            delta.prompt_tokens = count_of(delta.cached_tokens + computed)
    if members.error:
        delta.error = error_text(members.error)


def _in_form(form: type[Shape], stated: Any) -> Shape | None:
    """Return a member in this form; None if it has a different form."""
    try:
        return msgspec.convert(stated, form)
    except msgspec.ValidationError:
        return None


def arguments_text(stated: Any) -> str:
    """Return the arguments of a tool call: JSON as text. TGI and a build of llama.cpp send the JSON
    itself."""
    if isinstance(stated, str):
        return stated
    return "" if stated is None else msgspec.json.encode(stated).decode()


def _add_cached(delta: Delta, usage: Usage) -> None:
    details = usage.prompt_tokens_details
    if details is not None:
        delta.cached_tokens = count_of(details.cached_tokens)
        delta.cache_write_tokens = count_of(details.cache_write_tokens)
    if delta.cached_tokens < 0:
        hit = usage.prompt_cache_hit_tokens
        delta.cached_tokens = count_of(usage.cached_tokens if hit is None else hit)
        cache_misses = count_of(usage.prompt_cache_miss_tokens)
        if delta.prompt_tokens < 0 <= min(delta.cached_tokens, cache_misses):
            delta.prompt_tokens = count_of(delta.cached_tokens + cache_misses)


def add_reasoning_tokens(delta: Delta, stated: Count, total: Count = None) -> None:
    """Write the reported reasoning tokens into `delta`, and add them to its completion tokens if
    these exclude them. OpenAI includes reasoning; xAI's chat API does not, so its total is the sum
    of all three, and gateways translate such usage into other APIs. Gemini's chat API counts its
    thoughts only in the total. If a server reports the prompt without its cached tokens, they are
    the difference."""
    delta.reasoning_tokens = reasoning = count_of(stated)
    prompt, completion = delta.prompt_tokens, delta.completion_tokens
    if completion < 0:
        return
    rest = count_of(total) - prompt - completion if prompt > 0 else 0
    if reasoning <= 0 < rest:
        cached, written = max(0, delta.cached_tokens), max(0, delta.cache_write_tokens)
        if rest in (cached, written, cached + written):
            return
        delta.reasoning_tokens = reasoning = rest
    if reasoning > 0 and (reasoning > completion or reasoning == rest):
        delta.completion_tokens = min(completion + reasoning, _MAX_COUNT)


def error_instead_of(members: str, data: bytes) -> str:
    """Return the message of an error object that replaces the `members` of a response.

    Raises MalformedResponse if `data` is not an error object.
    """
    error = find_error(data)
    if not error:
        raise malformed(ValueError(f"no {members} or error"), data)
    return error


def count_of(stated: Count) -> int:
    """Return a reported count; -1 if it is missing or too large for a record."""
    if isinstance(stated, str):
        stated = _number_in(stated)
    return int(stated) if stated is not None and 0 <= stated <= _MAX_COUNT else -1


def _number_in(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def add_finish(delta: Delta, choice: int, reason: str | None) -> None:
    """Add a choice with this index to `delta`. A reason means that the choice has ended."""
    choice = min(max(choice, 0), MAX_CHOICES - 1)
    delta.choice = max(delta.choice, choice)
    if reason and (found := finish_reason_of(reason)):
        delta.finished |= 1 << choice
        if found >= finish_reason_of(delta.finish_reason):
            delta.finish_reason = reason


def parts_of(choices: Iterable[Delta]) -> tuple[Part, ...]:
    """Return the texts of several choices, each parsed separately."""
    return tuple(Part(d.choice, d.content + d.tool_calls, d.reasoning) for d in choices)


def malformed(error: Exception, data: bytes) -> MalformedResponse:
    """Return the exception for bytes that cannot be decoded, quoting their beginning."""
    shown = data[:80].decode("utf-8", "backslashreplace")
    return MalformedResponse(f"{error}: {shown}{'…' if len(data) > 80 else ''}")


def error_text(error: object) -> str:
    """Return the message inside an `error` member, which may be a string or an object."""
    if isinstance(error, dict):
        message = error.get("message") or error.get("detail")
        error = message if message and isinstance(message, str) else error
    text = error if isinstance(error, str) else msgspec.json.encode(error).decode()
    return (text or "error without a message")[:_MESSAGE_LIMIT]


def error_message(body: bytes) -> str:
    """Return the error message in a body, with an error status or in an error object with a
    success status.

    Recognises `{"error": …}`, `{"object": "error", "message": …}` (or `"type": "error"`) and
    `{"detail": …}`, each also as the only item of a list, and the text of an HTML page. Anything
    else is quoted from its beginning. Empty for an empty body.
    """
    found = find_error(body)
    if found:
        return found
    text = body[:_READ_LIMIT].decode("utf-8", "replace").strip()
    if _HTML.match(text):
        text = " ".join(unescape(_MARKUP.sub(" ", text)).split())
    return text[:_MESSAGE_LIMIT]


def find_error(body: bytes) -> str:
    """Return the message of an error object; empty if `body` is not one."""
    try:
        response = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    if isinstance(response, list) and len(response) == 1:
        response = response[0]  # Gemini's form
    if not isinstance(response, dict):
        return ""
    if response.get("error"):
        return error_text(response["error"])
    is_error = "error" in (response.get("object"), response.get("type"))
    if is_error or response.get("detail"):
        return error_text(response)
    return ""


def choices_parser(
    decode: Callable[[bytes], Any], delta_of: Callable[[Sequence[Any]], Delta]
) -> Callable[[bytes], Delta]:
    """Return a parser for events and whole responses of an API where both are `CommonMembers` with
    `choices`. `decode` returns the object, `delta_of` the additions of its choices. One function
    handles both because it runs once per token."""

    def parse(data: bytes) -> Delta:
        response = decode(data)
        choices = response.choices
        delta = delta_of(choices or ())
        if choices is None and response.usage is None and not response.error:
            delta.error = error_instead_of("choices, usage", data)
        elif choices and len(choices) > 1:
            delta.parts = parts_of(delta_of((choice,)) for choice in choices)
        if response.usage is not None or response.timings is not None or response.error:
            add_usage_and_error(delta, response)
        return delta

    return parse


def texts_of(prompt: Prompt, *, prompt_key: str, api: str) -> str | list[Any]:
    """Return the prompt for an API that takes texts: one text, a list of several, or the prompt of
    a payload.

    Raises ValueError for messages, and for a payload without a prompt.
    """
    if prompt.messages:
        raise ValueError(f"messages need endpoint.type: chat; the {api} API takes texts")
    if prompt.payload is None:
        return prompt.texts[0] if len(prompt.texts) == 1 else list(prompt.texts)
    value = prompt.payload.get(prompt_key)
    if not isinstance(value, str | list) or not value:
        raise ValueError(f"a payload of the {api} API needs `{prompt_key}`")
    return value


def finish_body(
    prompt: Prompt,
    options: config.Endpoint,
    *,
    prompt_key: str,
    streams: bool = True,
    length_key: str = "max_tokens",
    has_usage_option: bool = True,
    render_tools: Callable[[Sequence[Any]], list[Any]] = list,
) -> Json:
    """Return a request's body without the prompt, with its members in the order of
    sending.

    Later members override earlier ones: those of the dataset; then `model` and the output length if
    the dataset has none; then `stream` and `stream_options`, which determine how the response is
    parsed; `extra_inputs` last, where null removes a member. Without `streams`, the API neither
    streams nor takes an output length. `length_key` is the member for the output length. Without
    `has_usage_option`, the API always reports usage. `render_tools` converts tools of the chat API
    to this API's form.
    """
    left_out = (prompt_key, "stream", "stream_options")
    body: Json = {"model": options.model}
    body |= {key: value for key, value in prompt.body_members.items() if key not in left_out}
    if isinstance(tools := prompt.members.get("tools"), list):
        body["tools"] = render_tools(tools)
    if streams and options.streaming:
        body["stream"] = True
        if has_usage_option and options.request_usage:
            body["stream_options"] = {"include_usage": True}
    if streams and prompt.output_tokens and not _LENGTH_KEYS & body.keys():
        # More servers support `max_tokens` than `max_completion_tokens`. For a server that refuses
        # it, use extra_inputs {max_tokens: null, max_completion_tokens: N}.
        body[length_key] = prompt.output_tokens
        if options.force_output_length and options.type.has(Feature.FORCED_LENGTH):
            body["min_tokens"] = prompt.output_tokens
            body["ignore_eos"] = True
    body |= options.extra_inputs
    for key in [key for key, value in options.extra_inputs.items() if value is None]:
        del body[key]
    return body


def split_body(key: str, messages: Sequence[Any], rest: Json, requested: int) -> Rendered:
    """Return a body as `{"model": …, key: [` + messages + `], …}`, split at the history."""
    opening = {"model": rest.pop("model")} if "model" in rest else {}
    start, end = msgspec.json.encode(opening)[:-1], msgspec.json.encode(rest)[1:]
    return Rendered(
        head=start + (b"," if opening else b"") + b'"%b":[' % key.encode(),
        body=b",".join(msgspec.json.encode(message) for message in messages),
        tail=b"]" + (b"," if rest else b"") + end,
        requested_tokens=requested,
    )


def requested_tokens(prompt: Prompt, body: Mapping[str, Any], *, prompts: int = 1) -> int:
    """Return how many output tokens a finished body requests, over all of its choices and
    `prompts`. -1 if the dataset has no length, or if the body does not contain it."""
    if not prompt.output_tokens:
        return -1
    length = next((body[key] for key in _MAXIMUM_KEYS if body.get(key)), None)
    number = length * _choices_of(body) * prompts if isinstance(length, int) else -1
    return number if 0 < number <= _MAX_COUNT else -1


def choices_asked_for(options: config.Endpoint) -> int:
    """Return the number of choices that each request asks for; 1 if payloads of a file decide."""
    return _choices_of(options.extra_inputs)


def _choices_of(body: Mapping[str, Any]) -> int:
    number = body.get("n")
    return number if isinstance(number, int) and number > 1 else 1


_MAXIMUM_KEYS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")
_LENGTH_KEYS = {*_MAXIMUM_KEYS, "min_tokens"}


def extra_input_problems(endpoint: Endpoint, options: config.Endpoint) -> list[str]:
    """Return the errors in `extra_inputs`: members that another setting controls."""
    prompts = dict.fromkeys((endpoint.prompt_key, endpoint.passages_key), "the dataset")
    owners = {"stream": "endpoint.streaming"} if endpoint.prompt_key else {}
    decided = [
        f"endpoint.extra_inputs.{key}: {owner} decides this member of the request; remove it"
        for key, owner in (owners | prompts).items()
        if key in options.extra_inputs
    ]
    return decided + endpoint.extra_problems(options)
