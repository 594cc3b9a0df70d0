"""Pictures and sounds: synthetic ones read by other programs, files, and bodies."""

import base64
import io
import json
import re
import struct
import wave
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image
from pydantic import ValidationError

from aiperf_svc.adapters.datasets.media_files import read_folders, with_files
from aiperf_svc.config.benchmark import SEEDS
from aiperf_svc.config.dataset import Dataset
from aiperf_svc.config.endpoint import Endpoint as Options
from aiperf_svc.config.prompts import MP3_RATES, Images, Length, Seconds, Sounds
from aiperf_svc.core.datasets import single_turn
from aiperf_svc.core.datasets.base import PromptConversation, Purpose
from aiperf_svc.core.datasets.media import (
    MAX_BYTES,
    MediaFile,
    MediaFolders,
    check_media_size,
    chosen_files,
    media_of,
    media_type,
    noise_pixels,
    noise_samples,
    png_of,
    wav_of,
    with_media,
)
from aiperf_svc.core.datasets.synthetic import generate
from aiperf_svc.core.endpoints.base import Media, Prompt
from aiperf_svc.core.endpoints.registry import endpoint_of
from aiperf_svc.domain.errors import DatasetError

RNG = np.random.default_rng


def png(width: int, height: int, rng: np.random.Generator) -> bytes:
    return png_of(noise_pixels(width, height, rng))


def wav(seconds: float, rate: int, channels: int, rng: np.random.Generator) -> bytes:
    return wav_of(noise_samples(seconds, rate, channels, rng), rate)


def pixels(png: bytes) -> tuple[int, int, bytes]:
    """Return width, height and rows of a PNG after checking its checksums."""
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


def test_synthetic_picture_is_a_png_of_its_size() -> None:
    width, height, rows = pixels(png(31, 7, RNG(1)))
    assert (width, height, len(rows)) == (31, 7, 7 * (1 + 3 * 31))
    assert set(rows[:: 1 + 3 * 31]) == {0}


def test_synthetic_sound_is_a_wav_of_its_length() -> None:
    with wave.open(io.BytesIO(wav(0.5, 8_000, 2, RNG(1)))) as sound:
        assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (8_000, 2, 2)
        assert sound.getnframes() == 4_000


def media(count: int, seed: int = 1) -> list[PromptConversation]:
    entries = generate(Dataset(input_tokens=Length(mean=3)), count, seed, None)
    images = Images(number=2, width=Length(mean=20, stddev=5), height=Length(mean=10))
    return with_media(entries, images, Sounds(number=1, sample_rates=(1_000,)), seed)


def test_first_requests_media_are_independent_of_the_count() -> None:
    entries = media(6)
    data = [each.data for entry in entries for each in entry.turns[0].prompt.media]
    assert len(set(data)) == len(data) == 18
    kinds = [each.type for each in entries[0].turns[0].prompt.media]
    assert kinds == ["image/png", "image/png", "audio/wav"]
    assert media(20)[:6] == entries


def test_another_variant_has_other_noise_of_same_size() -> None:
    sizes, data = [], set[str]()
    for seed in (1, 1 + SEEDS):
        made = [each for entry in media(6, seed) for each in entry.turns[0].prompt.media]
        sizes.append([len(each.data) for each in made])
        data |= {each.data for each in made}
    assert sizes[0] == sizes[1]
    assert len(data) == 2 * len(sizes[0])


def test_media_over_the_memory_limit_are_refused_early() -> None:
    entries = generate(Dataset(input_tokens=Length(mean=3)), 1_000, 1, None)
    huge = Images(number=1, width=Length(mean=4_096), height=Length(mean=4_096))
    with pytest.raises(DatasetError, match=r"1,000 requests have 62\.5 GiB of images"):
        with_media(entries, huge, Sounds(), 1)


