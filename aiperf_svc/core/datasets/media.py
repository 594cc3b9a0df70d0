"""Pictures and sounds in prompts: what kind of file some bytes are, and synthetic ones.

A synthetic picture is noise as PNG, and a synthetic sound is noise as 16-bit WAV: no two are alike,
so a server cannot take one from a cache, and neither can be compressed.
"""

import base64
import struct
import zlib

import msgspec
import numpy as np

from aiperf_svc.config.prompts import Images, Sounds
from aiperf_svc.core.datasets.base import PromptConversation, Purpose, generator
from aiperf_svc.core.datasets.lengths import draw_lengths
from aiperf_svc.core.endpoints.base import Media
from aiperf_svc.domain.errors import DatasetError

MOST_BYTES = 2 * 2**30
"""Most bytes of the synthetic pictures and sounds of a run: they are held in memory."""
_PNG = b"\x89PNG\r\n\x1a\n"
_MAGIC = (
    (_PNG, "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"ID3", "audio/mp3"),
    (b"\xff\xfb", "audio/mp3"),
    (b"\xff\xf3", "audio/mp3"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}


def media_type(data: bytes) -> str:
    """Return the media type of a file by how it begins; empty for neither a picture nor a sound."""
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12], "")
    if data.startswith(_PNG) and (data[12:16] != b"IHDR" or b"IEND" not in data):
        return ""
    return next((found for magic, found in _MAGIC if data.startswith(magic)), "")


def media_of(data: bytes, kind: str) -> Media:
    """Return a file as a part of a prompt. Raises ValueError if it is none of `kind`."""
    found = media_type(data)
    if not found.startswith(f"{kind}/"):
        expected = "PNG, JPEG, GIF or WebP" if kind == "image" else "WAV, MP3, FLAC or Ogg"
        raise ValueError(f"is no {kind}; expected {expected}")
    return Media(found, base64.b64encode(data).decode())


def noise_png(width: int, height: int, rng: np.random.Generator) -> bytes:
    """Return a picture of 8-bit RGB noise (ISO/IEC 15948: header, one block of data, end)."""
    rows = np.zeros((height, 1 + 3 * width), dtype=np.uint8)  # byte 0 of a row: no filter
    rows[:, 1:] = rng.integers(0, 256, size=(height, 3 * width), dtype=np.uint8)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    # Noise cannot be compressed, and the other levels only take longer.
    data = zlib.compress(rows.tobytes(), 0)
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return _PNG + b"".join(_png_chunk(name, content) for name, content in chunks)


def _png_chunk(name: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)


def noise_wav(seconds: float, sample_rate: int, channels: int, rng: np.random.Generator) -> bytes:
    """Return 16-bit noise at a tenth of full scale."""
    samples = max(1, round(seconds * sample_rate)) * channels
    data = rng.integers(-3_277, 3_277, size=samples, dtype=np.int16).astype("<i2").tobytes()
    frame = 2 * channels
    form = struct.pack("<HHIIHH", 1, channels, sample_rate, sample_rate * frame, frame, 16)
    return (
        struct.pack("<4sI4s4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", len(form))
        + form
        + struct.pack("<4sI", b"data", len(data))
        + data
    )


def with_media(
    entries: list[PromptConversation], images: Images, sounds: Sounds, seed: int
) -> list[PromptConversation]:
    """Return entries of which every turn has synthetic pictures and sounds. Those of the first do
    not depend on the number of entries. Raises DatasetError for more bytes than are held."""
    if not images.number and not sounds.number:
        return entries
    turns = sum(len(entry.turns) for entry in entries)
    check_media_size(turns, images, sounds)
    widths = draw_lengths(images.width, turns * images.number, generator(seed, Purpose.WIDTHS))
    heights = draw_lengths(images.height, turns * images.number, generator(seed, Purpose.HEIGHTS))
    rng = generator(seed, Purpose.SOUND_LENGTHS)
    seconds = rng.normal(sounds.seconds.mean, sounds.seconds.stddev, size=turns * sounds.number)
    place, completed = 0, []
    for entry in entries:
        made = []
        for turn in entry.turns:
            rng = generator(seed, Purpose.MEDIA, place)
            media = [
                media_of(noise_png(int(widths[each]), int(heights[each]), rng), "image")
                for each in range(place * images.number, (place + 1) * images.number)
            ]
            media += [
                media_of(
                    noise_wav(max(0.1, seconds[each]), sounds.sample_rate, sounds.channels, rng),
                    "audio",
                )
                for each in range(place * sounds.number, (place + 1) * sounds.number)
            ]
            prompt = msgspec.structs.replace(turn.prompt, media=tuple(media))
            made.append(msgspec.structs.replace(turn, prompt=prompt))
            place += 1
        completed.append(msgspec.structs.replace(entry, turns=tuple(made)))
    return completed


def check_media_size(turns: int, images: Images, sounds: Sounds) -> None:
    """Raise DatasetError if the synthetic pictures and sounds of so many requests are too large to
    be held."""
    picture = 3 * images.width.mean * images.height.mean
    sound = 2 * sounds.seconds.mean * sounds.sample_rate * sounds.channels
    # In base64, four characters hold three bytes.
    size = turns * (images.number * picture + sounds.number * sound) * 4 / 3
    if size > MOST_BYTES:
        raise DatasetError(
            f"dataset.entries: {turns:,} requests have {size / 2**30:,.1f} GiB of synthetic "
            f"pictures and sounds; expected at most {MOST_BYTES / 2**30:g} GiB: give fewer entries "
            "or smaller ones"
        )
