"""Network namespaces of tests, and what becomes of those whose test was killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.namespaces import can_make_namespaces, namespaces

pytestmark = pytest.mark.skipif(not can_make_namespaces(), reason="needs root, ip, tc and iperf3")
KILLED = """
import os, signal, sys
from pathlib import Path
from tests.support.namespaces import namespaces
with namespaces(Path(sys.argv[1]), ["1gbit"]):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def there(pid: int) -> set[str]:
    """Names of namespaces and links of a test's process."""
    listed = (*Path("/run/netns").glob("q*"), *Path("/sys/class/net").glob("q*"))
    return {each.name for each in listed if each.name.startswith(f"q{pid}-")}


def test_next_test_removes_namespaces_of_a_killed_one(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    killed = subprocess.Popen([sys.executable, "-c", KILLED, str(first)])
    killed.wait()
    assert there(killed.pid) == {f"q{killed.pid}-{what}" for what in ("0", "br", "v0")}
    with namespaces(second, ["1gbit"]):
        assert there(killed.pid) == set()
        assert there(os.getpid()) == {f"q{os.getpid()}-{what}" for what in ("0", "br", "v0")}
    assert there(os.getpid()) == set()
