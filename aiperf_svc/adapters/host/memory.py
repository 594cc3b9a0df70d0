"""Memory of a process that runs many trials, under glibc's allocator."""

import ctypes
import gc
from typing import Any

_M_ARENA_MAX = -8
"""M_ARENA_MAX of malloc.h: the parameter that limits the number of heaps."""


def use_one_heap() -> None:
    """Make threads that start from now on share the first thread's heap.

    By default most threads get their own heap, and glibc does not return its topmost free pages to
    the kernel. Each trial would then touch new pages between the blocks that stay allocated.
    """
    mallopt = _allocator_function("mallopt")
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def give_back_memory() -> None:
    """Free reference cycles and return free pages to the kernel. During a run the allocator keeps
    them (`domain/process_environment.py`)."""
    gc.collect()
    malloc_trim = _allocator_function("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _allocator_function(name: str) -> Any:
    """Return a function of glibc; None with another C library."""
    return getattr(ctypes.CDLL(None), name, None)
