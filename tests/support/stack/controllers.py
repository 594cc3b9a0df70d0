"""Controllers that run beside the cluster while a test uses their types."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.stack.commands import run
from tests.support.stack.real_cluster import TOOLS, Cluster

BUILD_S = 1800.0
"""Longest time until a controller is there: the first time it is built."""


@contextmanager
def controller(cluster: Cluster, name: str) -> Iterator[None]:
    """Add a controller to the cluster: `kueue`, or `lws` for LeaderWorkerSets."""
    if not cluster.is_ours:
        pytest.skip(f"E2E_CONTEXT names a cluster, to which no {name} is added")
    try:
        run((str(TOOLS / "controller-up"), name), environ=cluster.environ, timeout_s=BUILD_S)
        yield
    finally:
        # Its webhooks without it would keep pods from being created.
        run((str(TOOLS / "controller-down"), name), environ=cluster.environ, timeout_s=300.0)
