"""What a process asks of the kernel's scheduler, asked by processes of their own."""

import subprocess
import sys

LOOK = """
import os
from aiperf_svc.adapters import scheduling
before = os.getpriority(os.PRIO_PROCESS, 0)
print(scheduling.{call}() is not False, os.getpriority(os.PRIO_PROCESS, 0) - before)
print([line.split()[-1] for line in open("/proc/self/sched") if line.startswith("se.slice")])
"""


def said(call: str) -> list[str]:
    command = [sys.executable, "-c", LOOK.format(call=call)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_a_worker_s_slice_is_short_and_its_share_the_same() -> None:
    done, slices = said("come_first")
    assert done == "True 0"
    assert slices in ("['100000']", "[]")  # kernels without the file's line take no notice


def test_a_record_processor_gives_way() -> None:
    assert said("give_way")[0] == "True 5"
