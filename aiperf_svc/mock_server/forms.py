"""Parses forms, `multipart/form-data`, in which sounds are uploaded."""

import re

_PART = re.compile(
    rb'content-disposition: *form-data; *name="([^"]*)"(?:; *filename="([^"]*)")?', re.IGNORECASE
)


def parse_form(body: bytes) -> tuple[dict[str, str], dict[str, bytes]] | None:
    """The fields and the files of a form by their names; None if the body is none.

    Its boundary is known from its first line, so that equal bodies have equal responses.
    """
    line, ends, _ = body.partition(b"\r\n")
    if not ends or not line.startswith(b"--") or len(line) > 74:
        return None
    fields: dict[str, str] = {}
    files: dict[str, bytes] = {}
    parts = (b"\r\n" + body).split(b"\r\n" + line)
    if parts[-1] not in (b"--", b"--\r\n"):
        return None
    for part in parts[1:-1]:
        head, blank, content = part.partition(b"\r\n\r\n")
        found = _PART.search(head)
        if found is None or not blank:
            return None
        name = found[1].decode("utf-8", "replace")
        if found[2] is None:
            fields[name] = content.decode("utf-8", "replace")
        else:
            files[name] = content
    return fields, files
