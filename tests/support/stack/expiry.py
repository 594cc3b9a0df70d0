"""Stacks that are ended by their deadline's pod. A `gc` that is given no names removes what has
outlived its deadline, whoever's it is: while a test has a stack end, no other may call it.

No time is waited for, since it would have to be longer than an `up` on a busy machine: the time to
live on the stack's root is lowered, and the pod, which reads it when it starts, started again.
"""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from aiperf_svc.plan.identity import COMPONENT_LABEL, STACK_LABEL, TTL_ANNOTATION
from tests.support.stack.real_cluster import Cluster

GONE_S = 240.0


def end_by_deadline(cluster: Cluster, stack: str, kind: str) -> None:
    """Have the stack's time be over, until the object of this kind is gone which takes all others
    along."""
    of_stack = ("-A", "-l", f"{STACK_LABEL}={stack}")
    of_pod = ("-A", "-l", f"{STACK_LABEL}={stack},{COMPONENT_LABEL}=deadline")
    with _turn(fcntl.LOCK_SH):
        created = (
            each["metadata"]["creationTimestamp"] for each in cluster.objects(kind, *of_stack)
        )
        age = datetime.now(UTC) - datetime.fromisoformat(min(created))
        ttl = f"{TTL_ANNOTATION}={age.total_seconds():.0f}"
        cluster.kubectl("annotate", kind, *of_stack, "--overwrite", ttl)
        cluster.kubectl("delete", "pods", *of_pod, "--wait=false")
        deadline = time.monotonic() + GONE_S
        # `kubectl wait` fails if the object is gone already.
        while cluster.objects(kind, *of_stack):
            assert time.monotonic() < deadline, f"{kind} of {stack} is still there"
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
