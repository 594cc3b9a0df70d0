"""Reads the pictures and sounds that a dataset's file names."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from aiperf_svc.core.datasets.base import PromptConversation
from aiperf_svc.core.datasets.media import media_of
from aiperf_svc.core.endpoints.base import Media
from aiperf_svc.domain.errors import DatasetError

MOST_BYTES = 64 * 2**20
"""Largest picture or sound: servers refuse larger bodies."""
_URLS = ("http://", "https://", "data:")


def with_files(entries: Sequence[PromptConversation], folder: Path) -> list[PromptConversation]:
    """Return entries whose pictures and sounds have been read, paths being those from `folder`. A
    URL of a picture stays one. Raises DatasetError that names the line and the file."""
    known: dict[tuple[str, str], Media] = {}

    def read(media: Media, place: str) -> Media:
        kind = media.type.partition("/")[0]
        if media.is_image and media.reference.startswith(_URLS):
            return media
        key = kind, media.reference
        if key not in known:
            known[key] = _read(folder / media.reference, kind, place, media.reference)
        return known[key]

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


def _read(path: Path, kind: str, place: str, name: str) -> Media:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise DatasetError(f"{place}: {name}: over {MOST_BYTES // 2**20} MiB")
        return media_of(path.read_bytes(), kind)
    except OSError as error:
        raise DatasetError(f"{place}: {name}: {error.strerror}") from error
    except ValueError as error:
        raise DatasetError(f"{place}: {name} {error}") from error
