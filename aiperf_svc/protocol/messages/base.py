"""What all messages have in common."""

import msgspec

VERSION = 1
"""First byte of every message. Another version is refused with an error that names both."""


class Value(msgspec.Struct, frozen=True, array_like=True):
    """Base of the parts of messages."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    run_id: str
    sender: str
    """Id of the service that sent it, e.g. `worker-3`."""
    epoch: int
    """Wall-clock nanoseconds at which the sending process started."""
