"""Any JSON API: `template` renders each body with a Jinja2 template, `raw` sends the payloads of a
file unchanged.

A JMESPath query extracts the output from the JSON of a response, or of each event of a stream.
Without a query, a response in the form of the chat API is parsed like that API's (reasoning and
tool calls count as output). In any other response, the usual members are tried: embeddings, then
rankings, then texts.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from aiperf_svc.config import endpoint as config
from aiperf_svc.config.templates import TooCostly, sandbox, within_limits
from aiperf_svc.core.endpoints import base, chat
from aiperf_svc.core.endpoints.base import Delta, Drafts, Endpoint, Part, Prompt, Rendered
from aiperf_svc.domain.endpoint_types import EndpointType

if TYPE_CHECKING:
    import jinja2

_CHOICE = "choices[0].text"
_USUAL_FIELDS = (
    "data[].embedding",
    "embeddings",
    "embedding",
    "rankings",
    "results",
    _CHOICE,
    "text",
    "content",
    "response",
    "output",
    "result",
    "generated_text",
    "text_output",
)
_NO_OUTPUT: tuple[Any, ...] = (None, "", [], {})
"""Values that are not output. The number 0 is output."""
# SGLang's `/generate` has `meta_info`, Gemini `usageMetadata`. Anthropic's input tokens exclude
# those found in its cache, and Gemini's candidate tokens exclude its thoughts.
_PROMPT_TOKENS = (
    "usage.prompt_tokens || usage.input_tokens && (usage.cache_read_input_tokens && "
    "sum(usage.[input_tokens, cache_read_input_tokens, cache_creation_input_tokens][]"
    ".to_number(@)) || usage.input_tokens) || "
    "meta_info.prompt_tokens || usageMetadata.promptTokenCount"
)
_CACHED_TOKENS = (
    "usage.prompt_tokens_details.cached_tokens || usage.input_tokens_details.cached_tokens || "
    "usage.cached_tokens || usage.prompt_cache_hit_tokens || usage.cache_read_input_tokens || "
    "meta_info.cached_tokens || usageMetadata.cachedContentTokenCount"
)
_OUTPUT_TOKENS = (
    "usage.completion_tokens || usage.output_tokens || meta_info.completion_tokens || "
    "usageMetadata.thoughtsTokenCount && sum(usageMetadata.[candidatesTokenCount, "
    "thoughtsTokenCount][].to_number(@)) || usageMetadata.candidatesTokenCount"
)
_REASONING_TOKENS = (
    "usage.completion_tokens_details.reasoning_tokens || "
    "usage.output_tokens_details.reasoning_tokens || usageMetadata.thoughtsTokenCount"
)
_DRAFTS = ("spec_verify_ct", "spec_draft_token_num", "spec_accept_token_num")
"""Members of `meta_info`."""
_FINISH = "choices[0].finish_reason || finish_reason || stop_reason || meta_info.finish_reason.type"
_PROBE = Prompt(texts=("Hi",), passages=("Hi",), output_tokens=1)

Query = Callable[[Any], Any]


def custom_endpoint(options: config.Endpoint) -> Endpoint:
    """Return the endpoint of type `template` or `raw` for these options. Raises ValueError naming
    the key of an invalid query. A template is compiled when it first renders."""
    parser = _Parser(options)
    render = _render_template if options.type is EndpointType.TEMPLATE else _render_raw
    return Endpoint(
        type=options.type,
        path="",
        prompt_key="",
        render=render,
        parse_event=parser.parse_event,
        parse_body=parser.parse_body,
        has_end_mark=False,
        may_repeat=True,
    )


def custom_problems(options: config.Endpoint) -> list[str]:
    """Return the errors in the template or the queries, each with its key."""
    try:
        endpoint = custom_endpoint(options)
        if options.type is EndpointType.TEMPLATE:
            endpoint.render(_PROBE, options)
    except ValueError as error:
        return [str(error)]
    return []


# --- requests ------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=8)
def _compiled(text: str, known: tuple[str, ...]) -> "jinja2.Template":
    """Compile a template with these variables. Raises ValueError for an invalid template or an
    unknown variable."""
    # Imported only to render, so workers and record processors do not pay for it.
    import jinja2
    import jinja2.meta

    environment = sandbox(undefined=jinja2.StrictUndefined)
    try:
        used = within_limits(lambda: jinja2.meta.find_undeclared_variables(environment.parse(text)))
        template = within_limits(lambda: environment.from_string(text))
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"endpoint.template: line {error.lineno}: {error.message}") from None
    except TooCostly as error:
        raise ValueError(f"endpoint.template: {error}") from None
    if unknown := sorted(used.difference(known)):
        expected = ", ".join(known)
        raise ValueError(f"endpoint.template: unknown variable {unknown[0]}; expected {expected}")
    return template


def _render_template(prompt: Prompt, options: config.Endpoint) -> Rendered:
    if prompt.payload is not None:
        raise ValueError("a payload is a whole body; expected endpoint.type raw, not template")
    import jinja2

    variables = _variables(prompt, options)
    template = _compiled(options.template or "", tuple(variables))
    try:
        text = within_limits(lambda: template.render(variables))
        body = msgspec.json.decode(text)
    except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, TooCostly) as error:
        raise ValueError(f"endpoint.template: {error}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(
            f"endpoint.template: renders no JSON ({error}); put |tojson behind each variable: "
            f"{text.strip()[:80]}"
        ) from None
    if options.extra_inputs and not isinstance(body, dict):
        raise ValueError("endpoint.extra_inputs: the template renders no object to put them in")
    if isinstance(body, dict):
        body |= options.extra_inputs
        body = {key: value for key, value in body.items() if value is not None}
    members = body if isinstance(body, dict) else {}
    return Rendered(
        body=msgspec.json.encode(body), requested_tokens=base.requested_tokens(prompt, members)
    )


def _variables(prompt: Prompt, options: config.Endpoint) -> dict[str, Any]:
    texts, passages = list(prompt.texts), list(prompt.passages)
    first = texts[0] if texts else None
    return {
        "text": first,
        "texts": texts,
        "query": first,
        "queries": texts,
        "passage": passages[0] if passages else None,
        "passages": passages,
        "messages": list(prompt.messages),
        "model": options.model,
        "max_tokens": prompt.output_tokens,
        "stream": options.streaming,
        "role": prompt.role,
    }


def _render_raw(prompt: Prompt, _options: config.Endpoint) -> Rendered:
    if prompt.payload is None:
        raise ValueError("endpoint.type raw sends a `payload` as it is, and this has none")
    return Rendered(
        body=msgspec.json.encode(prompt.payload),
        requested_tokens=base.requested_tokens(prompt, prompt.payload),
    )


# --- responses -----------------------------------------------------------------------------------


class _Parser:
    """Extracts the output from the JSON of a response."""

    def __init__(self, options: config.Endpoint) -> None:
        own = options.response_field
        names = (own,) if own else _USUAL_FIELDS
        self._output = [_query("endpoint.response_field", each) for each in names]
        self._has_own = own is not None
        self._choice = _query("", _CHOICE)
        self._missing = f"no output at {own!r} (endpoint.response_field)"
        if not own:
            self._missing = "no output in the usual places; say where in endpoint.response_field"
        tokens = options.output_tokens_field or _OUTPUT_TOKENS
        self._has_own_tokens = options.output_tokens_field is not None
        self._output_tokens = _query("endpoint.output_tokens_field", tokens)
        self._reasoning_tokens = _query("", _REASONING_TOKENS)
        self._total_tokens = _query("", "usage.total_tokens")
        self._prompt_tokens = _query("", _PROMPT_TOKENS)
        self._cached_tokens = _query("", _CACHED_TOKENS)
        self._finish = _query("", _FINISH)

    def parse_event(self, data: bytes) -> Delta:
        """Parse one event of a stream. An event without output is not a token."""
        return self._parse(data)

    def parse_body(self, body: bytes) -> Delta:
        delta = self._parse(body)
        if not delta.has_output and not delta.error:
            raise base.malformed(ValueError(self._missing), body)
        return delta

    def _parse(self, data: bytes) -> Delta:
        response = msgspec.json.decode(data)
        try:
            is_chat = not self._has_own and _is_chat(response)
            delta = chat.parse(data) if is_chat else self._found_in(response, data)
            if delta.prompt_tokens < 0:
                delta.prompt_tokens = _count(self._prompt_tokens(response))
            if delta.cached_tokens < 0 <= delta.prompt_tokens:
                delta.cached_tokens = _count(self._cached_tokens(response))
            if self._has_own_tokens:
                delta.completion_tokens = _count(self._output_tokens(response))
            elif delta.completion_tokens < 0:
                delta.completion_tokens = _count(self._output_tokens(response))
                counts = self._reasoning_tokens(response), self._total_tokens(response)
                base.add_reasoning_tokens(delta, *map(_count, counts))
            if isinstance(response, dict) and "timings" in response:
                base.add_usage_and_error(delta, base.CommonMembers(timings=response["timings"]))
            meta = response.get("meta_info") if isinstance(response, dict) else None
            if isinstance(meta, dict) and _DRAFTS[0] in meta:
                delta.drafts = Drafts(*(_count(meta.get(name)) for name in _DRAFTS))
        except base.MalformedResponse:
            raise
        except ValueError as error:
            # A function of a query does not accept the value in the response.
            raise base.malformed(error, data) from None
        return delta

    def _found_in(self, response: Any, data: bytes) -> Delta:
        delta = Delta()
        outputs = (query(response) for query in self._output)
        found = next((output for output in outputs if output not in _NO_OUTPUT), None)
        if isinstance(found, str):
            delta.content = found
        elif isinstance(found, list):
            # One vector, or several vectors, scores or other objects.
            is_vector = isinstance(found[0], int | float)
            delta.items = 1 if is_vector else len(found)
        elif found is not None:
            delta.content = msgspec.json.encode(found).decode()
        else:
            delta.error = base.find_error(data)
        if not self._has_own and isinstance(found, str):
            delta.parts = self._parts(response)
        finish, choice = self._finish(response), _last_choice(response)
        if isinstance(finish, str):
            base.add_finish(delta, choice, finish)
        elif choice:
            base.add_finish(delta, choice, None)
        return delta

    def _parts(self, response: Any) -> tuple[Part, ...]:
        """Return the texts of several choices; the usual member is that of the first."""
        choices = response.get("choices") if isinstance(response, dict) else None
        if not isinstance(choices, list) or len(choices) < 2:
            return ()
        texts = [self._choice({"choices": [choice]}) for choice in choices]
        return tuple(Part(index, text) for index, text in enumerate(texts) if isinstance(text, str))


def _is_chat(response: Any) -> bool:
    """Return whether a response or event has choices with a message like the chat API's."""
    choices = response.get("choices") if isinstance(response, dict) else None
    if not isinstance(choices, list) or not choices:
        return False
    return all(isinstance(each, dict) and each.keys() & {"delta", "message"} for each in choices)


def _last_choice(response: Any) -> int:
    """Return the highest index of the choices in an OpenAI-like response; else 0."""
    choices = response.get("choices") if isinstance(response, dict) else None
    if not isinstance(choices, list):
        return 0
    found = (choice.get("index") for choice in choices if isinstance(choice, dict))
    return max((each for each in found if isinstance(each, int)), default=0)


def _query(key: str, text: str) -> Query:
    import jmespath
    from jmespath.exceptions import JMESPathError

    try:
        search: Query = jmespath.compile(text).search
    except JMESPathError as error:
        first_line = str(error).partition("\n")[0].rstrip(":")
        raise ValueError(f"{key}: {text!r}: no JMESPath query: {first_line}") from None
    return search


def _count(value: Any) -> int:
    is_number = isinstance(value, int | float | str) and not isinstance(value, bool)
    return base.count_of(value) if is_number else -1
