"""Parses a request: the HTTP head, and the parameters in the JSON body that determine the response.

Both are pure functions of bytes, so the server caches their results by those bytes and parses only
unknown requests.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aiperf_svc.mock_server.config import MockServerConfig

MAX_HEAD = 64 * 1024
"""Maximum size of a head, in bytes; a larger one is refused (431)."""
MAX_BODY = 64 * 1024 * 1024
"""Maximum size of a body, in bytes; a larger one is refused (413)."""

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
GENERATE = "/generate"
GENERATE_STREAM = "/generate_stream"
_PROMPT_KEYS = {
    CHAT: "messages",
    COMPLETIONS: "prompt",
    RESPONSES: "input",
    MESSAGES: "messages",
    GENERATE: "inputs",
    GENERATE_STREAM: "inputs",
}
COHERE_RERANK, TEI_RERANK, NIM_RANKING = "/v2/rerank", "/rerank", "/v1/ranking"
_PASSAGES_KEYS = {COHERE_RERANK: "documents", TEI_RERANK: "texts", NIM_RANKING: "passages"}
RANKINGS = tuple(_PASSAGES_KEYS)
TRANSCRIPTIONS, IMAGES = "/v1/audio/transcriptions", "/v1/images/generations"
INFERENCE = frozenset((*_PROMPT_KEYS, EMBEDDINGS, *RANKINGS, TRANSCRIPTIONS, IMAGES))
_STATES_USAGE = (RESPONSES, MESSAGES, GENERATE_STREAM)
"""APIs whose streams contain the usage without a request for it."""
_WITHOUT_REASONING = (COMPLETIONS, GENERATE, GENERATE_STREAM)

_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens", "max_new_tokens")

_REQUEST_ID = b"\r\nx-request-id:"
_TLS_HANDSHAKE = b"\x16"
"""The type of a TLS record, its first byte."""


class BadRequest(Exception):
    """A request that gets an error response: `status` and a message for the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(slots=True)
class Head:
    """The head of a request: method, target, and the relevant headers."""

    method: str
    path: str
    query: str
    length: int = 0
    is_last: bool = False
    """The connection closes after the response."""
    expects_continue: bool = False
    authorization: str = ""
    fault: str = ""
    session: str = ""
    """Id of the conversation."""


def refuse_tls(data: bytes) -> None:
    """Raise BadRequest if the data starts like a TLS handshake, which may have no end of a head."""
    if data.startswith(_TLS_HANDSHAKE):
        raise BadRequest(400, "a TLS handshake; this server speaks plain HTTP")


def parse_head(head: bytes) -> Head:
    """Parse a head, without the blank line that ends it. Raises BadRequest if it is not valid
    HTTP/1.1.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) == 3 and parts[1].startswith("http://"):
        # A proxy may forward the whole URL (RFC 9112, section 3.2.2).
        parts[1] = "/" + parts[1][len("http://") :].partition("/")[2]
    if len(parts) != 3 or not parts[0].isalpha() or not parts[1].startswith("/"):
        raise BadRequest(400, f"not an HTTP request line: {first[:80]!r}")
    if parts[2] != "HTTP/1.1":
        raise BadRequest(505, f"HTTP version {parts[2][:20]!r} is not supported; use HTTP/1.1")
    path, _, query = parts[1].partition("?")
    found = Head(parts[0], path, query)
    length: str | None = None
    for line in lines:
        name, colon, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if not colon or not name or name != name.strip():
            raise BadRequest(400, f"not a header line: {line[:80]!r}")
        if name == "content-length":
            if length not in (None, value):
                raise BadRequest(400, f"Content-Length is both {length} and {value}")
            length = value
        elif name == "connection":
            found.is_last = "close" in (option.strip() for option in value.lower().split(","))
        elif name == "transfer-encoding":
            raise BadRequest(411, "send the body with a Content-Length")
        elif name == "expect":
            found.expects_continue = value.lower() == "100-continue"
        elif name == "authorization":
            found.authorization = value
        elif name == "x-api-key":
            found.authorization = f"Bearer {value}"
        elif name in ("x-session-id", "x-correlation-id"):
            found.session = value
        elif name == "x-mock-fault":
            found.fault = value
    if length is not None:
        if not (length.isascii() and length.isdigit()):
            raise BadRequest(400, f"Content-Length is {length[:20]!r}; expected a number")
        found.length = int(length)
        if found.length > MAX_BODY:
            raise BadRequest(
                413, f"the body has {found.length} bytes; at most {MAX_BODY} are taken"
            )
    return found


def split_request_id(head: bytes) -> tuple[bytes, bytes | None]:
    """Return a head without its X-Request-Id line, and the id. Only this line differs between the
    heads of similar requests.
    """
    at = head.lower().find(_REQUEST_ID)
    if at < 0:
        return head, None
    stop = head.find(b"\r\n", at + 2)
    if stop < 0:
        stop = len(head)
    return head[:at] + head[stop:], head[at + len(_REQUEST_ID) : stop].strip()


class RequestParams(NamedTuple):
    """The parameters of an inference request that determine its response; equal parameters get
    equal responses.
    """

    path: str
    model: str
    is_stream: bool
    tokens: int
    """Response tokens, including reasoning; 0 for embeddings, rankings and non-streaming images."""
    reasoning: int
    """Number of reasoning tokens."""
    is_cut_short: bool
    """The request's own limit ended the response: finish_reason is `length`."""
    has_usage: bool
    prompt_tokens: int
    """Words of the prompt: a cheap stand-in for a tokenizer's count."""
    inputs: int = 1
    """Number of inputs, passages or images, for embeddings, rankings and images."""
    is_base64: bool = False
    """For embeddings: the requested encoding."""
    cached_tokens: int = -1
    """Words of the prompt that were in the prefix cache; -1 without a cache."""
    tool_calls: int = 0
    turn: int = 0
    """Number of earlier responses in the request; 0 if it makes no difference."""
    refuses: bool = False
    """For chat: whether the text is a refusal."""


