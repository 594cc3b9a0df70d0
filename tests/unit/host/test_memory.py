"""Memory of a process over many trials, as glibc's allocator manages it."""

import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from aiperf_svc.adapters.host.memory import give_back_memory
from aiperf_svc.domain.process_environment import PROCESS_ENVIRONMENT

ROOT = Path(__file__).parents[3]
PROGRAM = """
import os
from pathlib import Path
from threading import Thread
from aiperf_svc.adapters.host.memory import give_back_memory, use_one_heap

kept = []

def work():
    blocks = [b"x" * (100_000 + number) for number in range(500)]
    {keep}
    blocks.clear()

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

use_one_heap()
thread = Thread(target=work)
thread.start()
thread.join()
before = resident()
give_back_memory()
print(before - resident())
"""
"""Prints how many bytes a process returns to the kernel after a thread has freed 50 MB."""


class Node:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.myself = self


def test_objects_in_a_cycle_are_freed() -> None:
    found = weakref.ref(Node())
    give_back_memory()
    assert found() is None


@pytest.mark.parametrize("keep", ["", "kept.append(blocks[-1])"], ids=["the end", "a hole"])
def test_memory_freed_by_a_thread_is_returned(keep: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(keep=keep)],
        env=os.environ | PROCESS_ENVIRONMENT,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(result.stdout) > 40e6