@pytest.mark.parametrize(
    ("images", "sounds"),
    [
        (Images(number=1, format="jpeg"), Sounds()),
        (Images(number=4, format="random"), Sounds()),
        (Images(), Sounds(number=1, format="mp3", sample_rates=(44_100,), seconds=Seconds(mean=2))),
        (Images(), Sounds(number=1, format="mp3", channels=2, seconds=Seconds(mean=2))),
    ],
    ids=["jpeg", "random", "mp3", "mp3-stereo"],
)
def test_refused_media_size_depends_on_format(images: Images, sounds: Sounds) -> None:
    entries = with_media(
        generate(Dataset(input_tokens=Length(mean=3)), 5, 1, None), images, sounds, 1
    )
    sizes = [sum(len(each.data) for each in entry.turns[0].prompt.media) for entry in entries]
    turns = round(1000 * MAX_BYTES / (sum(sizes) / len(sizes)))
    with pytest.raises(DatasetError, match="GiB of images") as refused:
        check_media_size(turns, images, sounds)
    (size,) = re.findall(r"have ([0-9,.]+) GiB", str(refused.value))
    assert 2_000 <= float(size.replace(",", "")) <= 3.2 * 2_000


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (png(1, 1, RNG(1)), "image/png"),
        (b"\xff\xd8\xff\xe0..JFIF", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF....WEBPVP8 ", "image/webp"),
        (wav(0.1, 1_000, 1, RNG(1)), "audio/wav"),
        (b"ID3\x04", "audio/mp3"),
        (b"fLaC", "audio/flac"),
        (b"\x89PNG\r\n\x1a\n", ""),
        (png(2, 2, RNG(1))[:-12], ""),
        (b"%PDF-1.7", ""),
        (b"", ""),
    ],
)
def test_file_format_is_detected_from_its_beginning(data: bytes, found: str) -> None:
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


def test_responses_and_messages_have_own_part_types() -> None:
    prompt = Prompt(texts=("t",), media=(PICTURE, LINK))
    urls = ("data:image/png;base64,QUJD", "https://pictures.test/a.png")
    assert message("responses", prompt) == [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "t"},
                *({"type": "input_image", "image_url": url, "detail": "auto"} for url in urls),
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


def test_prompt_may_consist_of_media_only(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(2, 2, RNG(1)))
    prompt = read(tmp_path, '{"image": "a.png"}')
    assert prompt.is_media_alone
    for kind, part in (("chat", "image_url"), ("messages", "image"), ("responses", "input_image")):
        (sent,) = message(kind, prompt)
        assert [each["type"] for each in sent["content"]] == [part]


def test_files_are_read_and_urls_are_kept(tmp_path: Path) -> None:
    picture, noise = png(2, 2, RNG(1)), wav(0.1, 1_000, 1, RNG(1))
    (tmp_path / "a.png").write_bytes(picture)
    (tmp_path / "b.bin").write_bytes(noise)
    line = '{"text": "t", "images": ["a.png", "https://h/x.jpg"], "audio": "b.bin"}'
    first, link, sound = read(tmp_path, line).media
    assert base64.b64decode(first.data) == picture
    assert (link.data, link.url) == ("", "https://h/x.jpg")
    assert (sound.type, base64.b64decode(sound.data)) == ("audio/wav", noise)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "t", "image": "nowhere.png"}', "f.jsonl:1: nowhere.png: No such file"),
        ('{"text": "t", "image": "notes.txt"}', "f.jsonl:1: notes.txt is not an image file; "),
        ('{"text": "t", "audio": "notes.txt"}', "f.jsonl:1: notes.txt is not an audio file; "),
    ],
)
def test_invalid_picture_is_named_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DatasetError, match=message):
        read(tmp_path, line)


# --- formats -------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [8, 16, 24, 32])
def test_a_wav_has_the_samples_at_each_depth(depth: int) -> None:
    samples = noise_samples(0.1, 8_000, 2, RNG(1))
    data = wav_of(samples, 8_000, depth)
    with wave.open(io.BytesIO(data)) as sound:
        assert (sound.getsampwidth(), sound.getnchannels()) == (depth // 8, 2)
        assert sound.getnframes() == len(samples)
    read, rate = soundfile.read(io.BytesIO(data))
    assert rate == 8_000
    assert np.abs(read * 32_768 - samples).max() < (2**8 if depth == 8 else 1)


def made(images: Images, sounds: Sounds, count: int = 40, folders: Any = None) -> list[Media]:
    entries = generate(Dataset(input_tokens=Length(mean=3)), count, 1, None)
    media = with_media(entries, images, sounds, 1, folders or MediaFolders())
    return [each for entry in media for each in entry.turns[0].prompt.media]


def picture_of(media: Media) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(media.data)))


