from collections.abc import Mapping

def take_tokens(
    data: bytes,
    at: int,
    stop: int,
    between: bytes,
    known: Mapping[bytes, str],
    ends: memoryview,
    stamps: memoryview,
    read: int,
    last_wall_ns: int,
    texts: list[str] | None,
) -> tuple[int, int, bytes, int]: ...
