"""Collects the files of a stack's run: results and logs, evidence of a failure, and the files of
an experiment whose results do not come all at once."""

import asyncio
import shutil
from pathlib import Path

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.evidence import save_evidence as save_cluster_evidence
from aiperf_svc.adapters.cluster.evidence import save_logs
from aiperf_svc.adapters.host.tasks import Tasks
from aiperf_svc.adapters.pulumi.cli import PulumiCli
from aiperf_svc.adapters.pulumi.state_home import RunRecord
from aiperf_svc.adapters.storage import folders, resuming
from aiperf_svc.adapters.storage.shape_trials import ShapeTrials
from aiperf_svc.adapters.terminal.output import Say
from aiperf_svc.core.cluster.stack_stages import StageResult
from aiperf_svc.core.experiments.experiment_result import ExperimentResult
from aiperf_svc.domain.errors import AiperfError, EnvironmentProblem
from aiperf_svc.plan.service_pods import upload_keys as upload_sources
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack.measure import Measuring
from aiperf_svc.runner.stack.request import StackRequest


def shapes_left(request: StackRequest) -> list[int]:
    """Return the positions, from 1, of the request's plans whose shapes have trials to run."""
    finished = request.resumed.finished if request.resumed is not None else ()
    return [
        place
        for place, number in enumerate(request.own_shapes, start=1)
        if any(trial.number not in finished for trial in request.shapes[number - 1].trials)
    ]


def prepare(request: StackRequest, *, is_running: bool) -> Path:
    """Make the folder, or make that of a resumed experiment ready for the trials that are left.
    `is_running`: its stack runs them already. Raises ConfigError if none can be made, and
    EnvironmentProblem."""
    if request.resumed is not None:
        folder = request.resumed.folder
        if request.resumed.finished:
            resuming.set_aside(folder, request.resumed.finished)
        elif not is_running:
            resuming.begin(folder, request.config)
        return folder
    assert request.folder is not None
    return folders.make_folder(request.folder)