def test_jpeg_and_random_formats_have_png_sizes() -> None:
    sizes = {}
    for form in ("png", "jpeg", "random"):
        images = Images(
            format=form, width=Length(mean=20, stddev=5), height=Length(mean=10, stddev=2)
        )
        media = made(images, Sounds())
        sizes[form] = [picture_of(each).size for each in media]
        kinds = {each.type for each in media}
        assert kinds == ({f"image/{form}"} if form != "random" else {"image/png", "image/jpeg"})
        assert len({each.data for each in media}) == len(media)
    assert sizes["png"] == sizes["jpeg"] == sizes["random"]


def test_each_sound_has_one_rate_and_depth() -> None:
    sounds = Sounds(seconds=Seconds(mean=0.1), sample_rates=(8_000, 16_000), depths=(8, 24))
    found = set()
    for each in made(Images(), sounds):
        with wave.open(io.BytesIO(base64.b64decode(each.data))) as sound:
            found.add((sound.getframerate(), sound.getsampwidth()))
            assert sound.getnframes() == sound.getframerate() // 10
    assert found == {(rate, width) for rate in (8_000, 16_000) for width in (1, 3)}


@pytest.mark.parametrize("rate", MP3_RATES)
def test_mp3_is_one_at_each_of_its_rates(rate: int) -> None:
    sounds = Sounds(seconds=Seconds(mean=1.0), sample_rates=(rate,), format="mp3")
    (sound,) = made(Images(), sounds, 1)
    assert sound.type == "audio/mp3"
    info = soundfile.info(io.BytesIO(base64.b64decode(sound.data)))
    assert (info.samplerate, info.format) == (rate, "MP3")
    assert info.duration == pytest.approx(1.0, abs=0.2)  # whole frames and padding


# --- folders -------------------------------------------------------------------------------------


def test_pictures_of_a_folder_are_sent_unchanged(tmp_path: Path) -> None:
    files = {f"{name}.png": png(3, 2, RNG(ord(name))) for name in "abc"}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / ".hidden").write_text("no picture")
    (tmp_path / "folder").mkdir()
    dataset = Dataset(images=Images(folder=str(tmp_path), sampling="sequential", number=2))
    media = made(dataset.images, Sounds(), 3, read_folders(dataset))
    assert [base64.b64decode(each.data) for each in media] == [*files.values()] * 2


@pytest.mark.parametrize("kind", ["image", "audio"])
def test_file_of_a_folder_is_encoded_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    is_image = kind == "image"
    data = png(3, 2, RNG(1)) if is_image else wav(0.1, 1_000, 1, RNG(1))
    files = (MediaFile("a", data),)
    folders = MediaFolders(pictures=files) if is_image else MediaFolders(sounds=files)
    images = Images(folder="f") if is_image else Images()
    encode, encoded = base64.b64encode, []
    monkeypatch.setattr(base64, "b64encode", lambda data: encoded.append(data) or encode(data))  # type: ignore[func-returns-value]
    media = made(images, Sounds() if is_image else Sounds(folder="f"), 5, folders)
    assert [each.data for each in media] == [encode(data).decode()] * 5
    assert encoded == [data]


def test_folder_pictures_are_scaled_to_a_size() -> None:
    folders = MediaFolders(pictures=(MediaFile("a.png", png(3, 2, RNG(1))),))
    images = Images(folder="f", width=Length(mean=30), height=Length(mean=20), format="jpeg")
    (picture,) = made(images, Sounds(), 1, folders)
    assert (picture.type, picture_of(picture).size) == ("image/jpeg", (30, 20))


