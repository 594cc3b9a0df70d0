"""What a process asks of the kernel's scheduler, asked by processes of their own."""

import subprocess
import sys

LOOK = """
import os
from aiperf_svc.adapters import scheduling
before = os.getpriority(os.PRIO_PROCESS, 0)
print(scheduling.{call}() is not False, os.getpriority(os.PRIO_PROCESS, 0) - before)
group = "/proc/self/autogroup"
print(open(group).read().split()[-1:] if os.path.exists(group) else [])
print([line.split()[-1] for line in open("/proc/self/sched") if line.startswith("se.slice")])
"""


def said(call: str, *, has_session: bool = True) -> list[str]:
    command = [sys.executable, "-c", LOOK.format(call=call)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, start_new_session=has_session
    )
    return done.stdout.splitlines()


def test_a_worker_s_slice_is_short_and_its_share_the_same() -> None:
    done, _, slices = said("come_first")
    assert done == "True 0"
    assert slices in ("['100000']", "[]")  # kernels without the file's line take no notice


def test_a_record_processor_gives_way_and_its_session_does() -> None:
    done, group, _ = said("give_way")
    assert done == "True 10"
    assert group in ("['10']", "[]")  # kernels without autogroups have no file


def test_a_session_that_others_share_stays_as_it_is() -> None:
    done, group, _ = said("give_way", has_session=False)
    assert done == "True 10"
    assert group in ("['0']", "[]")
