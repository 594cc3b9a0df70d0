"""Ends stacks through their deadline pod. `gc` without names removes every expired stack, whoever
owns it, so no other test may call it while a test lets a stack expire.

Tests do not wait for a real deadline, which would have to be longer than an `up` on a busy machine.
They lower the time to live on the stack's root and restart the pod, which reads it when it starts.
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
    """Let the stack expire and wait until its root object of this kind is gone."""
    of_stack = ("-A", "-l", f"{STACK_LABEL}={stack}")
    of_pod = ("-A", "-l", f"{STACK_LABEL}={stack},{COMPONENT_LABEL}=deadline")
    with _lock(fcntl.LOCK_SH):
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
def no_expiry() -> Iterator[None]:
    """Run the block while no test lets a stack expire."""
    with _lock(fcntl.LOCK_EX):
        yield


@contextmanager
def _lock(kind: int) -> Iterator[None]:
    """Hold a lock that all test processes share: many tests at once, or one exclusively."""
    with Path(__file__).open() as lock:
        fcntl.flock(lock, kind)
        yield
