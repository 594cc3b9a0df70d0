"""Scheduler settings that a process requests from the kernel, tested in separate processes."""

import os
import subprocess
import sys

import pytest

from aiperf_svc.adapters.host import scheduling
from aiperf_svc.adapters.host.scheduling import LOW_PRIORITY_NICE, PromptWhileIdle

NICE = os.getpriority(os.PRIO_PROCESS, 0)
LOOK = """
import os
from aiperf_svc.adapters.host import scheduling
{setup}
print(scheduling.{call} is not False, os.getpriority(os.PRIO_PROCESS, 0))
group = "/proc/self/autogroup"
print(open(group).read().split()[-1:] if os.path.exists(group) else [])
print([line.split()[-1] for line in open("/proc/self/sched") if line.startswith("se.slice")])
print(os.sched_getscheduler(0) == os.SCHED_RR | os.SCHED_RESET_ON_FORK)
"""


WITHOUT_RIGHTS = """
def refuse(*_): raise PermissionError
os.sched_setscheduler = refuse
"""


def may_be_real_time() -> bool:
    policy = os.sched_getscheduler(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return False
    os.sched_setscheduler(0, policy, os.sched_param(0))
    return True


def settings_after(call: str, *, has_session: bool = True, setup: str = "") -> list[str]:
    command = [sys.executable, "-c", LOOK.format(call=call, setup=setup)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, start_new_session=has_session
    )
    return done.stdout.splitlines()


def test_workers_slice_is_short_and_its_share_unchanged() -> None:
    done, _, slices, is_real_time = settings_after("raise_priority(before_all=False)")
    assert done == f"True {NICE}"
    assert slices in ("['100000']", "[]")  # some kernels lack this line of the file
    assert is_real_time == "False"


def test_before_all_sets_real_time_or_short_slice() -> None:
    call = "raise_priority(before_all=True)"
    *_, is_real_time = settings_after(call)
    assert is_real_time == str(may_be_real_time())
    _, _, slices, is_real_time = settings_after(call, setup=WITHOUT_RIGHTS)
    assert slices in ("['100000']", "[]")
    assert is_real_time == "False"


def test_record_processor_and_session_have_low_priority() -> None:
    done, group, *_ = settings_after("lower_priority()")
    assert done == f"True {max(NICE, LOW_PRIORITY_NICE)}"
    assert group in ("['10']", "[]")  # kernels without autogroups have no file


def test_shared_session_keeps_its_priority() -> None:
    done, group, *_ = settings_after("lower_priority()", has_session=False)
    assert done == f"True {max(NICE, LOW_PRIORITY_NICE)}"
    assert group in ("['0']", "[]")


class BusyGroup:
    """An autogroup of which the kernel takes the third change."""

    def __init__(self) -> None:
        self.nice, self.refusals = "0", 2

    def read_text(self) -> str:
        return f"/autogroup-1 nice {self.nice}\n"

    def write_text(self, nice: str) -> None:
        if self.refusals:
            self.refusals -= 1
            raise BlockingIOError
        self.nice = nice


def test_priority_of_a_session_awaits_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(scheduling, "sleep", pauses.append)
    group = BusyGroup()
    for _ in range(2):
        scheduling._lower_group(group)  # type: ignore[arg-type]
    assert group.nice == str(LOW_PRIORITY_NICE)
    assert pauses == [scheduling.TURN_S] * 2


def test_busy_worker_drops_real_time_priority_until_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []

    def record(*, before_all: bool) -> bool:
        calls.append(before_all)
        return True

    monkeypatch.setattr(scheduling, "raise_priority", record)
    prompt = PromptWhileIdle(cpu_ns=0, now_mono_ns=0)
    cpu_ns = 0
    for look, share in enumerate((0.1, 0.6, 0.9, 0.4, 0.2, 0.4, 0.1), start=1):
        cpu_ns += round(share * 50e6)
        prompt.adapt(cpu_ns=cpu_ns, now_mono_ns=look * 50_000_000)
    assert calls == [True, False, True]
