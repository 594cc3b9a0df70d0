"""Formats of pictures and sounds that need a library of the extra `media`, which is imported only
for them."""

import io
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

JPEG_QUALITY = 75
"""The default of libjpeg."""


def jpeg_of(pixels: NDArray[np.uint8]) -> bytes:
    """Return an RGB picture, of shape (height, width, 3), as JPEG."""
    from PIL import Image

    return _written(Image.fromarray(pixels), is_jpeg=True)


def scaled(data: bytes, width: int, height: int, *, is_jpeg: bool) -> bytes:
    """Return a picture in another size, as JPEG or PNG. Raises ValueError if it cannot be read."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as picture:
            return _written(picture.convert("RGB").resize((width, height)), is_jpeg=is_jpeg)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"cannot be read as a picture: {error}") from None


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
