"""Collects the files of a part that a stack has run: results, logs, evidence of a failure."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.evidence import save_evidence as save_cluster_evidence
from aiperf_svc.adapters.cluster.evidence import save_logs
from aiperf_svc.adapters.host.tasks import Tasks
from aiperf_svc.adapters.pulumi.cli import PulumiCli
from aiperf_svc.adapters.pulumi.state_home import RunRecord
from aiperf_svc.adapters.storage import folders, resuming
from aiperf_svc.adapters.terminal.output import Say
from aiperf_svc.core.cluster.stack_stages import StageResult
from aiperf_svc.domain.number_text import count
from aiperf_svc.runner.parts import Work
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack.attached import add_facts
from aiperf_svc.runner.stack.measure import Measuring
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.workloads.shapes import index_shapes


def prepare(work: Work, *, is_running: bool) -> None:
    """Make the folder of a part, or make that of a resumed experiment ready for trials that run
    again. `is_running`: the stack runs them already. Raises ConfigError if none can be made, and
    EnvironmentProblem."""
    folders.make_folder(work.folder)
    if work.goes_on and not is_running:
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
            has_logs = await self.interrupts.let_end(logs, before=2)
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
        saving = save_evidence(self.cluster, self.cli, record, folder)
        try:
            saved = await self.interrupts.result_of(saving, before=2)
        except OSError as error:
            # A full disk does not make the run fail.
            self.say(f"evidence could not be saved: {error}")
            return StageResult.FAILED
        if saved is None:
            return StageResult.INTERRUPTED
        self.say(f"saved {count(len(saved), 'file')} about the failure in {folder}")
        return StageResult.DONE


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
