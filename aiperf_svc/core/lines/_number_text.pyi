from typing import Any

from numpy.typing import NDArray

def filled(pieces: list[bytes], kinds: bytes, columns: list[NDArray[Any]], count: int) -> bytes: ...
