"""Suggests the valid name that an unknown one probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """Return the valid name that was probably meant, or None."""
    by_plain = {_plain(candidate): candidate for candidate in valid}
    close = get_close_matches(_plain(name), by_plain, n=1, cutoff=0.6)
    return by_plain[close[0]] if close else None


def did_you_mean(name: str, valid: Iterable[str], otherwise: str = "") -> str:
    """Return `; did you mean X?`. If no valid name is similar, return `otherwise` after a
    semicolon, or an empty text."""
    close = nearest(name, valid)
    if close:
        return f"; did you mean {close}?"
    return f"; {otherwise}" if otherwise else ""


def _plain(name: str) -> str:
    return name.replace("-", "_").lower()
