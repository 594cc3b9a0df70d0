"""Reads a JSON file whose `schema_version` says whether this version understands it."""

from pathlib import Path
from typing import TypeVar

import msgspec

from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.foreign_text import one_line

Content = TypeVar("Content")


class _Head(msgspec.Struct):
    schema_version: str
    version: str = "unknown"


def read_versioned(
    path: Path, content: type[Content], *, schema: str, remedy: str, absent: str = ""
) -> Content:
    """Return the content of a file with this schema. Raises ConfigError.

    `remedy` comes before the version that wrote a file of another schema, and `absent` follows what
    is wrong with a file that cannot be read.
    """
    try:
        data = path.read_bytes()
        head = msgspec.json.decode(data, type=_Head)
        if head.schema_version != schema:
            raise ConfigError(
                f"{path}: its schema is {one_line(head.schema_version)!r}, expected {schema!r}; "
                f"{remedy} the version that wrote it ({one_line(head.version)})"
            )
        return msgspec.json.decode(data, type=content)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}{absent}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: broken: {error}") from error
