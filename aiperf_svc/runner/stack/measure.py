"""Follows the run of a stack that is up through its API, and collects the files of its parts:
results, logs, evidence of a failure."""

import asyncio
import contextlib
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.evidence import save_evidence, save_logs
from aiperf_svc.adapters.cluster.ownership import LeaseKeeper
from aiperf_svc.adapters.cluster.provenance import newest_start_ns
from aiperf_svc.adapters.cluster.results_access import open_results
from aiperf_svc.adapters.cluster.watching.run_losses import Loss
from aiperf_svc.adapters.cluster.watching.run_watch import RunWatch
from aiperf_svc.adapters.cluster.watching.scaling_watch import ScalingWatch, WatchedServer
from aiperf_svc.adapters.events.deployments import DeploymentEvents
from aiperf_svc.adapters.exports.result_files import Results
from aiperf_svc.adapters.host.tasks import Tasks
from aiperf_svc.adapters.pulumi.cli import PulumiCli
from aiperf_svc.adapters.pulumi.state_home import RunRecord
from aiperf_svc.adapters.results_api.client import ResultsClient
from aiperf_svc.adapters.results_api.run_api import ApiRefused, ApiUnavailable
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.adapters.storage import folders, resuming
from aiperf_svc.adapters.terminal.output import Say
from aiperf_svc.config.target import HOST
from aiperf_svc.core.cluster.stack_stages import StageResult
from aiperf_svc.domain.errors import AiperfError, BenchmarkFailed
from aiperf_svc.domain.number_text import count
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.plan.target import watched_pods
from aiperf_svc.runner.events import EventWatch
from aiperf_svc.runner.follower import Follower, Watch, make_outlets
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.parts import PartContext, Work
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack.attached import add_facts
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.runner.start_gate import StartGate, UptimeGate, clock_ahead_ns
from aiperf_svc.workloads.previews import summary
from aiperf_svc.workloads.shapes import index_shapes

STOPPING = (
    "Stopping. Results so far are collected, then the stack is removed. Press Ctrl-C again to "
    "collect nothing."
)
UNRESPONSIVE_S = 90.0
"""Longest time without a response of the results' pod. A lost pod is created again, maybe on
another node, and then reports how its loss affected the run."""
FETCH_S, FETCH_RETRY_S = 120.0, 2.0
"""Longest time that the connection to the results may be broken while fetching, and the time
between two attempts."""
REPORT_S = 1.0
"""Time between two reports of the server's replicas."""
LOSSES_OF_RANKS = frozenset({"run", "rank-lost", "oom", "step-failed"})
"""Checks of a benchmark on ranks that fail if a rank or its processes are lost. The run may end
with the failed step before the cluster reports the loss."""


