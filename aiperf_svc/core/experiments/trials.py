"""A trial: one run of an experiment."""

import hashlib
import re
from typing import Any

import msgspec

LONGEST_FOLDER = 120
"""Longest name of a trial's folder, in characters. All of them are one byte each."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._=,+-]+")


class Trial(msgspec.Struct, frozen=True):
    """One run of an experiment."""

    number: int
    """From 1, in the order of running."""
    parameters: dict[str, Any]
    """Dotted config key to a value as a user writes it."""
    repetition: int = 1
    """From 1."""

    @property
    def folder(self) -> str:
        """Name of the trial's folder: `003-load.concurrency=4,dataset.input_tokens.mean=128-r2`."""
        head, tail = f"{self.number:03}", f"-r{self.repetition}"
        named = ",".join(f"{key}={value}" for key, value in self.parameters.items())
        middle = f"-{_UNSAFE.sub('_', named)}" if named else ""
        if len(head + middle + tail) > LONGEST_FOLDER:
            digest = hashlib.sha256(named.encode()).hexdigest()[:8]
            room = LONGEST_FOLDER - len(head) - len(tail) - len(digest) - 1
            middle = f"{middle[:room]}-{digest}"
        return head + middle + tail
