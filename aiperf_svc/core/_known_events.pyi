from array import array
from collections.abc import Mapping

from aiperf_svc.core.endpoints.base import Delta

def take_known(
    data: bytes,
    at: int,
    stop: int,
    common: bytes,
    known: Mapping[bytes, Delta],
    found: list[tuple[Delta, int]],
) -> int: ...
def take_plain(
    events: list[tuple[Delta, int]],
    place: int,
    ends: list[int],
    stamps: list[int],
    read: int,
    last_end: int,
    times: array[int],
) -> tuple[int, int, int]: ...