class Measuring:
    """One run of a stack, from its start to its results on this machine."""

    def __init__(
        self,
        cluster: Cluster,
        outputs: Mapping[str, Any],
        plan: StackPlan,
        context: PartContext,
        options: RunOptions,
        keeper: LeaseKeeper,
    ) -> None:
        """`keeper` reports when another process takes over the stack."""
        self._cluster, self._outputs, self._plan = cluster, outputs, plan
        self._namespace = str(outputs["namespace"])
        self._context, self._options, self._keeper = context, options, keeper
        self._open = contextlib.AsyncExitStack()
        self._client: ResultsClient | None = None
        self.status: Status | None = None
        self.results: Results | None = None
        self.failure: AiperfError | None = None
        """Reason why there may be no results, or incomplete ones."""
        self.is_out_of_time = False
        """True if the time limit has ended the run."""
        self._has_lost_rank = False

    @property
    def has_losses(self) -> bool:
        """True if a part of the stack died: the run reports a lost service or rank, or failed
        requests to the stack's own target."""
        results = self.results
        if results is None:
            return self._has_lost_rank
        suspects = {"lost_processes", "errors"} if self._plan.target else {"lost_processes"}
        found = suspects & {reason.check for reason in results.reasons}
        found |= LOSSES_OF_RANKS & {*results.invalid_checks}
        return self._has_lost_rank or bool(found)

    async def follow(self, *, deadline_mono_s: float | None) -> Results | None:
        """Follow the run and return its summary, if there is one. The first interrupt stops the
        run, the second ends this call. Raises AiperfError if the run can no longer be followed."""
        plan, context = self._plan, self._context
        results = open_results(self._cluster, outputs=self._outputs)
        url = await self._open.enter_async_context(results)
        token = str(self._outputs["resultsToken"])
        client = await self._open.enter_async_context(ResultsClient(url, token=token))
        self._client = client
        display = context.screen.display(summary.title(plan), plan.topology)
        watch = RunWatch(self._cluster, plan, namespace=self._namespace, note=display.note)

        async def watch_stack(follower: Follower) -> None:
            while True:
                for loss in await watch.next_losses():
                    self._handle_loss(loss, follower)

        async def watch_lease(_: Follower) -> None:
            raise await self._keeper.taken()

        follower = Follower(
            client,
            interrupts=context.interrupts,
            display=display,
            watches=(watch_lease, watch_stack, *self._inference_watches(client)),
            gate=context.gate or self._uptime_gate(),
            is_collected=False,
            unresponsive_s=UNRESPONSIVE_S,
            stopping=STOPPING,
            deadline_mono_s=deadline_mono_s,
            outlets=make_outlets(
                self._options, run_id=plan.identity.run_id, name=plan.config.name, display=display
            ),
        )
        try:
            self.results = await follower.run()
        except BenchmarkFailed as error:
            # The API server is the cause, not the services behind it.
            if watch.silence:
                raise BenchmarkFailed(watch.silence) from error
            raise
        finally:
            self.status, self.is_out_of_time = follower.status, follower.is_out_of_time
            self.failure = follower.failure
            display.close()
        return self.results

    def _uptime_gate(self) -> StartGate | None:
        """Return the gate that starts a visit at an uptime of its target; None if none is set."""
        experiment = self._plan.config.experiment
        blocks = experiment.blocks if experiment is not None else None
        if experiment is None or blocks is None or blocks.uptime is None:
            return None
        part = experiment.part
        assert part is not None  # A visit is a part of its experiment.
        selector = self._plan.identity.selector(HOST)
        find_start = partial(newest_start_ns, self._cluster, self._namespace, selector)
        return UptimeGate(blocks.uptime, find_start, first_trial=part.trials[0])

    def _inference_watches(self, client: ResultsClient) -> Iterator[Watch]:
        config = self._plan.config.inference
        if config is not None and (scaling := config.scaling) is not None:
            pods = watched_pods(config, self._plan.identity, self._namespace)
            assert pods.port is not None
            server = WatchedServer(
                namespace=pods.namespace,
                labels=pods.labels,
                port=pods.port,
                path=scaling.metrics_path,
                loaded=re.compile(scaling.loaded) if scaling.loaded is not None else None,
            )
            yield partial(_report_replicas, self._cluster, client, server)
        if config is not None and config.events:
            events = DeploymentEvents(self._cluster, self._plan, namespace=self._namespace)
            yield EventWatch(client, config, events.perform)

    def _handle_loss(self, loss: Loss, follower: Follower) -> None:
        """Report a loss. Raises BenchmarkFailed if results are no longer possible."""
        results_pod, target = self._plan.results_pod, self._plan.target
        display = follower.display
        if self._plan.jobs and loss.component == results_pod:
            display.note(f"{loss.line}: it restarts, and continues with the files in its pod")
            return
        if not loss.component or loss.component == results_pod:
            more = "" if not loss.component else "; the results in it are lost"
            raise BenchmarkFailed(f"{loss.line}{more}")
        if follower.is_over:
            return
        if target is not None and loss.component == target.name:
            display.note(f"{loss.line}: requests fail until the server is back")
            return
        if self._plan.ranks is not None and loss.component == self._plan.ranks.name:
            # Its step fails, and is run again if the workload has retries left.
            self._has_lost_rank = True
            display.note(loss.line)
            return
        follower.failure = follower.failure or BenchmarkFailed(
            f"{loss.line}; the run cannot continue without it"
        )
        display.note(f"{follower.failure}: results so far are collected")

    async def fetch(self, folder: Path) -> str:
        """Fetch and verify every result file. Returns the amount as text. Raises
        EnvironmentProblem."""
        assert self._client is not None
        give_up_mono_s, manifest = time.monotonic() + FETCH_S, None
        with folders.collecting(folder, self._plan.identity.run_id):
            while manifest is None:
                try:
                    manifest = await self._client.download_all(folder)
                except ApiUnavailable:
                    if time.monotonic() > give_up_mono_s:
                        raise
                    await asyncio.sleep(FETCH_RETRY_S)
        with contextlib.suppress(ApiUnavailable, ApiRefused):
            await self._client.collected()
        size = sum(each.size for each in manifest.files)
        return f"{count(len(manifest.files), 'file')}, {size / 2**20:,.1f} MiB"

    async def close(self) -> None:
        """Close the connections. Errors while closing are ignored."""
        with contextlib.suppress(AiperfError, OSError):
            await self._open.aclose()


