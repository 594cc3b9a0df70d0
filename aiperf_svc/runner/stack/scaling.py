"""Watches the replicas of a stack's server while its run is followed, and reports them to it.

The report holds all that is known and is sent again each second, so that a lost one costs nothing.
"""

import contextlib
import re
from time import time_ns

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.watching.scaling_watch import ScalingWatch, WatchedServer
from aiperf_svc.adapters.host.tasks import Tasks
from aiperf_svc.adapters.results_api.client import ResultsClient
from aiperf_svc.adapters.results_api.run_api import ApiRefused, ApiUnavailable
from aiperf_svc.config.scaling import Scaling
from aiperf_svc.config.target import TargetPods
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.runner.follower import Follower
from aiperf_svc.runner.start_gate import clock_ahead_ns

SEND_S = 1.0


class ScalingReporter:
    """Watches one server for a run."""

    def __init__(self, cluster: Cluster, client: ResultsClient, server: WatchedServer) -> None:
        self._cluster, self._client, self._server = cluster, client, server

    async def __call__(self, follower: Follower) -> None:
        """Report until this is cancelled."""
        ahead_ns = await clock_ahead_ns(self._client)
        watch = ScalingWatch(self._cluster, self._server, clock_ns=lambda: time_ns() + ahead_ns)
        noted = set[str]()
        async with Tasks() as tasks:
            running = tasks.start(watch.run(), "watch replicas")
            while True:
                # What the watch has not handled yet is not covered.
                report = watch.log.report(time_ns() + ahead_ns if watch.has_begun.is_set() else 0)
                for text in set(report.not_watched) - noted:
                    follower.display.note(f"scaling: not watched: {text}")
                noted.update(report.not_watched)
                with contextlib.suppress(ApiUnavailable, ApiRefused):
                    await self._client.set_scaling(report)
                if await tasks.first(SEND_S):
                    running.result()


def watched_server(pods: TargetPods, scaling: Scaling) -> WatchedServer:
    """Return what is watched of these pods. Raises ConfigError."""
    if pods.port is None:
        raise ConfigError("scaling.pods.port: give the port of the pods' page of metrics")
    return WatchedServer(
        namespace=pods.namespace,
        labels=pods.labels,
        port=pods.port,
        path=scaling.metrics_path,
        loaded=re.compile(scaling.loaded) if scaling.loaded is not None else None,
    )
