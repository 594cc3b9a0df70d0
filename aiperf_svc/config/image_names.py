"""References to container images, and whether they always mean the same image."""

import re

_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}")


def check_digest(name: str) -> None:
    """Raise ValueError if the part of a reference after `@` is not a digest."""
    at = name.find("@")
    if at >= 0 and not _DIGEST.fullmatch(name[at:]):
        raise ValueError(f"{name!r}: expected @sha256: and 64 hexadecimal digits after the name")


def is_pinned(name: str) -> bool:
    """Return whether the reference names an image by its digest, which no registry can move."""
    return _DIGEST.search(name) is not None


def is_mutable(name: str) -> bool:
    """Return whether a registry may serve another image under this reference later. A name below
    `localhost/` is in no registry."""
    return not is_pinned(name) and not name.startswith("localhost/")
