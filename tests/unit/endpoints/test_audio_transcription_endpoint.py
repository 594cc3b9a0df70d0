"""Audio transcription: forms, and responses like those of real servers."""

import base64
import email
import email.policy
import json
from typing import Any

import pytest

from aiperf_svc.core.endpoints import multipart
from aiperf_svc.core.endpoints.audio_transcription import AUDIO_TRANSCRIPTION
from aiperf_svc.core.endpoints.base import Media, Prompt, extra_input_problems
from tests.support.endpoint_requests import endpoint_options

SOUND = b"RIFF\0\0\0\0WAVE\r\n--\r\n\xff"
MEDIA = Media("audio/wav", base64.b64encode(SOUND).decode())


def body(prompt: Prompt | None = None, **changes: Any) -> bytes:
    options = endpoint_options(type="audio_transcription", **changes)
    return AUDIO_TRANSCRIPTION.render(prompt or Prompt(media=(MEDIA,)), options).whole


def parts(made: bytes) -> list[tuple[str, str | None, str, bytes]]:
    """Return name, file name, media type and content of each part, parsed by Python's library."""
    head = f"Content-Type: {AUDIO_TRANSCRIPTION.content_type}\r\n\r\n".encode()
    message = email.message_from_bytes(head + made, policy=email.policy.HTTP)
    return [
        (  # type: ignore[misc]
            str(part.get_param("name", header="content-disposition")),
            part.get_filename(),
            part.get_content_type(),
            part.get_payload(decode=True),
        )
        for part in message.iter_parts()
    ]


def test_sound_is_uploaded_as_a_form_file() -> None:
    found = parts(body())
    assert found == [("model", None, "text/plain", b"m"), ("file", "audio.wav", "audio/wav", SOUND)]


def test_stream_a_text_and_extra_inputs_are_fields() -> None:
    extra = {"language": "en", "temperature": 0, "timestamp_granularities[]": ["word", "segment"]}
    found = parts(
        body(
            Prompt(texts=("names: Ada",), media=(Media("audio/mp3", MEDIA.data),)),
            streaming=True,
            extra_inputs=extra | {"model": None},
        )
    )
    assert [(name, content) for name, _, _, content in found[:-1]] == [
        ("prompt", b"names: Ada"),
        ("stream", b"true"),
        ("language", b"en"),
        ("temperature", b"0"),
        ("timestamp_granularities[]", b"word"),
        ("timestamp_granularities[]", b"segment"),
    ]
    assert found[-1][1:3] == ("audio.mp3", "audio/mpeg")


def test_form_is_shown_as_json() -> None:
    made = body(extra_inputs={"a[]": ["x", "y", "z"], 'odd "name"': "é"})
    assert multipart.is_form(made)
    assert json.loads(multipart.as_json(made)) == {
        "model": "m",
        "a[]": ["x", "y", "z"],
        'odd "name"': "é",
        "file": {"filename": "audio.wav", "content_type": "audio/wav", "b64_data": MEDIA.data},
    }


def test_a_sound_that_holds_the_boundary_is_refused() -> None:
    data = base64.b64encode(multipart.BOUNDARY).decode()
    with pytest.raises(ValueError, match="ends a part"):
        body(Prompt(media=(Media("audio/wav", data),)))


def test_response_formats_without_json_are_refused() -> None:
    def problems(shape: str) -> list[str]:
        extra = {"response_format": shape}
        return extra_input_problems(AUDIO_TRANSCRIPTION, endpoint_options(extra_inputs=extra))

    assert problems("verbose_json") == []
    assert problems("srt") == [
        "endpoint.extra_inputs.response_format: 'srt': not read; expected json, verbose_json, "
        "diarized_json"
    ]


@pytest.mark.parametrize(
    ("response", "text", "tokens"),
    [
        (
            b'{"text":"Imagine","usage":{"type":"tokens","input_tokens":14,"input_token_details":'
            b'{"text_tokens":0,"audio_tokens":14},"output_tokens":45,"total_tokens":59}}',
            "Imagine",
            (14, 45),
        ),
        (b'{"text":" Hi.","usage":{"type":"duration","seconds":16}}', " Hi.", (-1, -1)),
        (
            b'{"task":"transcribe","language":"english","duration":8.47,"text":"The beach",'
            b'"segments":[{"id":0,"seek":0,"start":0.0,"end":3.3,"text":"The beach","tokens":'
            b'[50364,440],"temperature":0.0,"avg_logprob":-0.28,"compression_ratio":1.2,'
            b'"no_speech_prob":0.009}],"usage":{"type":"duration","seconds":9}}',
            "The beach",
            (-1, -1),
        ),
        (b'{"text":"","x_groq":{"id":"req_1"}}', "", (-1, -1)),
    ],
    ids=["openai", "vllm", "verbose", "silence"],
)
def test_a_whole_response(response: bytes, text: str, tokens: tuple[int, int]) -> None:
    delta = AUDIO_TRANSCRIPTION.parse_body(response)
    assert (delta.content, delta.finish_reason, delta.error) == (text, "stop", "")
    assert (delta.prompt_tokens, delta.completion_tokens) == tokens


def test_the_events_of_openai() -> None:
    parse = AUDIO_TRANSCRIPTION.parse_event
    text = (
        b'{"type":"transcript.text.delta","delta":"I","logprobs":[{"token":"I","logprob":-0.01}]}'
    )
    assert parse(text).content == "I"
    done = parse(
        b'{"type":"transcript.text.done","text":"I see","logprobs":[],"usage":{"type":"tokens",'
        b'"input_tokens":14,"input_token_details":{"text_tokens":0,"audio_tokens":14},'
        b'"output_tokens":31,"total_tokens":45}}'
    )
    assert (done.content, done.finish_reason) == ("", "stop")
    assert (done.prompt_tokens, done.completion_tokens) == (14, 31)
    segment = (
        b'{"type":"transcript.text.segment","id":"s","start":0,"end":1,"text":"I","speaker":"A"}'
    )
    assert not parse(segment).has_output
    assert parse(b'{"type":"error","error":{"message":"no"}}').error == "no"


def test_the_events_of_vllm() -> None:
    parse = AUDIO_TRANSCRIPTION.parse_event
    begin = b'{"id":"trsc-1","object":"transcription.chunk","created":1,"model":"m","choices":'
    assert parse(begin + b'[{"delta":{"content":" The"}}]}').content == " The"
    end = parse(begin + b'[{"delta":{"content":""},"finish_reason":"stop","stop_reason":null}]}')
    assert (end.content, end.finish_reason) == ("", "stop")
    usage = parse(begin + b'[],"usage":{"prompt_tokens":4,"total_tokens":9,"completion_tokens":5}}')
    assert (usage.prompt_tokens, usage.completion_tokens) == (4, 5)
