"""The words of every response, and JSON as servers write it."""

import json

_TEXT = """
the quick model reads every word and writes one more token at a time while people wait for it to say
what they hope is true about long rivers small cities old machines new music cold winters warm bread
bright stars deep water open roads quiet books green hills and kind friends
"""
WORDS = _TEXT.split()
"""Token i of every response is word i of this list, round and round."""


def word(index: int) -> str:
    """The text of a token."""
    return (" " if index else "") + WORDS[index % len(WORDS)]


def compact(value: object) -> bytes:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