def test_noise_size_also_scales_pictures_of_a_folder() -> None:
    folders = MediaFolders(pictures=(MediaFile("a.png", png(3, 2, RNG(1))),))
    images = Images(folder="f", width=Length(mean=512))
    kept = Images.model_validate(images.model_dump(exclude_defaults=True))
    (picture,) = made(kept, Sounds(), 1, folders)
    assert picture_of(picture).size == (512, 512)


def test_unscalable_picture_is_named() -> None:
    folders = MediaFolders(pictures=(MediaFile("a.jpg", b"\xff\xd8\xff\xe0 JFIF and no more"),))
    images = Images(folder="f", width=Length(mean=30))
    with pytest.raises(DatasetError, match=r"^dataset.images.folder: a.jpg: cannot be read as a"):
        made(images, Sounds(), 1, folders)


def test_sounds_of_a_folder_are_sent_unchanged(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav(0.1, 1_000, 1, RNG(1)))
    dataset = Dataset(sounds=Sounds(folder=str(tmp_path)))
    (sound,) = made(Images(), dataset.sounds, 1, read_folders(dataset))
    assert base64.b64decode(sound.data) == (tmp_path / "a.wav").read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("notes", "{}/a.txt is not an image file; expected PNG, JPEG, GIF or WebP$"),
        (None, "^dataset.images.folder: {} has no files; expected those to send$"),
    ],
)
def test_folder_with_another_file_is_one_clear_error(
    tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "a.txt").write_text(content)
    with pytest.raises(DatasetError, match=message.format(tmp_path)):
        read_folders(Dataset(images=Images(folder=str(tmp_path))))


def test_missing_folder_is_named() -> None:
    with pytest.raises(DatasetError, match=r"^dataset.sounds.folder: /nowhere: No such file"):
        read_folders(Dataset(sounds=Sounds(folder="/nowhere")))


def test_random_file_choice_is_uniform_and_independent() -> None:
    chosen = np.array(chosen_files("random", 8, 80_000, 1, Purpose.PICTURE_FILES))
    counts = np.bincount(chosen, minlength=8)
    # Sum of squares with 7 degrees of freedom: above 30 for one in 10,000 seeds.
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 30
    again = float(np.mean(chosen[1:] == chosen[:-1]))
    assert again == pytest.approx(1 / 8, abs=4 * (0.125 * 0.875 / 80_000) ** 0.5)


def test_shuffled_choice_uses_each_file_before_repeats() -> None:
    chosen = chosen_files("shuffled", 10, 25, 1, Purpose.PICTURE_FILES)
    assert sorted(chosen[:10]) == sorted(chosen[10:20]) == [*range(10)]
    assert chosen[:10] != chosen[10:20]
    assert chosen_files("shuffled", 10, 12, 1, Purpose.PICTURE_FILES) == chosen[:12]
    assert chosen_files("shuffled", 10, 12, 2, Purpose.PICTURE_FILES) != chosen[:12]


@pytest.mark.parametrize(
    ("part", "data", "message"),
    [
        (Images, {"sampling": "shuffled"}, "{sampling} needs {folder}"),
        (Images, {"folder": "f", "format": "jpeg"}, "{format} needs {width} or {height}"),
        (Sounds, {"folder": "f", "channels": 2}, "{channels} is for synthetic sounds"),
        (Sounds, {"format": "mp3", "depths": [8]}, "{depths} are those of a WAV"),
        (Sounds, {"format": "mp3", "sample_rates": [96_000]}, "{sample_rates} 96000: {format} mp3"),
        (Sounds, {"depths": [12]}, "depths"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    part: Any, data: Any, message: str
) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        part.model_validate(data)


def test_media_settings_imply_one_item() -> None:
    assert Images.model_validate({"folder": "f"}).number == 1
    assert Images.model_validate({"folder": "f", "number": 0}).number == 0
    assert Images().number == Sounds().number == 0


def test_a_sound_is_no_picture() -> None:
    with pytest.raises(ValueError, match="is not an image file"):
        media_of(wav(0.1, 1_000, 1, RNG(1)), "image")
