"""A process that must not outlive its parent, with real parents."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aiperf_svc.adapters.events.local_processes import _process
from aiperf_svc.adapters.host import processes
from aiperf_svc.adapters.host.child_processes import die_with_parent, is_alive
from aiperf_svc.adapters.pulumi.cli import _session
from aiperf_svc.adapters.pulumi.project import is_pulumi
from aiperf_svc.domain.errors import EnvironmentProblem

CHILD = """
import os, signal
from aiperf_svc.adapters.host.child_processes import die_with_parent
die_with_parent()
os.write(1, b"ready")
signal.sigwait([signal.SIGUSR1])
"""
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}])
child.wait()
"""


def test_a_child_ends_when_its_parent_is_killed() -> None:
    read_end, write_end = os.pipe()
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=write_end)
    os.close(write_end)
    try:
        assert os.read(read_end, 100) == b"ready"
        parent.send_signal(signal.SIGKILL)
        # The child holds the other end of the pipe, so the pipe ends with it.
        readable, _, _ = select.select([read_end], [], [], 30)
        assert readable
        assert os.read(read_end, 100) == b""
    finally:
        parent.kill()
        parent.wait()
        os.close(read_end)


ORPHAN = """
import os, signal, sys
from aiperf_svc.adapters.host.child_processes import die_with_parent
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
os.environ["AIPERF_PARENT_PID"] = str(os.getppid())
die_with_parent()
os.write(1, b"ready")
if sys.argv[1] == "outlives":
    signal.pause()
"""


@pytest.mark.parametrize(("ending", "is_left"), [("outlives", False), ("ends before", True)])
def test_folder_of_a_killed_parent_is_removed(tmp_path: Path, ending: str, is_left: bool) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "socket").touch()
    read_end, write_end = os.pipe()
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.replace(repr(CHILD), f"{ORPHAN!r}, {ending!r}")],
        stdout=write_end,
        env={**os.environ, "AIPERF_STATE_DIR": str(folder)},
    )
    os.close(write_end)
    try:
        assert os.read(read_end, 100) == b"ready"
        if ending == "outlives":
            parent.send_signal(signal.SIGKILL)
        readable, _, _ = select.select([read_end], [], [], 30)
        assert readable
        assert os.read(read_end, 100) == b""
        assert folder.exists() is is_left
    finally:
        parent.kill()
        parent.wait()
        os.close(read_end)


def test_already_gone_parent_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiperf_svc.adapters.host.child_processes.ctypes.CDLL", _Library)
    monkeypatch.setenv("AIPERF_PARENT_PID", str(os.getppid()))
    die_with_parent()
    monkeypatch.setenv("AIPERF_PARENT_PID", "999999999")
    with pytest.raises(EnvironmentProblem, match="999999999"):
        die_with_parent()


class _Library:
    """Prevents the tests' own process from dying with its parent."""

    def __init__(self, name: object) -> None:
        pass

    def prctl(self, *args: int) -> int:
        return 0


def test_names_of_processes_may_be_any_bytes() -> None:
    # The kernel truncates a name after 15 bytes, even within a character.
    own = Path("/proc/self/comm")
    name = own.read_bytes().rstrip(b"\n")
    own.write_bytes(b"\xe3\x83")
    try:
        assert is_alive(os.getpid())
        assert os.getpgrp() in processes._living_groups()
        assert os.getpid() in _session(os.getsid(0))
        assert not is_pulumi(os.getpid())
        assert _process(os.getpid()) is not None
    finally:
        own.write_bytes(name)


ADOPTING = """
import os, subprocess
from aiperf_svc.adapters.host.child_processes import adopt_orphans, end_children, reap_children

def orphan(command):
    script = f"setsid {command} <&3 >/dev/null & echo $!"
    shell = subprocess.run(["sh", "-c", f"exec 3<&{held[0]}; {script}"], pass_fds=held[:1],
                           stdout=subprocess.PIPE)
    return int(shell.stdout)

with open("/proc/self/comm", "wb") as name:  # Truncated as the kernel may do it.
    name.write(b"\\xe3\\x83")
adopt_orphans(True)
held = os.pipe()
ended = orphan("cat")
os.close(held[1])
os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
reap_children()
print(os.path.exists(f"/proc/{ended}"))
daemon, other = orphan("sleep 1000"), orphan("sleep 1000")
reap_children()
print(os.path.exists(f"/proc/{daemon}"))
end_children(keep=other)
print(os.path.exists(f"/proc/{daemon}"), os.path.exists(f"/proc/{other}"))
end_children()
print(os.path.exists(f"/proc/{other}"))
"""


def test_adopted_processes_are_reaped_and_ended() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADOPTING], stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["False", "True", "False", "True", "False"]
