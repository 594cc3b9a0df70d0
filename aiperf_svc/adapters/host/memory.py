"""Memory of a process that runs many trials, as glibc's allocator manages it."""

import ctypes
import gc
from typing import Any

_M_ARENA_MAX = -8
"""In malloc.h: the parameter that limits the number of heaps."""


def use_one_heap() -> None:
    """Have threads that are started from now on use the first thread's heap.

    By default most threads get a heap of their own, whose highest free pages nothing returns to the
    kernel: between blocks that are kept, each trial would touch other pages.
    """
    mallopt = _allocator_function("mallopt")
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def give_back_memory() -> None:
    """Free objects that are only in reference cycles, and return free pages to the kernel. During a
    run the allocator keeps them (`domain/process_environment.py`)."""
    gc.collect()
    malloc_trim = _allocator_function("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _allocator_function(name: str) -> Any:
    """A function of glibc; None with another C library."""
    return getattr(ctypes.CDLL(None), name, None)
