"""Controllers that run next to the cluster while a test uses their types."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.stack.commands import run
from tests.support.stack.real_cluster import TOOLS, Cluster

BUILD_S = 1800.0
"""Time limit for a controller to start. It is built the first time."""


@contextmanager
def controller(cluster: Cluster, name: str) -> Iterator[None]:
    """Run a controller in the cluster: `kueue`, or `lws` for LeaderWorkerSets."""
    if not cluster.is_ours:
        pytest.skip(f"E2E_CONTEXT names a cluster, where the tests do not install {name}")
    try:
        run((str(TOOLS / "controller-up"), name), environ=cluster.environ, timeout_s=BUILD_S)
        yield
    finally:
        # Without the controller, its webhooks would prevent new pods.
        run((str(TOOLS / "controller-down"), name), environ=cluster.environ, timeout_s=300.0)
