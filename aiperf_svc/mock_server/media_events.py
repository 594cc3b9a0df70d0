"""The APIs of sounds and pictures: transcriptions and image generations, with OpenAI's events."""

import base64
import zlib

from aiperf_svc.mock_server.requests import RequestParams
from aiperf_svc.mock_server.texts import word
from aiperf_svc.mock_server.typed_events import Members, TypedStream, typed_event

_PNG = b"\x89PNG\r\n\x1a\n"
_TOKENS_A_PICTURE = 272
"""Output tokens that are stated for a picture, whatever its size."""


def transcription_api(params: RequestParams, created_s: int) -> TypedStream:
    """A response of `/v1/audio/transcriptions`, which states no time."""
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
    """A response of `/v1/images/generations`. Of a stream, each picture counts as a token."""
    usage = {
        "input_tokens": params.prompt_tokens,
        "input_tokens_details": {"text_tokens": params.prompt_tokens, "image_tokens": 0},
        "output_tokens": _TOKENS_A_PICTURE,
        "total_tokens": params.prompt_tokens + _TOKENS_A_PICTURE,
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


def _png() -> bytes:
    """A grey picture of one pixel."""
    parts = (
        (b"IHDR", b"\0\0\0\1\0\0\0\1\x08\0\0\0\0"),
        (b"IDAT", zlib.compress(b"\0\x80")),
        (b"IEND", b""),
    )
    return _PNG + b"".join(
        len(content).to_bytes(4) + name + content + zlib.crc32(name + content).to_bytes(4)
        for name, content in parts
    )


PICTURE = base64.b64encode(_png()).decode()
"""Every picture that is generated."""