MAX_BLOCKS = 1_000_000
"""Maximum number of blocks in a process; beyond it, the cache is emptied."""


class PrefixCache:
    """The initial words of all prompts so far.

    As in an inference engine, a prompt is divided into blocks of a fixed number of tokens (here:
    words), and a block is identified by its words and those of all blocks before it. Only complete
    blocks are stored and found. Each process has its own cache.
    """

    def __init__(self, block: int) -> None:
        """Create an empty cache with blocks of `block` words."""
        self._block = block
        self._known: set[int] = set()

    def add(self, words: Sequence[str]) -> int:
        """Add a prompt. Returns the number of its words that were in the cache."""
        known, size = self._known, self._block
        if len(known) > MAX_BLOCKS:
            known.clear()
        found, key, is_hit = 0, 0, True
        for begin in range(0, len(words) - size + 1, size):
            key = hash((key, *words[begin : begin + size]))
            is_hit = is_hit and key in known
            found += size * is_hit
            known.add(key)
        return found


def parse_params(
    path: str, body: bytes, config: MockServerConfig, cache: PrefixCache | None = None
) -> RequestParams:
    """Parse the parameters in a body. Raises BadRequest if its format is wrong."""
    if path == TRANSCRIPTIONS:
        return transcription_params(body, config)
    try:
        data = json.loads(body)
    except ValueError as error:
        raise BadRequest(400, f"the body is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise BadRequest(400, "the body is not a JSON object")
    _refuse_members(data, config)
    model = data.get("model", config.model)
    if not isinstance(model, str):
        raise BadRequest(400, f"model is {model!r}; expected a string")
    if config.strict_model and model != config.model:
        raise BadRequest(404, f"The model `{model}` does not exist.")
    if path == EMBEDDINGS:
        return _embeddings_params(model, data)
    if path in RANKINGS:
        return _ranking_params(path, model, data)
    if path == IMAGES:
        return _image_params(model, data)
    key = _PROMPT_KEYS[path]
    for member in (key, "max_tokens") if path == MESSAGES else (key,):
        if member not in data:
            raise BadRequest(400, f"{member} is missing")
    is_stream = data.get("stream") is True or path == GENERATE_STREAM
    options = data.get("stream_options")
    wants_usage = path in _STATES_USAGE or (
        isinstance(options, dict) and options.get("include_usage") is True
    )
    reasoning = 0 if path in _WITHOUT_REASONING else config.reasoning_tokens
    parameters = data.get("parameters")
    options_of_length = parameters if isinstance(parameters, dict) else data
    tokens, is_cut_short = response_length(options_of_length, config, reasoning)
    words = list(_words_of(data[key]))
    if config.max_model_len and len(words) + tokens > config.max_model_len:
        raise BadRequest(
            400,
            f"This model's maximum context length is {config.max_model_len} tokens. However, you "
            f"requested {tokens} output tokens and your prompt contains {len(words)} input tokens.",
        )
    return RequestParams(
        path=path,
        model=model,
        is_stream=is_stream,
        tokens=tokens,
        reasoning=min(reasoning, tokens),
        is_cut_short=is_cut_short,
        has_usage=config.usage == "always"
        or (config.usage == "requested" and (wants_usage or not is_stream)),
        prompt_tokens=len(words),
        cached_tokens=-1 if cache is None else cache.add(words),
    )


def _refuse_members(members: Mapping[str, object], config: MockServerConfig) -> None:
    if refused := sorted(config.refused & members.keys()):
        raise BadRequest(400, f"extra inputs are not permitted: {', '.join(refused)}")


def response_length(
    data: dict[str, object], config: MockServerConfig, reasoning: int
) -> tuple[int, bool]:
    """Return the number of response tokens, including reasoning, and whether the request's limit
    ended the response.

    The server's own length is --tokens plus the reasoning tokens. With --force-tokens, it is used
    whatever the request contains. Otherwise max_completion_tokens or max_tokens is the exact length
    if `ignore_eos` is true, and the maximum length if not. `min_tokens` lengthens a response up to
    that limit.
    """
    own = config.tokens + reasoning
    if config.force_tokens:
        return own, False
    limits = (_count(data, key) for key in _LIMITS)
    limit = next(filter(None, limits), 0)
    own = max(own, _count(data, "min_tokens"))
    if not limit:
        return own, False
    if data.get("ignore_eos") is True:
        return limit, True
    return min(own, limit), own > limit


def _count(data: dict[str, object], key: str) -> int:
    value = data.get(key)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 10_000_000:
        raise BadRequest(400, f"{key} is {value!r}; expected a number from 0 to 10000000")
    return value


def _embeddings_params(model: str, data: dict[str, object]) -> RequestParams:
    content = data.get("input")
    if not isinstance(content, str | list) or not content:
        raise BadRequest(400, "input is missing; expected a string or a list")
    is_many = isinstance(content, list) and not isinstance(content[0], int)
    found = _whole_params(EMBEDDINGS, model, content, inputs=len(content) if is_many else 1)
    return found._replace(is_base64=data.get("encoding_format") == "base64")


def _ranking_params(path: str, model: str, data: dict[str, object]) -> RequestParams:
    query, passages = data.get("query"), data.get(_PASSAGES_KEYS[path])
    if not query:
        raise BadRequest(400, "query is missing")
    if not isinstance(passages, list) or not passages:
        raise BadRequest(400, f"{_PASSAGES_KEYS[path]} is missing; expected a list")
    return _whole_params(path, model, [query, *passages], inputs=len(passages))


_BYTES_A_TOKEN = 3_200
"""Bytes of audio per token: a tenth of a second of 16-bit samples at 16 kHz."""


def transcription_params(body: bytes, config: MockServerConfig) -> RequestParams:
    """Parse the parameters of a form with audio. Raises BadRequest for other bodies."""
    form = parse_form(body)
    if form is None:
        raise BadRequest(400, "the body is not a multipart form that ends with its boundary")
    fields, files = form
    if not files.get("file"):
        raise BadRequest(400, "file is missing; expected a sound")
    _refuse_members(fields, config)
    tokens, is_cut_short = response_length({}, config, 0)
    return RequestParams(
        path=TRANSCRIPTIONS,
        model=fields.get("model", config.model),
        is_stream=fields.get("stream") == "true",
        tokens=tokens,
        reasoning=0,
        is_cut_short=is_cut_short,
        has_usage=config.usage != "never",
        prompt_tokens=max(1, len(files["file"]) // _BYTES_A_TOKEN),
    )


def _image_params(model: str, data: dict[str, object]) -> RequestParams:
    prompt = data.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise BadRequest(400, "prompt is missing; expected a string")
    is_stream = data.get("stream") is True
    pictures = _count(data, "partial_images") + 1 if is_stream else _count(data, "n") or 1
    if is_stream and data.get("n", 1) != 1:
        raise BadRequest(400, "n is not 1, and a stream is one image")
    found = _whole_params(IMAGES, model, prompt, inputs=pictures)
    return found._replace(is_stream=is_stream, tokens=pictures if is_stream else 0)


def _whole_params(path: str, model: str, prompt: object, *, inputs: int) -> RequestParams:
    """Return the parameters of a request whose response is created at once and has no tokens."""
    return RequestParams(
        path=path,
        model=model,
        is_stream=False,
        tokens=0,
        reasoning=0,
        is_cut_short=False,
        has_usage=True,
        prompt_tokens=sum(1 for _ in _words_of(prompt)),
        inputs=inputs,
    )


def _words_of(value: object) -> Iterator[str]:
    """Yield the words of all text in a prompt: a string, a list of messages or of content parts. A
    number is one token."""
    if isinstance(value, str):
        yield from value.split()
    elif isinstance(value, int):
        yield str(value)
    elif isinstance(value, list):
        for each in value:
            yield from _words_of(each)
    elif isinstance(value, dict):
        yield from _words_of(value.get("content", value.get("text")))


_PART = re.compile(
    rb'content-disposition: *form-data; *name="([^"]*)"(?:; *filename="([^"]*)")?', re.IGNORECASE
)


def parse_form(body: bytes) -> tuple[dict[str, str], dict[str, bytes]] | None:
    """Return the fields and files of a form by name; None if the body is not a form.

    The first line determines the boundary, so equal bodies have equal responses.
    """
    line, ends, _ = body.partition(b"\r\n")
    if not ends or not line.startswith(b"--") or len(line) > 74:
        return None
    fields: dict[str, str] = {}
    files: dict[str, bytes] = {}
    parts = (b"\r\n" + body).split(b"\r\n" + line)
    if parts[-1] not in (b"--", b"--\r\n"):
        return None
    for part in parts[1:-1]:
        head, blank, content = part.partition(b"\r\n\r\n")
        found = _PART.search(head)
        if found is None or not blank:
            return None
        name = found[1].decode("utf-8", "replace")
        if found[2] is None:
            fields[name] = content.decode("utf-8", "replace")
        else:
            files[name] = content
    return fields, files
