"""Audio transcription (`/v1/audio/transcriptions`): uploads a recording and receives its text,
streamed or not.

There are two forms of streams: OpenAI's typed events, which end with `transcript.text.done`, and
vLLM's, which equal those of chat completions. The text of a recording without speech is empty, so
an empty response is a success.
"""

import base64
from typing import Any, Final

import msgspec

from aiperf_svc.config import endpoint as config
from aiperf_svc.core.endpoints import base, chat, multipart
from aiperf_svc.core.endpoints.base import Delta, Endpoint, Media, Prompt, Rendered
from aiperf_svc.domain.endpoint_types import EndpointType
from aiperf_svc.domain.json_objects import Json

_FORMATS: Final = ("json", "verbose_json", "diarized_json")
"""Values of `response_format` whose responses are JSON."""
_EXTENSIONS: Final = {"audio/mp3": "mp3", "audio/wav": "wav", "audio/flac": "flac"}
_MEDIA_TYPES: Final = {"audio/mp3": "audio/mpeg"}
"""Registered names of the media types that `Media` names differently."""


class _Usage(msgspec.Struct, gc=False):
    """Tokens, or the seconds of the sound, which are not tokens."""

    input_tokens: base.Count = None
    output_tokens: base.Count = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    delta: Any = None
    usage: _Usage | None = None


class _Response(msgspec.Struct, gc=False):
    text: str | None = None
    usage: _Usage | None = None
    error: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_body = msgspec.json.Decoder(_Response).decode


def parse_event(data: bytes) -> Delta:
    """Parse one event of a stream. Types without text, usage or an end yield an empty Delta."""
    event = _decode_event(data)
    if not event.type:
        return chat.parse(data)
    delta = Delta()
    if event.type == "transcript.text.delta":
        if not isinstance(event.delta, str):
            raise base.malformed(ValueError("delta is not text"), data)
        delta.content = event.delta
    elif event.type == "transcript.text.done":
        # It repeats the text of all deltas before it.
        _end(delta, event.usage)
    elif event.type == "error":
        delta.error = base.error_instead_of("type", data)
    elif not event.type.startswith("transcript."):
        delta.error = base.find_error(data)
    return delta


def parse_body(body: bytes) -> Delta:
    response = _decode_body(body)
    if response.error or response.text is None:
        return Delta(error=base.error_instead_of("text", body))
    delta = Delta(content=response.text)
    _end(delta, response.usage)
    return delta


def _end(delta: Delta, usage: _Usage | None) -> None:
    base.add_finish(delta, 0, "stop")
    if usage is not None:
        delta.prompt_tokens = base.count_of(usage.input_tokens)
        delta.completion_tokens = base.count_of(usage.output_tokens)


def render(prompt: Prompt, options: config.Endpoint) -> Rendered:
    """Render the form: the sound, and optionally a text as the `prompt` that guides the model."""
    if prompt.messages or prompt.payload is not None:
        raise ValueError("the audio_transcription API uploads a file: give `audio`, its path")
    if len(prompt.media) != 1 or len(prompt.texts) > 1:
        raise ValueError("a transcription needs one sound (`audio`), and at most one `text`")
    fields: Json = {"model": options.model}
    if prompt.texts:
        fields["prompt"] = prompt.texts[0]
    if options.streaming:
        fields["stream"] = True
    fields |= options.extra_inputs
    fields = {name: value for name, value in fields.items() if value is not None}
    return Rendered(body=multipart.form_body(fields, _file(prompt.media[0])))


def extra_problems(options: config.Endpoint) -> list[str]:
    """Return the error for a response format that is not JSON."""
    shape = options.extra_inputs.get("response_format") or _FORMATS[0]
    if shape in _FORMATS:
        return []
    expected = ", ".join(_FORMATS)
    return [f"endpoint.extra_inputs.response_format: {shape!r}: not read; expected {expected}"]


def _file(media: Media) -> multipart.FilePart:
    extension = _EXTENSIONS.get(media.type) or media.type.partition("/")[2]
    kind = _MEDIA_TYPES.get(media.type, media.type)
    return multipart.FilePart("file", f"audio.{extension}", kind, base64.b64decode(media.data))


AUDIO_TRANSCRIPTION = Endpoint(
    type=EndpointType.AUDIO_TRANSCRIPTION,
    path="/v1/audio/transcriptions",
    prompt_key="file",
    render=render,
    parse_event=parse_event,
    parse_body=parse_body,
    content_type=multipart.CONTENT_TYPE,
    extra_problems=extra_problems,
)
