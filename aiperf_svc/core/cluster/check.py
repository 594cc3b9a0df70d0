"""The result of one check of a cluster."""

from typing import Literal

import msgspec

State = Literal["ok", "warning", "failed", "not checked"]


class Check(msgspec.Struct, frozen=True):
    """The result of one check. `failed` means that the stack cannot start as planned."""

    name: str
    state: State
    detail: str
    """Findings, with values."""
    remedy: str = ""
    """Advice on what to change; empty if none."""
    is_config_error: bool = False
    """True if it failed because the config exceeds what the cluster has, such as its number of
    nodes."""
