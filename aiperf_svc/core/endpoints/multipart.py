"""Bodies of `multipart/form-data` (RFC 7578), for APIs with file uploads.

All requests of a run share a boundary, which is part of their common head. No part may contain it.
"""

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from aiperf_svc.domain.json_objects import Json

BOUNDARY: Final = b"aiperf-svc-f7e1b3a95c2d4860"
CONTENT_TYPE: Final = f"multipart/form-data; boundary={BOUNDARY.decode()}"
_BEGIN: Final = b"--" + BOUNDARY + b"\r\n"
_END: Final = b"--" + BOUNDARY + b"--\r\n"
_END_OF_HEAD: Final = b"\r\n\r\n"


class FilePart(NamedTuple):
    """A file to upload."""

    field: str
    name: str
    type: str
    """Media type."""
    content: bytes


def form_body(fields: Mapping[str, Any], file: FilePart) -> bytes:
    """Return a body with these fields, in order, and a file. A list becomes one part per element,
    and an object becomes JSON. Raises ValueError if a part contains the boundary."""
    parts = [
        (_disposition(name), _text(value).encode())
        for name, values in fields.items()
        for value in (values if isinstance(values, list) else [values])
    ]
    head = f"{_disposition(file.field)}; filename={_quoted(file.name)}\r\nContent-Type: {file.type}"
    parts.append((head, file.content))
    if any(BOUNDARY in head.encode() or BOUNDARY in content for head, content in parts):
        raise ValueError(f"contains {BOUNDARY.decode()!r}, which ends a part of a request")
    return (
        b"".join(
            _BEGIN + head.encode() + _END_OF_HEAD + content + b"\r\n" for head, content in parts
        )
        + _END
    )


def is_form(body: bytes) -> bool:
    """Return whether a body was made by `form_body`."""
    return body.startswith(_BEGIN)


def as_json(body: bytes) -> bytes:
    """Return a body of `form_body` as a JSON object, for people: fields by name, and the file as an
    object with its content in base64."""
    members: Json = {}
    for name, file_name, kind, content in _parts(body):
        value: Any = content.decode("utf-8", "replace")
        if file_name:
            value = {"filename": file_name, "content_type": kind}
            value["b64_data"] = base64.b64encode(content).decode()
        if name in members:
            earlier = members[name]
            value = [*(earlier if isinstance(earlier, list) else [earlier]), value]
        members[name] = value
    return msgspec.json.encode(members)


def _parts(body: bytes) -> Iterator[tuple[str, str, str, bytes]]:
    """Yield name, file name, media type and content of each part."""
    for part in body.removesuffix(_END).split(_BEGIN)[1:]:
        head, _, content = part.removesuffix(b"\r\n").partition(_END_OF_HEAD)
        disposition, _, kind = head.decode().partition("\r\nContent-Type: ")
        name, _, file_name = disposition.partition("; filename=")
        yield _unquoted(name.partition("; name=")[2]), _unquoted(file_name), kind, content


def _disposition(name: str) -> str:
    return f"Content-Disposition: form-data; name={_quoted(name)}"


_ESCAPES: Final = (('"', "%22"), ("\r", "%0D"), ("\n", "%0A"))
"""Characters that a name cannot contain, and their encoding in browsers."""


def _quoted(name: str) -> str:
    for character, escape in _ESCAPES:
        name = name.replace(character, escape)
    return f'"{name}"'


def _unquoted(text: str) -> str:
    name = text.strip('"')
    for character, escape in _ESCAPES:
        name = name.replace(escape, character)
    return name


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