class Collection:
    """The folder of one run of a stack: collects results, logs and evidence into it."""

    def __init__(
        self,
        request: StackRequest,
        cluster: Cluster,
        cli: PulumiCli,
        interrupts: Interrupts,
        say: Say,
    ) -> None:
        self._request, self._cluster, self._cli = request, cluster, cli
        self._interrupts, self._say = interrupts, say
        self.folder: Path | None = None
        """None before `open`, and after the folder was removed."""
        self.trials: ShapeTrials | None = None
        """Of an experiment whose results do not come all at once: it has several shapes, or some of
        its trials have ended before."""
        self.results: ExperimentResult | None = None
        """Of such an experiment."""
        self.uploaded_to = ""
        """URL to which the runner has uploaded it."""
        self.error = ""
        """Why the artifacts are not all here."""

    def open(self, folder: Path) -> None:
        """Set the folder. Raises ConfigError if the trials in it cannot be read."""
        request, self.folder = self._request, folder
        has_ended_before = request.resumed is not None and bool(request.resumed.finished)
        if len(request.plans) > 1 or has_ended_before:
            self.trials = ShapeTrials(request.config, request.shapes, folder)
        if self.trials is not None and has_ended_before:
            self.trials.add_finished()

    @property
    def has_all_trials(self) -> bool:
        """Whether each trial of such an experiment has an outcome."""
        return self.trials is not None and self.trials.is_complete

    def _folder_of(self, shape: int) -> Path:
        assert self.folder is not None
        return self.folder if self.trials is None else self.trials.folder_of(shape)

    async def fetch(self, measuring: Measuring, record: RunRecord, shape: int) -> StageResult:
        """Fetch the results of a shape, and the logs of its services."""
        folder = self._folder_of(shape)
        async with Tasks() as tasks:
            logs = tasks.start(self._save_logs(record, folder), "save logs")
            try:
                amount = await self._interrupts.result_of(measuring.fetch(folder), before=2)
                if amount is None:
                    return StageResult.INTERRUPTED
                self._say(f"collected {amount} into {self.folder}")
                await self._add_provenance(record, folder)
                if self.trials is not None:
                    self.trials.move(shape)
            except AiperfError as error:
                self.error = str(error)
                return StageResult.FAILED
            has_logs = await self._interrupts.let_end(logs, before=2)
            return StageResult.DONE if has_logs else StageResult.INTERRUPTED

    async def _add_provenance(self, record: RunRecord, folder: Path) -> None:
        """Add facts about pods and nodes from the cluster. Missing facts do not fail the run."""
        config = self._request.config.inference
        if config is None or record.namespace is None:
            return
        from aiperf_svc.adapters.cluster.provenance import add_cluster_facts

        wanted, plan = config.deployment, self._request.plan
        is_replaced = wanted.image.name not in (None, plan.config.deployment.image.name)
        try:
            await add_cluster_facts(
                self._cluster,
                folder,
                namespace=record.namespace,
                stack=record.stack,
                target=wanted.target,
                client={"image_replaces": str(wanted.image.name)} if is_replaced else {},
            )
        except (AiperfError, OSError) as error:
            self._say(f"not in provenance.json: pods and nodes: {error}")

    async def _save_logs(self, record: RunRecord, folder: Path) -> None:
        """Save the end of each pod's log in the artifact folder `logs`. A missing log does not fail
        the run."""
        if record.namespace is None:
            return
        try:
            missing = await save_logs(
                self._cluster, namespace=record.namespace, stack=record.stack, folder=folder
            )
        except OSError as error:
            missing = (str(error),)
        for each in missing:
            self._say(f"not saved: {each}")

    async def save_evidence(self, record: RunRecord, shape: int) -> StageResult:
        """Save evidence of the failure of a shape."""
        folder = self._folder_of(shape)
        saving = save_evidence(self._cluster, self._cli, record, folder)
        try:
            saved = await self._interrupts.result_of(saving, before=2)
        except OSError as error:
            # A full disk does not make the run fail.
            self._say(f"evidence could not be saved: {error}")
            return StageResult.FAILED
        if saved is None:
            return StageResult.INTERRUPTED
        self._say(f"saved {len(saved)} files about the failure in {folder}")
        return StageResult.DONE

    def fail_trials(self, shape: int, error: AiperfError) -> None:
        """Record the trials of a shape without an outcome as failed."""
        if self.trials is not None:
            self.trials.fail_unfinished(shape, str(error))

    async def write_trials(self) -> None:
        """Write the files of an experiment whose results arrived in parts."""
        if self.trials is None:
            return
        try:
            self.results = self.trials.write(self._request.plan.identity.run_id)
            if self.trials.has_upload:
                keys = await upload_keys(self._request, self._cli)
                self.uploaded_to = await asyncio.to_thread(self.trials.upload, keys)
        except EnvironmentProblem as error:
            self.error = self.error or str(error)

    def remove_if_empty(self) -> None:
        """Remove the folder of a run that was stopped before it measured anything, unless it is
        that of a resumed experiment."""
        if self.folder is None or self.results is not None or self._request.resumed is not None:
            return
        if folders.remove_if_empty(self.folder):
            self.folder = None


async def upload_keys(request: StackRequest, cli: PulumiCli) -> dict[str, str]:
    """Return the keys of the upload by environment variable, as the stack's pods have them."""
    found = {}
    for variable, key in upload_sources(request.config).items():
        found[variable] = request.secrets.get(key) or await cli.value(key)
    return found


async def save_evidence(
    cluster: Cluster, cli: PulumiCli, record: RunRecord, artifacts: Path
) -> tuple[Path, ...]:
    """Save evidence of the failure in the artifact folder `evidence`."""
    folder = artifacts / "evidence"
    folder.mkdir(exist_ok=True)
    saved: tuple[Path, ...] = ()
    if record.namespace is not None:
        saved = await save_cluster_evidence(
            cluster, namespace=record.namespace, stack=record.stack, folder=folder
        )
    logs = [path for path in sorted(cli.logs.glob("*.log")) if path.stat().st_size]
    copied = [Path(shutil.copy(path, folder / path.name)) for path in logs]
    return (*saved, *copied)
