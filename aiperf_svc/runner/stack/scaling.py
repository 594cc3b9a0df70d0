"""Watches the replicas of a stack's server while its run is followed, and reports them to it.

The report holds all that is known and is sent again each second, so that a lost one costs nothing.
"""

import asyncio
import contextlib
import re
from time import time_ns

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.watching.scaling_watch import ScalingWatch, WatchedServer
from aiperf_svc.adapters.results_api.client import ResultsClient
from aiperf_svc.adapters.results_api.run_api import ApiRefused, ApiUnavailable
from aiperf_svc.config.scaling import Scaling
from aiperf_svc.config.target import TargetPods
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.runner.follower import Follower
from aiperf_svc.runner.start_gate import measure_offset

SEND_S = 1.0


class ScalingReporter:
    """Watches one server for a run."""

    def __init__(self, cluster: Cluster, client: ResultsClient, server: WatchedServer) -> None:
        self._cluster, self._client, self._server = cluster, client, server

    async def __call__(self, follower: Follower) -> None:
        """Report until this is cancelled."""
        ahead_ns = await self._clock_offset_ns()
        watch = ScalingWatch(self._cluster, self._server, clock_ns=lambda: time_ns() + ahead_ns)
        running = asyncio.create_task(watch.run(), name="watch replicas")
        noted = set[str]()
        try:
            while True:
                # What the watch has not handled yet is not covered.
                report = watch.log.report(time_ns() + ahead_ns if watch.has_begun.is_set() else 0)
                for text in set(report.not_watched) - noted:
                    follower.display.note(f"scaling: not watched: {text}")
                noted.update(report.not_watched)
                with contextlib.suppress(ApiUnavailable, ApiRefused):
                    await self._client.set_scaling(report)
                await asyncio.wait((running,), timeout=SEND_S)
                if running.done():
                    running.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _clock_offset_ns(self) -> int:
        while True:
            try:
                return (await measure_offset(self._client)).ns
            except ApiUnavailable:
                await asyncio.sleep(SEND_S)


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
