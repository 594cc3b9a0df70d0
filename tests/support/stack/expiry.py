"""Stacks that end by their own deadline. A `gc` that is given no names removes what has outlived
its deadline, whoever's it is: while a test waits for such an end, no other may call it.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_stack import Config

TTL_S = 75
"""Longer than an `up` takes while other stacks come up."""
READY_S, LOAD_S = 20, 15
"""How long pods and load may take: all of it together is less than the time to live."""


def short_lived(benchmark: Config) -> None:
    """Change a stack's file: it removes itself soon."""
    deployment = benchmark["deployment"]
    deployment |= {"ttl": f"{TTL_S}s", "ready_timeout": f"{READY_S}s"}
    deployment["target"]["ready_timeout"] = f"{READY_S}s"
    benchmark["load"] |= {"duration": f"{LOAD_S}s", "grace_period": "2s"}
    benchmark["load"]["warmup"]["grace_period"] = "2s"


def wait_for_its_end(cluster: Cluster, stack: str, kind: str) -> None:
    """Until the object of this kind is gone which takes all others of the stack along."""
    with _turn(fcntl.LOCK_SH):
        label = ("-l", f"aiperf.dev/stack={stack}")
        gone = ("wait", kind, "-A", *label, "--for=delete", f"--timeout={2 * TTL_S}s")
        cluster.kubectl(*gone, timeout_s=2.5 * TTL_S)
        assert cluster.left_of(stack) == []


@contextmanager
def nobody_ends() -> Iterator[None]:
    """While no stack of a test is about to end by its deadline."""
    with _turn(fcntl.LOCK_EX):
        yield


@contextmanager
def _turn(kind: int) -> Iterator[None]:
    """A turn among all test processes: of many, or of one alone."""
    with Path(__file__).open() as lock:
        fcntl.flock(lock, kind)
        yield
