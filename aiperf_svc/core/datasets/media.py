"""Pictures and sounds in prompts: recognises file types, and generates synthetic content.

Synthetic content is noise, or the files of a folder. Every noise is different, so a server cannot
find it in a cache, and noise cannot be compressed. JPEG, WEBP and MP3 need libraries of the extra
`media`, which are imported only for them.
"""

import base64
import io
import struct
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.prompts import Images, Sampling, Sounds
from aiperf_svc.core.datasets.base import PromptConversation, Purpose, generator
from aiperf_svc.core.datasets.synthetic import draw_lengths
from aiperf_svc.core.endpoints.base import Media
from aiperf_svc.domain.errors import DatasetError

if TYPE_CHECKING:
    from PIL.Image import Image

JPEG_QUALITY = 75
"""The default of libjpeg."""


def jpeg_of(pixels: NDArray[np.uint8]) -> bytes:
    """Return an RGB picture, of shape (height, width, 3), as JPEG."""
    from PIL import Image

    return _written(Image.fromarray(pixels), is_jpeg=True)


def scaled(data: bytes, width: int, height: int, *, is_jpeg: bool) -> bytes:
    """Return a picture scaled to this size, as JPEG or PNG. Raises ValueError if unreadable."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as picture:
            return _written(picture.convert("RGB").resize((width, height)), is_jpeg=is_jpeg)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"cannot be read as an image: {error}") from None


def mp3_of(samples: NDArray[np.int16], sample_rate: int) -> bytes:
    """Return a sound, of shape (samples, channels), as MP3."""
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, samples, sample_rate, format="MP3", subtype="MPEG_LAYER_III")
    return file.getvalue()


def _written(picture: "Image", *, is_jpeg: bool) -> bytes:
    file = io.BytesIO()
    if is_jpeg:
        picture.save(file, format="JPEG", quality=JPEG_QUALITY)
    else:
        picture.save(file, format="PNG")
    return file.getvalue()


MAX_BYTES = 2 * 2**30
"""Maximum bytes of pictures and sounds of synthetic prompts, which are held in memory."""
COMPRESSED_SHARE = 0.3
"""Maximum bytes of noise as JPEG or MP3 per raw byte: 0.20 to 0.25 as JPEG, and 0.10 to 0.27 as
MP3. Pictures of a folder are smaller."""
_PNG = b"\x89PNG\r\n\x1a\n"
_MAGIC = (
    (_PNG, "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"ID3", "audio/mp3"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}


def media_type(data: bytes) -> str:
    """Return the media type of a file by its first bytes; empty if not a picture or a sound."""
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12], "")
    if data.startswith(_PNG) and (data[12:16] != b"IHDR" or b"IEND" not in data):
        return ""
    if data[:1] == b"\xff" and len(data) > 1 and data[1] & 0xE6 == 0xE2:
        return "audio/mp3"  # a frame of layer III, of any version, with or without a checksum
    return next((found for magic, found in _MAGIC if data.startswith(magic)), "")


def media_of(data: bytes, kind: str) -> Media:
    """Return a file as a part of a prompt. Raises ValueError if it is not of `kind`."""
    found = media_type(data)
    if not found.startswith(f"{kind}/"):
        expected = "PNG, JPEG, GIF or WebP" if kind == "image" else "WAV, MP3, FLAC or Ogg"
        raise ValueError(f"is not an {kind} file; expected {expected}")
    return Media(found, base64.b64encode(data).decode())


class MediaFile(msgspec.Struct, frozen=True):
    name: str
    """Name in error messages."""
    data: bytes


class MediaFolders(msgspec.Struct, frozen=True):
    """The files of the folders from which a dataset takes its pictures and sounds; none if they are
    noise."""

    pictures: tuple[MediaFile, ...] = ()
    sounds: tuple[MediaFile, ...] = ()


NO_FOLDERS = MediaFolders()


def noise_pixels(width: int, height: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return 8-bit RGB noise, of shape (height, width, 3)."""
    rows = rng.integers(0, 256, size=(height, 3 * width), dtype=np.uint8)
    return rows.reshape(height, width, 3)


