"""Follows the run of a stack that is up through its API, and fetches its results."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.ownership import LeaseKeeper, TakenOver
from aiperf_svc.adapters.cluster.results_access import open_results
from aiperf_svc.adapters.cluster.watching.run_losses import Loss
from aiperf_svc.adapters.cluster.watching.run_watch import RunWatch
from aiperf_svc.adapters.exports.manifest import Manifest
from aiperf_svc.adapters.exports.result_files import Results
from aiperf_svc.adapters.results_api.client import ResultsClient
from aiperf_svc.adapters.results_api.run_api import ApiRefused, ApiUnavailable
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.domain.errors import AiperfError, BenchmarkFailed
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.runner import folders
from aiperf_svc.runner.common_start import GiveStart, cancel, given
from aiperf_svc.runner.display import Display
from aiperf_svc.runner.following import Following
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outlets import make_outlets
from aiperf_svc.runner.signals import Interrupts

STOPPING = "stopping: what was measured is collected, then the stack goes; once more to collect "
STOPPING += "nothing"
UNRESPONSIVE_S = 90.0
"""Longest time without a response of the results' pod. A lost pod is made again, maybe on another
node, and then reports how the run took its loss."""
FETCH_S, FETCH_RETRY_S = 120.0, 2.0
"""Longest time that the connection to the results may be broken while fetching, and the time
between two attempts."""

LOSSES_OF_RANKS = frozenset({"run", "rank-lost", "oom", "step-failed"})
"""Checks of a benchmark on ranks that fail when a rank is lost, or processes of it. A run may end
with the step that lost them, before the cluster says so."""


class Measuring:
    """One run of a stack, from its start to its results on this machine."""

    def __init__(
        self,
        cluster: Cluster,
        outputs: Mapping[str, Any],
        plan: StackPlan,
        make_display: Callable[[StackPlan], Display],
        give_start: GiveStart | None = None,
        options: RunOptions | None = None,
        keeper: LeaseKeeper | None = None,
    ) -> None:
        """`give_start` is needed by a stack that is held. `keeper` notices who takes the stack."""
        self._cluster, self._outputs = cluster, outputs
        self._plan, self._make_display = plan, make_display
        self._give_start = give_start
        self._options = options or RunOptions()
        self._keeper = keeper
        self._open = contextlib.AsyncExitStack()
        self._client: ResultsClient | None = None
        self.status: Status | None = None
        self.results: Results | None = None
        self.failure: AiperfError | None = None
        """Reason why there may be no results, or incomplete ones."""
        self.is_out_of_time = False
        """True if `--timeout` has ended the run."""
        self._has_lost_rank = False

    @property
    def has_results(self) -> bool:
        """True if there are results to fetch."""
        return self.status is not None and self.status.results_ready

    @property
    def has_losses(self) -> bool:
        """True if a part of the stack died: the run reports a lost service or rank, or requests
        without a good response from a target of the stack's own."""
        results = self.results
        if self._has_lost_rank:
            return True
        if results is None:
            return False
        if set(results.invalid_checks) & LOSSES_OF_RANKS:
            return True
        suspects = {"lost_processes", "errors"} if self._plan.target else {"lost_processes"}
        return bool(suspects & {reason.check for reason in results.reasons})

    async def follow(
        self, *, interrupts: Interrupts, deadline_mono_s: float | None, timeout_s: float | None
    ) -> Results | None:
        """Follow the run and return its summary, if there is one. The first interrupt stops the
        run, the second ends this call. Raises AiperfError if the run cannot be followed any
        more."""
        url = await self._open.enter_async_context(
            open_results(self._cluster, outputs=self._outputs)
        )
        token = str(self._outputs["resultsToken"])
        client = await self._open.enter_async_context(ResultsClient(url, token=token))
        self._client = client
        display = self._make_display(self._plan)
        following = Following(
            client,
            processes=(),
            control=(),
            logs=Path(),
            interrupts=interrupts,
            display=display,
            is_collected=False,
            unresponsive_s=UNRESPONSIVE_S,
            stopping=STOPPING,
            outlets=make_outlets(
                self._options,
                run_id=self._plan.identity.run_id,
                name=self._plan.config.name,
                display=display,
            ),
        )
        limit = asyncio.create_task(self._limit(deadline_mono_s, timeout_s), name="timeout")
        try:
            async with given(self._give_start, client, display.note) as failures:
                self.results = await self._unless_lost(following, display)
            self.failure = self.failure or next(iter(failures), None)
        finally:
            self.status = following.status
            limit.cancel()
            display.close()
        return self.results

    async def _unless_lost(self, following: Following, display: Display) -> Results | None:
        """Follow the run and return the summary. Raises BenchmarkFailed, with the cause, as soon as
        something that the run needs is lost."""
        watch = RunWatch(
            self._cluster,
            self._plan,
            namespace=str(self._outputs["namespace"]),
            note=display.note,
        )
        run = asyncio.create_task(following.run(), name="follow the run")
        taken = asyncio.create_task(self._taken(), name="watch the lease")
        try:
            while True:
                losses = asyncio.create_task(watch.next_losses(), name="watch the stack")
                try:
                    waiting = (run, losses, taken)
                    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    if taken.done():
                        raise taken.result()
                    if run.done():
                        return _result(run, watch)
                    for loss in losses.result():
                        self._handle_loss(loss, following, display)
                finally:
                    losses.cancel()
                    await asyncio.gather(losses, return_exceptions=True)
        finally:
            for each in (run, taken):
                each.cancel()
            await asyncio.gather(run, taken, return_exceptions=True)

    async def _taken(self) -> TakenOver:
        if self._keeper is None:
            await asyncio.Event().wait()
        assert self._keeper is not None
        return await self._keeper.taken()

    def _handle_loss(self, loss: Loss, following: Following, display: Display) -> None:
        """Report a loss. Raises BenchmarkFailed if there can be no results any more."""
        results_pod, target = self._plan.results_pod, self._plan.target
        if self._plan.jobs and loss.component == results_pod:
            display.note(f"{loss.line}: it is started again, and goes on with what its pod has")
            return
        if not loss.component or loss.component == results_pod:
            more = "" if not loss.component else ", and what was measured with it"
            raise BenchmarkFailed(f"{loss.line}{more}")
        if following.is_over:
            return
        if target is not None and loss.component == target.name:
            display.note(f"{loss.line}: requests fail until the server is back")
            return
        if self._plan.ranks is not None and loss.component == self._plan.ranks.name:
            # Its step fails, and is run again if the workload has retries left.
            self._has_lost_rank = True
            display.note(loss.line)
            return
        self.failure = self.failure or BenchmarkFailed(
            f"{loss.line}; the run cannot go on without it"
        )
        display.note(f"{self.failure}: what was measured is collected")

    async def fetch(self, folder: Path) -> str:
        """Fetch and verify every result file. Returns the amount in words. Raises
        EnvironmentProblem."""
        assert self._client is not None
        with folders.collecting(folder, self._plan.identity.run_id):
            manifest = await self._download(folder)
        with contextlib.suppress(ApiUnavailable, ApiRefused):
            await self._client.collected()
        size = sum(each.size for each in manifest.files)
        return f"{len(manifest.files)} files, {size / 2**20:,.1f} MiB"

    async def _download(self, folder: Path) -> Manifest:
        assert self._client is not None
        give_up_mono_s = time.monotonic() + FETCH_S
        while True:
            try:
                return await self._client.download_all(folder)
            except ApiUnavailable:
                if time.monotonic() > give_up_mono_s:
                    raise
                await asyncio.sleep(FETCH_RETRY_S)

    async def close(self) -> None:
        """Close the connections. Errors while closing are ignored."""
        with contextlib.suppress(AiperfError, OSError):
            await self._open.aclose()

    async def _limit(self, deadline_mono_s: float | None, timeout_s: float | None) -> None:
        """Stop the run at the deadline. What was measured until then is kept."""
        if deadline_mono_s is None:
            return
        await asyncio.sleep(max(0.0, deadline_mono_s - time.monotonic()))
        self.is_out_of_time = True
        self.failure = BenchmarkFailed(f"--timeout: stopped {timeout_s:g} s after the start of up")
        assert self._client is not None
        await cancel(self._client, "--timeout")


def _result(run: "asyncio.Task[Results | None]", watch: RunWatch) -> Results | None:
    """Return the summary of an ended run. Raises BenchmarkFailed, with the cause that the cluster
    shows."""
    try:
        return run.result()
    except BenchmarkFailed as error:
        if watch.silence:
            raise BenchmarkFailed(watch.silence) from error
        raise
