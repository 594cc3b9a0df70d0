"""Shell texts for containers, run by a shell of this machine."""

import subprocess
from pathlib import Path

from aiperf_svc.adapters.events.pod_commands import BUSY
from tests.support.running_command import wait_ended


def test_busy_loops_end_with_the_input() -> None:
    command = ("sh", "-c", BUSY)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write("2\n")
        shell.stdin.flush()
        assert shell.stdout.readline() == "started\n"
        children = Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split()
        shell.stdin.close()
        assert int(shell.stdout.readline()) >= 0
        shell.wait()
    assert len(children) == 2
    for pid in children:
        wait_ended(int(pid))