async def _report_replicas(
    cluster: Cluster, client: ResultsClient, server: WatchedServer, follower: Follower
) -> None:
    """Watch the replicas of a server, and report them to the run until this is cancelled. Each
    report is complete, so a lost one does no harm."""
    ahead_ns = await clock_ahead_ns(client)
    watch = ScalingWatch(cluster, server, clock_ns=lambda: time.time_ns() + ahead_ns)
    watch.log.since_wall_ns = time.time_ns() + ahead_ns
    noted = set[str]()
    async with Tasks() as tasks:
        running = tasks.start(watch.run(), "watch replicas")
        while True:
            # A report does not cover times that the watch has not handled yet.
            report = watch.log.report(time.time_ns() + ahead_ns if watch.has_begun.is_set() else 0)
            for text in set(report.not_watched) - noted:
                follower.display.note(f"scaling: not watched: {text}")
            noted.update(report.not_watched)
            with contextlib.suppress(ApiUnavailable, ApiRefused):
                await client.set_scaling(report)
            if await tasks.first(REPORT_S):
                running.result()


# --- the files of a part -------------------------------------------------------------------------


def prepare(work: Work, *, is_running: bool) -> None:
    """Create the folder of a part. Prepare that of a resumed experiment for trials that run again,
    unless the stack is running them (`is_running`). Raises ConfigError if the folder cannot be
    created, and EnvironmentProblem."""
    folders.make_folder(work.folder)
    if work.is_resumed and not is_running:
        resuming.begin(work.folder, work.member.config)


@dataclass(frozen=True)
class Collection:
    """Collects the results, logs and evidence of the parts of a stack into their folders."""

    request: StackRequest
    cluster: Cluster
    cli: PulumiCli
    interrupts: Interrupts
    say: Say

    async def fetch(self, measuring: Measuring, record: RunRecord, folder: Path) -> StageResult:
        """Fetch the results of a part, and the logs of its services. Raises EnvironmentProblem."""
        async with Tasks() as tasks:
            logs = tasks.start(self._save_logs(record, folder), "save logs")
            amount = await self.interrupts.result_of(measuring.fetch(folder), before=2)
            if amount is None:
                return StageResult.INTERRUPTED
            self.say(f"collected {amount} into {self.request.folder}")
            await self._add_provenance(record, folder)
            has_logs = await self.interrupts.wait_for(logs, before=2)
            return StageResult.DONE if has_logs else StageResult.INTERRUPTED

    async def _add_provenance(self, record: RunRecord, folder: Path) -> None:
        """Add facts about pods and nodes from the cluster."""
        config = self.request.config.inference
        if config is None or record.namespace is None:
            return
        wanted, plan = config.deployment, self.request.plan
        is_replaced = wanted.image.name not in (None, plan.config.deployment.image.name)
        await add_facts(
            self.cluster,
            folder,
            namespace=record.namespace,
            stack=record.stack,
            target=wanted.target,
            indexes=index_shapes(plan.config),
            client={"image_replaces": str(wanted.image.name)} if is_replaced else {},
            say=self.say,
        )

    async def _save_logs(self, record: RunRecord, folder: Path) -> None:
        """Save the end of each pod's log in the artifact folder `logs`. A missing log does not fail
        the run."""
        if record.namespace is None:
            return
        try:
            missing = await save_logs(
                self.cluster, namespace=record.namespace, stack=record.stack, folder=folder
            )
        except OSError as error:
            missing = (str(error),)
        for each in missing:
            self.say(f"not saved: {each}")

    async def save_evidence(self, record: RunRecord, folder: Path) -> StageResult:
        """Save evidence of the failure of a part."""
        try:
            saved = await self.interrupts.result_of(self._evidence(record, folder), before=2)
        except OSError as error:
            # A full disk does not make the run fail.
            self.say(f"evidence could not be saved: {error}")
            return StageResult.FAILED
        if saved is None:
            return StageResult.INTERRUPTED
        self.say(f"saved {count(len(saved), 'file')} about the failure in {folder}")
        return StageResult.DONE

    async def _evidence(self, record: RunRecord, artifacts: Path) -> tuple[Path, ...]:
        """Save evidence of the failure in the artifact folder `evidence`."""
        folder = artifacts / "evidence"
        folder.mkdir(exist_ok=True)
        saved: tuple[Path, ...] = ()
        if record.namespace is not None:
            saved = await save_evidence(
                self.cluster, namespace=record.namespace, stack=record.stack, folder=folder
            )
        logs = [path for path in sorted(self.cli.logs.glob("*.log")) if path.stat().st_size]
        copied = [Path(shutil.copy(path, folder / path.name)) for path in logs]
        return (*saved, *copied)
