"""Programs that tests start as forks, and their end."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

WAIT_S = 60.0
TESTER = """
import os, sys
from pathlib import Path
from tests.support.forked_commands import ForkedCommand

words = ("mock-server", "--port", "0", "--json")
command = ForkedCommand(words, cwd=Path(sys.argv[1]), env=dict(os.environ))
print(command.pid, flush=True)
command.wait()
"""


def test_programs_of_a_killed_tester_end(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TESTER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "TESTS_FORK_TEMPLATE"},
    ) as tester:
        assert tester.stdout is not None
        program = os.pidfd_open(int(tester.stdout.readline()))
        tester.send_signal(signal.SIGKILL)
        assert select.select([program], [], [], WAIT_S)[0]
    os.close(program)
