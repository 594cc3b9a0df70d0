"""A command disables the garbage collector during imports and enables it for its work."""

import gc
import subprocess
import sys

import pytest

USUAL = gc.get_threshold()
RUN = """
import gc, signal, sys
from aiperf_svc.__main__ import main
from aiperf_svc.adapters.host import garbage_collection
sys.argv = {words!r}
before = gc.get_stats()[0]["collections"]
main()
print(gc.get_stats()[0]["collections"] - before, file=sys.stderr)
"""
HELD_BACK = """
import gc
from aiperf_svc.adapters.host.garbage_collection import (
    IMPORTED, delay_collection, resume_collection
)
delay_collection()
{then}
print(*gc.get_threshold())
"""
SERVED = """
import argparse, gc
from aiperf_svc.adapters.host.garbage_collection import delay_collection
from aiperf_svc.cli.commands import servers
from aiperf_svc.mock_server.config import add_arguments
servers.serve = lambda _: print(len(gc.callbacks))
delay_collection()
parser = argparse.ArgumentParser()
add_arguments(parser)
servers.mock_server(parser.parse_args([]))
"""


def output_of(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return (done.stderr or done.stdout).strip()


def test_command_is_imported_without_a_search_for_garbage() -> None:
    words = ["aiperf-svc", "profile", "-u", "h", "-m", "m", "--concurrency", "1", "--dry-run"]
    assert output_of(RUN.format(words=words)) == "0"


@pytest.mark.parametrize(
    "then", ["kept = [[] for _ in range(IMPORTED + 1)]", "resume_collection()"]
)
def test_garbage_is_collected_as_usual_after_the_imports(then: str) -> None:
    assert output_of(HELD_BACK.format(then=then)) == " ".join(map(str, USUAL))


def test_mock_server_has_no_callback_of_the_collector() -> None:
    """A signal that arrives while a callback runs would be lost."""
    assert output_of(SERVED) == "0"
