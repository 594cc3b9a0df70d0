"""Reads the images and audio files of a dataset, and the media folders of synthetic prompts."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from aiperf_svc.config.dataset import Dataset
from aiperf_svc.config.user_files import read_file
from aiperf_svc.core.datasets import media as core
from aiperf_svc.core.datasets.base import PromptConversation
from aiperf_svc.core.datasets.media import MediaFile, MediaFolders, media_of
from aiperf_svc.core.endpoints.base import Media
from aiperf_svc.domain.errors import DatasetError
from aiperf_svc.domain.number_text import size_text

MAX_BYTES = 64 * 2**20
"""Maximum size of an image or audio file: servers refuse larger bodies."""
_URLS = ("http://", "https://", "data:")


def with_files(entries: Sequence[PromptConversation], folder: Path) -> list[PromptConversation]:
    """Return entries with their images and audio files read; paths are relative to `folder`. URLs
    of images stay URLs. Raises DatasetError with the line and the file."""
    known: dict[tuple[str, str], tuple[Media, int]] = {}
    left = core.MAX_BYTES

    def read(media: Media, place: str) -> Media:
        kind = media.type.partition("/")[0]
        if media.is_image and media.reference.startswith(_URLS):
            return media
        nonlocal left
        key = kind, media.reference
        if key not in known:
            found, data = _read(folder / media.reference, kind, place, media.reference)
            known[key] = found, len(data)
        found, size = known[key]
        # Each request holds a copy.
        left -= size
        if left < 0:
            maximum = size_text(core.MAX_BYTES)
            raise DatasetError(
                f"{place}: {media.reference}: the images and sounds of the requests up to this "
                f"one exceed {maximum}, the limit in memory; give fewer entries or smaller files"
            )
        return found

    completed = []
    for entry in entries:
        if any(turn.prompt.media for turn in entry.turns):
            turns = []
            for turn in entry.turns:
                media = tuple(read(each, entry.place) for each in turn.prompt.media)
                prompt = msgspec.structs.replace(turn.prompt, media=media)
                turns.append(msgspec.structs.replace(turn, prompt=prompt))
            entry = msgspec.structs.replace(entry, turns=tuple(turns))
        completed.append(entry)
    return completed


def _read(path: Path, kind: str, place: str, name: str) -> tuple[Media, bytes]:
    """Return an image or audio file and its bytes. Raises DatasetError with the file's name."""
    try:
        data = read_file(path, MAX_BYTES)
        return media_of(data, kind), data
    except OSError as error:
        raise DatasetError(f"{place}: {name}: {error.strerror}") from error
    except ValueError as error:
        raise DatasetError(f"{place}: {name} {error}") from error


def read_folders(dataset: Dataset) -> MediaFolders:
    """Read the media folders of a synthetic dataset, if it has any. Raises DatasetError with the
    name of a file that is not an image or audio file."""
    images, sounds = dataset.images, dataset.sounds
    return MediaFolders(
        _read_folder(images.folder, "image", "dataset.images.folder") if images.number else (),
        _read_folder(sounds.folder, "audio", "dataset.sounds.folder") if sounds.number else (),
    )


def _read_folder(name: str | None, kind: str, key: str) -> tuple[MediaFile, ...]:
    """Read the files of a folder, sorted by name, without hidden files and subfolders."""
    if name is None:
        return ()
    folder = Path(name).expanduser()
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DatasetError(f"{key}: {folder}: {error.strerror}") from error
    found, left = [], core.MAX_BYTES
    for path in paths:
        if path.is_dir():
            continue
        _, data = _read(path, kind, key, str(path))
        found.append(MediaFile(str(path), data))
        left -= len(data)
        if left < 0:
            raise DatasetError(
                f"{key}: {folder}: over {size_text(core.MAX_BYTES)} of files, the limit in "
                "memory; name a folder with fewer or smaller ones"
            )
    if not found:
        raise DatasetError(f"{key}: {folder} has no files; expected those to send")
    return tuple(found)