def png_of(pixels: NDArray[np.uint8]) -> bytes:
    """Return an RGB picture as PNG (ISO/IEC 15948: header, one block of data, end)."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), dtype=np.uint8)  # byte 0 of a row: no filter
    rows[:, 1:] = pixels.reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    # Noise cannot be compressed, so higher levels only take longer.
    data = zlib.compress(rows.tobytes(), 0)
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return _PNG + b"".join(_png_chunk(name, content) for name, content in chunks)


def _png_chunk(name: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)


def noise_samples(
    seconds: float, sample_rate: int, channels: int, rng: np.random.Generator
) -> NDArray[np.int16]:
    """Return 16-bit noise at a tenth of full scale, of shape (samples, channels)."""
    size = max(1, round(seconds * sample_rate)), channels
    return rng.integers(-3_277, 3_277, size=size, dtype=np.int16)


def wav_of(samples: NDArray[np.int16], sample_rate: int, depth: int = 16) -> bytes:
    """Return a sound as WAV with this many bits per sample: 8 are unsigned, more are signed."""
    channels = samples.shape[1]
    if depth == 8:
        data = ((samples >> 8) + 128).astype(np.uint8).tobytes()
    else:
        wide = (samples.astype("<i4") << 16).reshape(-1, 1).view(np.uint8)
        data = wide[:, 4 - depth // 8 :].tobytes()  # the upper bytes of a little-endian number
    frame = depth // 8 * channels
    form = struct.pack("<HHIIHH", 1, channels, sample_rate, sample_rate * frame, frame, depth)
    odd = len(data) % 2
    return (
        struct.pack("<4sI4s4sI", b"RIFF", 36 + len(data) + odd, b"WAVE", b"fmt ", len(form))
        + form
        + struct.pack("<4sI", b"data", len(data))
        + data
        + b"\0" * odd
    )


def with_media(
    entries: list[PromptConversation],
    images: Images,
    sounds: Sounds,
    seed: int,
    folders: MediaFolders = NO_FOLDERS,
) -> list[PromptConversation]:
    """Return entries with pictures and sounds in every turn. Those of the first entries do not
    depend on the number of entries. Raises DatasetError above the memory limit, and for a picture
    that cannot be scaled."""
    if not images.number and not sounds.number:
        return entries
    turns = sum(len(entry.turns) for entry in entries)
    check_media_size(turns, images, sounds, folders)
    pictures = _Pictures(images, turns * images.number, seed, folders.pictures)
    noises = _Sounds(sounds, turns * sounds.number, seed, folders.sounds)
    place, completed = 0, []
    for entry in entries:
        made = []
        for turn in entry.turns:
            rng = generator(seed, Purpose.MEDIA, place)
            media = [
                pictures.make(each, rng)
                for each in range(place * images.number, (place + 1) * images.number)
            ]
            media += [
                noises.make(each, rng)
                for each in range(place * sounds.number, (place + 1) * sounds.number)
            ]
            prompt = msgspec.structs.replace(turn.prompt, media=tuple(media))
            made.append(msgspec.structs.replace(turn, prompt=prompt))
            place += 1
        completed.append(msgspec.structs.replace(entry, turns=tuple(made)))
    return completed


class _Pictures:
    """Generates the pictures of all requests, by number."""

    def __init__(self, images: Images, count: int, seed: int, files: Sequence[MediaFile]) -> None:
        self._images = images
        width, height = images.size
        self._widths = draw_lengths(width, count, generator(seed, Purpose.WIDTHS))
        self._heights = draw_lengths(height, count, generator(seed, Purpose.HEIGHTS))
        is_jpeg = generator(seed, Purpose.PICTURE_FORMATS).random(count) < 0.5
        self._is_jpeg = is_jpeg if images.format == "random" else [images.format == "jpeg"] * count
        self._files = files
        self._chosen = chosen_files(images.sampling, len(files), count, seed, Purpose.PICTURE_FILES)
        self._known: dict[int, Media] = {}

    def make(self, number: int, rng: np.random.Generator) -> Media:
        size = int(self._widths[number]), int(self._heights[number])
        is_jpeg = bool(self._is_jpeg[number])
        if not self._files:
            pixels = noise_pixels(*size, rng)
            return media_of(jpeg_of(pixels) if is_jpeg else png_of(pixels), "image")
        place = self._chosen[number]
        file = self._files[place]
        if self._images.is_scaled:
            try:
                return media_of(scaled(file.data, *size, is_jpeg=is_jpeg), "image")
            except ValueError as error:
                raise DatasetError(f"dataset.images.folder: {file.name}: {error}") from None
        if place not in self._known:
            self._known[place] = media_of(file.data, "image")
        return self._known[place]


class _Sounds:
    """Generates the sounds of all requests, by number."""

    def __init__(self, sounds: Sounds, count: int, seed: int, files: Sequence[MediaFile]) -> None:
        self._sounds = sounds
        rng = generator(seed, Purpose.SOUND_LENGTHS)
        self._seconds = rng.normal(sounds.seconds.mean, sounds.seconds.stddev, size=count)
        rates, depths = sounds.sample_rates, sounds.depths
        self._rates = generator(seed, Purpose.SAMPLE_RATES).choice(rates, size=count)
        self._depths = generator(seed, Purpose.SAMPLE_DEPTHS).choice(depths, size=count)
        self._files = files
        self._chosen = chosen_files(sounds.sampling, len(files), count, seed, Purpose.SOUND_FILES)
        self._known: dict[int, Media] = {}

    def make(self, number: int, rng: np.random.Generator) -> Media:
        if self._files:
            place = self._chosen[number]
            if place not in self._known:
                self._known[place] = media_of(self._files[place].data, "audio")
            return self._known[place]
        seconds, rate = max(0.1, self._seconds[number]), int(self._rates[number])
        samples = noise_samples(seconds, rate, self._sounds.channels, rng)
        if self._sounds.format == "mp3":
            return media_of(mp3_of(samples, rate), "audio")
        return media_of(wav_of(samples, rate, int(self._depths[number])), "audio")


def chosen_files(
    sampling: Sampling, files: int, count: int, seed: int, purpose: Purpose
) -> list[int]:
    """Return the file of each of `count` pictures or sounds."""
    if not files:
        return []
    rng = generator(seed, purpose)
    if sampling == "random":
        return [int(place) for place in rng.integers(files, size=count)]
    if sampling == "sequential":
        return [number % files for number in range(count)]
    rounds = (rng.permutation(files).tolist() for _ in range(-(-count // files)))
    return [place for order in rounds for place in order][:count]


def check_media_size(
    turns: int, images: Images, sounds: Sounds, folders: MediaFolders = NO_FOLDERS
) -> None:
    """Raise DatasetError if the pictures and sounds of all requests exceed the memory
    limit."""
    width, height = images.size
    jpegs = {"jpeg": 1.0, "random": 0.5}.get(images.format, 0.0)
    picture = 3 * width.mean * height.mean * (1 - jpegs * (1 - COMPRESSED_SHARE))
    if folders.pictures and not images.is_scaled:
        picture = _mean_size(folders.pictures)
    sample = sum(sounds.depths) / len(sounds.depths) / 8
    if sounds.format == "mp3":
        sample = 2 * COMPRESSED_SHARE  # it is made of samples of 16 bits
    rate = sum(sounds.sample_rates) / len(sounds.sample_rates)
    sound = sample * sounds.seconds.mean * rate * sounds.channels
    if folders.sounds:
        sound = _mean_size(folders.sounds)
    # In base64, four characters encode three bytes.
    size = turns * (images.number * picture + sounds.number * sound) * 4 / 3
    if size > MAX_BYTES:
        raise DatasetError(
            f"dataset.entries: {turns:,} requests have {size / 2**30:,.1f} GiB of images and "
            f"sounds; expected at most {MAX_BYTES / 2**30:g} GiB: give fewer entries or smaller "
            "ones"
        )


def _mean_size(files: Sequence[MediaFile]) -> float:
    return sum(len(file.data) for file in files) / len(files)
