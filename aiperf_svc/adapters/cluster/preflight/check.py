"""The result of one preflight check."""

from typing import Literal

import msgspec

State = Literal["ok", "warning", "failed", "not checked"]


class Check(msgspec.Struct, frozen=True):
    """One check: `failed` means that the stack cannot come up as planned."""

    name: str
    state: State
    detail: str
    """What was found, with values."""
    remedy: str = ""
    """What to do about it."""
