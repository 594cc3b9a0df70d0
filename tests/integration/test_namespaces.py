"""Network namespaces of tests, and the removal of those of killed tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.namespaces import NEEDS, can_make_namespaces, names_of, namespaces

pytestmark = pytest.mark.skipif(not can_make_namespaces(), reason=NEEDS)
KILLED = """
import os, signal, sys
from pathlib import Path
from tests.support.namespaces import names_of, namespaces
with namespaces(Path(sys.argv[1]), ["1gbit"]):
    print(*sorted(names_of(os.getpid())), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_next_test_removes_namespaces_of_a_killed_one(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    command = [sys.executable, "-c", KILLED, str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        output, _ = killed.communicate()
    # Another test that starts now may remove them too.
    assert output.split() == [f"q{killed.pid}-{what}" for what in ("0", "br", "v0")]
    with namespaces(second, ["1gbit"]):
        assert names_of(killed.pid) == set()
        assert names_of(os.getpid()) == {f"q{os.getpid()}-{what}" for what in ("0", "br", "v0")}
    assert names_of(os.getpid()) == set()
