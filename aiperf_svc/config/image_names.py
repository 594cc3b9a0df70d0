"""References to container images, and whether they always mean the same image."""

import re

from aiperf_svc.domain.errors import ConfigError

_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}")


def check_digest(name: str) -> None:
    """Raise ValueError if the part of a reference after `@` is not a digest."""
    at = name.find("@")
    if at >= 0 and not _DIGEST.fullmatch(name[at:]):
        raise ValueError(f"{name!r}: expected @sha256: and 64 hexadecimal digits after the name")


def check_fixed(name: str) -> None:
    """Raise ValueError if a reference has neither a tag nor a digest, or a broken digest."""
    check_digest(name)
    last = name.rpartition("/")[2]
    if "@" not in last and (":" not in last or last.endswith(":latest")):
        raise ValueError(f"{name!r} names no fixed version: add a tag or a digest")


def is_pinned(name: str) -> bool:
    """Return whether the reference names an image by its digest, which no registry can move."""
    return _DIGEST.search(name) is not None


def is_mutable(name: str) -> bool:
    """Return whether a registry may serve another image under this reference later. A name below
    `localhost/` is in no registry."""
    return not is_pinned(name) and not name.startswith("localhost/")


def check_replacement(configured: str | None, image: str, *, key: str, variable: str) -> str:
    """Return a note if the image of an environment variable replaces the one of the config, else
    an empty text. Raises ConfigError if the config pins its image by a digest."""
    if configured is None or image == configured:
        return ""
    if is_pinned(configured):
        raise ConfigError(
            f"{variable} is {image}, but {key} pins another image by its digest: {configured}; "
            f"unset {variable} to use the pinned image, or change {key} in the file"
        )
    return f"{variable} replaces {key}: {image} in place of {configured}"
