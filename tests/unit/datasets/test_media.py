"""Pictures and sounds: synthetic ones as others read them, files, and their place in bodies."""

import base64
import io
import json
import struct
import wave
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aiperf_svc.adapters.datasets.media_files import with_files
from aiperf_svc.config.dataset import Dataset
from aiperf_svc.config.endpoint import Endpoint as Options
from aiperf_svc.config.prompts import Images, Length, Sounds
from aiperf_svc.core.datasets import single_turn
from aiperf_svc.core.datasets.base import PromptConversation
from aiperf_svc.core.datasets.media import media_of, media_type, noise_png, noise_wav, with_media
from aiperf_svc.core.datasets.synthetic import generate
from aiperf_svc.core.endpoints.base import Media, Prompt
from aiperf_svc.core.endpoints.registry import endpoint_of
from aiperf_svc.domain.errors import DatasetError

RNG = np.random.default_rng


def pixels(png: bytes) -> tuple[int, int, bytes]:
    """Width, height and rows of a PNG, whose checksums are right."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, parts = 8, {}
    while at < len(png):
        (size,) = struct.unpack_from(">I", png, at)
        name, content = png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        assert struct.unpack_from(">I", png, at + 8 + size) == (zlib.crc32(name + content),)
        parts[name], at = content, at + size + 12
    assert [*parts] == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", parts[b"IHDR"])
    assert (depth, colour, rest) == (8, 2, [0, 0, 0])
    return width, height, zlib.decompress(parts[b"IDAT"])


def test_a_synthetic_picture_is_a_png_of_its_size() -> None:
    width, height, rows = pixels(noise_png(31, 7, RNG(1)))
    assert (width, height, len(rows)) == (31, 7, 7 * (1 + 3 * 31))
    assert set(rows[:: 1 + 3 * 31]) == {0}


def test_a_synthetic_sound_is_a_wav_of_its_length() -> None:
    with wave.open(io.BytesIO(noise_wav(0.5, 8_000, 2, RNG(1)))) as sound:
        assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (8_000, 2, 2)
        assert sound.getnframes() == 4_000


def media(count: int, seed: int = 1) -> list[PromptConversation]:
    entries = generate(Dataset(input_tokens=Length(mean=3)), count, seed, None)
    images = Images(number=2, width=Length(mean=20, stddev=5), height=Length(mean=10))
    return with_media(entries, images, Sounds(number=1, sample_rate=1_000), seed)


def test_each_request_has_its_own_and_the_first_do_not_depend_on_their_number() -> None:
    entries = media(6)
    data = [each.data for entry in entries for each in entry.turns[0].prompt.media]
    assert len(set(data)) == len(data) == 18
    kinds = [each.type for each in entries[0].turns[0].prompt.media]
    assert kinds == ["image/png", "image/png", "audio/wav"]
    assert media(20)[:6] == entries


def test_more_than_is_held_is_refused_before_it_is_made() -> None:
    entries = generate(Dataset(input_tokens=Length(mean=3)), 1_000, 1, None)
    huge = Images(number=1, width=Length(mean=4_096), height=Length(mean=4_096))
    with pytest.raises(DatasetError, match=r"1,000 requests have 62\.5 GiB of synthetic"):
        with_media(entries, huge, Sounds(), 1)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (noise_png(1, 1, RNG(1)), "image/png"),
        (b"\xff\xd8\xff\xe0..JFIF", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF....WEBPVP8 ", "image/webp"),
        (noise_wav(0.1, 1_000, 1, RNG(1)), "audio/wav"),
        (b"ID3\x04", "audio/mp3"),
        (b"fLaC", "audio/flac"),
        (b"\x89PNG\r\n\x1a\n", ""),
        (noise_png(2, 2, RNG(1))[:-12], ""),
        (b"%PDF-1.7", ""),
        (b"", ""),
    ],
)
def test_a_file_is_known_by_how_it_begins(data: bytes, found: str) -> None:
    assert media_type(data) == found


# --- bodies --------------------------------------------------------------------------------------

PICTURE = Media("image/png", data="QUJD")
SOUND = Media("audio/wav", data="REVG")
LINK = Media("image/*", reference="https://pictures.test/a.png")


def message(kind: str, prompt: Prompt) -> Any:
    options = Options.model_validate({"url": "http://h:1", "model": "m", "type": kind})
    body = json.loads(endpoint_of(options).render(prompt, options).whole)
    return body["input" if kind == "responses" else "messages"]


def test_chat_has_parts_for_pictures_and_sounds() -> None:
    prompt = Prompt(texts=("t",), media=(PICTURE, SOUND, LINK), system="s")
    assert message("chat", prompt) == [
        {"role": "system", "content": "s"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "t"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
                {"type": "input_audio", "input_audio": {"data": "REVG", "format": "wav"}},
                {"type": "image_url", "image_url": {"url": "https://pictures.test/a.png"}},
            ],
        },
    ]


def test_responses_and_messages_have_parts_of_their_own() -> None:
    prompt = Prompt(texts=("t",), media=(PICTURE, LINK))
    assert message("responses", prompt) == [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "t"},
                {"type": "input_image", "image_url": "data:image/png;base64,QUJD"},
                {"type": "input_image", "image_url": "https://pictures.test/a.png"},
            ],
        }
    ]
    inside = {"type": "base64", "media_type": "image/png", "data": "QUJD"}
    outside = {"type": "url", "url": "https://pictures.test/a.png"}
    assert message("messages", prompt) == [
        {
            "role": "user",
            "content": [
                {"type": "image", "source": inside},
                {"type": "image", "source": outside},
                {"type": "text", "text": "t"},
            ],
        }
    ]


# --- files ---------------------------------------------------------------------------------------


def read(folder: Path, line: str) -> Prompt:
    entries, _ = single_turn.parse([(1, line.encode())], "f.jsonl")
    return with_files(entries, folder)[0].turns[0].prompt


def test_a_sound_or_a_picture_may_be_all_of_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(noise_png(2, 2, RNG(1)))
    prompt = read(tmp_path, '{"image": "a.png"}')
    assert prompt.is_media_alone
    for kind, part in (("chat", "image_url"), ("messages", "image"), ("responses", "input_image")):
        options = Options.model_validate({"url": "http://h:1", "model": "m", "type": kind})
        body = json.loads(endpoint_of(options).render(prompt, options).whole)
        (message,) = body.get("messages") or body["input"]
        assert [each["type"] for each in message["content"]] == [part]


def test_files_are_read_from_the_folder_and_urls_stay(tmp_path: Path) -> None:
    png, wav = noise_png(2, 2, RNG(1)), noise_wav(0.1, 1_000, 1, RNG(1))
    (tmp_path / "a.png").write_bytes(png)
    (tmp_path / "b.bin").write_bytes(wav)
    line = '{"text": "t", "images": ["a.png", "https://h/x.jpg"], "audio": "b.bin"}'
    first, link, sound = read(tmp_path, line).media
    assert base64.b64decode(first.data) == png
    assert (link.data, link.url) == ("", "https://h/x.jpg")
    assert (sound.type, base64.b64decode(sound.data)) == ("audio/wav", wav)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text": "t", "image": "nowhere.png"}', "f.jsonl:1: nowhere.png: No such file"),
        ('{"text": "t", "image": "notes.txt"}', "f.jsonl:1: notes.txt is no image; expected PNG"),
        ('{"text": "t", "audio": "notes.txt"}', "f.jsonl:1: notes.txt is no audio; expected WAV"),
    ],
)
def test_a_picture_that_is_none_is_named_with_its_line(
    tmp_path: Path, line: str, words: str
) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DatasetError, match=words):
        read(tmp_path, line)


def test_a_sound_is_no_picture() -> None:
    with pytest.raises(ValueError, match="is no image"):
        media_of(noise_wav(0.1, 1_000, 1, RNG(1)), "image")
