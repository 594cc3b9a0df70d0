"""A fake stack run without a cluster. The test injects failures."""

import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.api.objects import ObjectRef
from aiperf_svc.adapters.cluster.teardown.leaks import LeakReport
from aiperf_svc.adapters.exports.result_files import encode
from aiperf_svc.adapters.pulumi.cli import Ended
from aiperf_svc.adapters.pulumi.state_home import RunRecord, StateHome
from aiperf_svc.adapters.storage import folders, resuming
from aiperf_svc.adapters.storage.experiment_artifacts import write_experiment
from aiperf_svc.adapters.terminal.screens import Screen
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.core.experiments.experiment_result import ExperimentResult
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.schedule import Part
from aiperf_svc.core.experiments.summary import summarise
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.domain.errors import AiperfError
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.runner import session
from aiperf_svc.runner.options import RunOptions, StackOptions
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.parts import PartContext
from aiperf_svc.runner.session import Session
from aiperf_svc.runner.session_results import SessionResults
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack import bring_up, launch, measure, placement, records, teardown
from aiperf_svc.runner.stack.members import expand_requests
from aiperf_svc.runner.stack.placement import StackPlacement
from aiperf_svc.runner.stack.request import StackRequest
from tests.support.fake_results import inference_result

CONFIG = """
endpoint: {url: "http://10.0.0.1:8000", model: m}
load: {concurrency: 1, requests: 10}
"""
RECORD = RunRecord(
    stack="s", cluster="uid", kubeconfig=None, context="c", backend="", is_ephemeral=False, own=()
)
RESULTS = inference_result()
NOT_ALL = LeakReport(left=(), not_checked=("nodes (not allowed)", "leases (not allowed)"))
CLEAN = LeakReport(left=(), not_checked=())
OTHER = ObjectRef(kind="Namespace", namespace="", name="aiperf-s-x", uid="x", path="")


class FakeStackRun:
    """A fake stack run: the test injects failures and reads which steps were taken."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        state = str(folder / "state")
        self.environ = {"XDG_STATE_HOME": state, "PULUMI_CONFIG_PASSPHRASE": "x"}
        self.home = StateHome(self.environ)
        benchmark = yaml.safe_load(CONFIG) | {"artifacts": {"dir": str(folder / "artifacts")}}
        config = BenchmarkConfig.model_validate(benchmark)
        self.benchmark = benchmark
        self.request = StackRequest(stack="s", config=config, environ=self.environ)
        self.options = StackOptions(run=RunOptions(ui="none"), yes=True)
        self.interrupts = Interrupts()
        self.report: LeakReport | Exception = CLEAN
        self.up_error: AiperfError | None = None
        self.up_errors: dict[int, AiperfError] = {}
        """Shapes that fail to start."""
        self.check_errors: dict[str, AiperfError] = {}
        """Findings of the preflight checks by the run id of a shape."""
        self.ups: list[int] = []
        """The shapes that were started."""
        self.plans: list[StackPlan] = []
        """The plans of the started shapes."""
        self.changes: list[bool] = []
        """Whether each start changed a running stack."""
        self.fetch_error: AiperfError | None = None
        self.uploaded_to = ""
        self.run_state, self.run_reason = "done", ""
        """The final state of a run's services."""
        self.fetched: int | None = None
        """How many trials of each shape have ended. None means all."""
        self.stops_up_of: int | None = None
        """The shape during whose `up` the user stops the run."""
        self.running: int | None = None
        """The shape whose trials are still running after the runner was killed."""
        self.killed_in, self.followed = 0, 0
        self.killed = Path()
        """Copy of the artifact folder as left by a runner that is killed in run `killed_in`."""
        self.is_destroyed = self.is_mended = True
        self.pinned: tuple[str | None, str | None] = (None, None)
        """Identity and context of the cluster that Pulumi uses."""
        self.did: list[str] = []
        self.is_watched = False
        """Whether a silent API server would be reported now."""
        self.did_watched: list[str] = []

    @contextlib.asynccontextmanager
    async def watched_contact(self, _: Cluster, **__: Any) -> AsyncIterator[None]:
        self.is_watched = True
        yield
        self.is_watched = False

    def note_watched(self, what: str) -> None:
        self.did_watched += [what] if self.is_watched else []

    @property
    def made(self) -> list[Path]:
        """Return the artifact folders."""
        return list(Path(self.request.config.artifacts.dir).glob("*"))

    async def launch(self, *, resume: Path | None = None) -> RunOutcome:
        """Run a session with this request, which may resume a folder, and return its outcome."""
        made = self._session(resume)
        try:
            (outcome,) = (await made._run()).values()
        finally:
            made._results.remove_empty()
        return outcome

    async def finish(self) -> Path:
        """Run a session with this request and return its artifact folder."""
        outcome = await self.launch()
        assert outcome.artifacts is not None
        return outcome.artifacts

    @property
    def part_trials(self) -> tuple[int, ...]:
        """The trials of the only run, which is a part of an experiment."""
        (plan,) = self.plans
        assert plan.config.experiment is not None
        assert plan.config.experiment.part is not None
        return plan.config.experiment.part.trials

    async def run_part(self, number: int) -> RunOutcome:
        """Return the outcome of a part that has its own stack."""
        made = self._session(None)
        context = PartContext(self.interrupts, Screen("none"))
        return await made._placement.run(made._results.work(Part(number)), context)

    def _session(self, resume: Path | None) -> Session:
        requests = {"": self.request}
        options = replace(self.options, run=replace(self.options.run, resume=resume))
        expansion = expand_requests(requests)
        if resume is not None:
            resuming.check({resume / each.name: each.config for each in expansion.members})
        stacks = StackPlacement(requests, expansion, options)
        made = Session(expansion, stacks, options.run, timeout_s=options.timeout_s)
        made._results = SessionResults(expansion, stacks, options.run)
        return made

    @contextlib.asynccontextmanager
    async def connect(self, **_: Any) -> AsyncIterator[Cluster]:
        yield cast("Cluster", SimpleNamespace(identity="uid", context="c"))

    @contextlib.contextmanager
    def open_project(self, *_: Any, **options: Any) -> Iterator["FakeStackRun"]:
        if (cluster := options.get("cluster")) is not None:
            self.pinned = (cluster.identity, cluster.context)
        yield self

    # --- as PulumiCli ---

    notice = ""

    async def outputs(self) -> dict[str, Any]:
        return {}

    async def values(self, keys: Sequence[str]) -> dict[str, str]:
        return {key: f"the stack's {key}" for key in keys}

    # --- as StackRemoval ---

    async def destroyed(self, *_: Any) -> Ended:
        self.did.append("destroy")
        self.note_watched("destroy")
        return Ended(code=0 if self.is_destroyed else 1, out="", errors="")

    async def update_state(self, _: RunRecord) -> bool:
        self.did.append("mend")
        return self.is_mended

    async def find_left(self, _: RunRecord) -> LeakReport:
        self.did.append("check")
        self.note_watched("check")
        if isinstance(self.report, Exception):
            raise self.report
        return self.report

    # --- as Measuring ---

    has_losses, is_out_of_time, results = False, False, RESULTS
    failure: AiperfError | None = None
    measured: StackPlan
    """The plan of the run."""

    def measuring(self, _: Cluster, __: Any, plan: StackPlan, *___: Any) -> "FakeStackRun":
        self.measured = plan
        return self

    @property
    def status(self) -> Any:
        return SimpleNamespace(
            state=self.run_state, reason=self.run_reason, exit_code=None, artifact_error="",
            uploaded_to=self.uploaded_to,
        )  # fmt: skip

    async def follow(self, **_: Any) -> InferenceResult:
        self.note_watched("follow")
        self.followed += 1
        if self.followed == self.killed_in:
            self.killed = self.folder / "killed"
            shutil.copytree(self.made[0], self.killed, symlinks=True)
        return RESULTS

    async def fetch(self, folder: Path) -> str:
        self.note_watched("fetch")
        with folders.collecting(folder, self.measured.identity.run_id):
            return self._fetch(folder)

    def _fetch(self, folder: Path) -> str:
        if self.fetch_error:
            raise self.fetch_error
        experiment = self.measured.config.experiment
        if experiment is None:
            (folder / "profile_export_aiperf.json").write_bytes(encode(RESULTS))
        else:
            numbers = experiment.part.trials if experiment.part is not None else None
            every = [trial for shape in self.request.shapes for trial in shape.trials]
            trials = [each for each in every if numbers is None or each.number in numbers]
            del trials[len(trials) if self.fetched is None else self.fetched :]
            if not trials:
                return "nothing"
            for trial in trials:
                own = folder / "trials" / trial.folder
                own.mkdir(parents=True)
                (own / "profile_export_aiperf.json").write_bytes(encode(RESULTS))
            ended = [TrialOutcome(trial, "done", "", RESULTS) for trial in trials]
            write_experiment(folder, self.request.config, summarise(ended))
        return "all"

    async def close(self) -> None:
        return None


def returning(value: Any) -> Callable[..., Awaitable[Any]]:
    async def response(*_: Any, **__: Any) -> Any:
        return value

    return response


async def unchanged(request: StackRequest, _: Cluster, **__: Any) -> StackRequest:
    return request


def make_stack_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeStackRun:
    """Return a fake run whose parts replace the real ones."""
    stack_run = FakeStackRun(folder)

    async def check(_: Cluster, plan: StackPlan, **__: Any) -> tuple[()]:
        if error := stack_run.check_errors.get(plan.identity.run_id):
            raise error
        return ()

    async def up(request: StackRequest, _: Any, start: bring_up.Start, **__: Any) -> bool:
        run_ids = [each.identity.run_id for each in request.plans]
        shape = request.own_shapes[run_ids.index(start.plan.identity.run_id)]
        stack_run.changes.append(start.is_change)
        stack_run.plans.append(start.plan)
        stack_run.note_watched("up")
        stack_run.ups.append(shape)
        if error := stack_run.up_errors.get(shape):
            raise error
        if stack_run.up_error:
            raise stack_run.up_error
        if stack_run.stops_up_of == shape:
            stack_run.interrupts.add()
        return stack_run.stops_up_of != shape

    monkeypatch.setattr(bring_up, "check", check)

    async def running_shape(_: Any, shapes: list[int], *__: Any) -> int | None:
        return stack_run.running if stack_run.running in shapes else None

    monkeypatch.setattr(bring_up, "running_shape", running_shape)
    for name, value in {"preview": "", "refuse_in_use": None}.items():
        monkeypatch.setattr(bring_up, name, returning(value))
    for name in ("first_record", "find_own"):
        monkeypatch.setattr(records, name, returning(RECORD))
    monkeypatch.setattr(records, "find_roots", returning(()))
    for name in ("with_target_pods", "with_gpu_exporters", "with_api_server"):
        monkeypatch.setattr(placement, name, unchanged)
    monkeypatch.setattr(placement, "read_placed", returning(None))
    monkeypatch.setattr(placement, "connect", stack_run.connect)
    monkeypatch.setattr(placement, "open_project", stack_run.open_project)
    monkeypatch.setattr(session, "Interrupts", lambda: stack_run.interrupts)
    monkeypatch.setattr(measure.Collection, "_evidence", returning(()))
    monkeypatch.setattr(measure, "save_logs", returning(()))
    monkeypatch.setattr(bring_up, "up", up)
    monkeypatch.setattr(measure, "Measuring", stack_run.measuring)
    removal = teardown.StackRemoval
    monkeypatch.setattr(removal, "_delete_roots", returning(None))
    monkeypatch.setattr(removal, "_run_destroy", stack_run.destroyed)
    monkeypatch.setattr(removal, "_find_left", stack_run.find_left)
    monkeypatch.setattr(removal, "update_state", stack_run.update_state)
    monkeypatch.setattr(launch, "watched_contact", stack_run.watched_contact)
    return stack_run


def in_shapes(
    stack_run: FakeStackRun, *, on_failure: str = "continue", number: int = 3, parallel: int = 1
) -> list[str]:
    """Split the stack into this many shapes of two trials and return the ids of their runs."""
    experiment = {
        "product": {"workers.max": list(range(1, number + 1))},
        "repetitions": 2,
        "on_failure": on_failure,
        "parallel": parallel,
    }
    stack_run.benchmark = {**stack_run.benchmark, "experiment": experiment}
    config = parse_config(stack_run.benchmark, "")
    stack_run.request = StackRequest(stack="s", config=config, environ=stack_run.environ)
    return [plan.identity.run_id for plan in stack_run.request.plans]


def trials_of(outcome: RunOutcome) -> list[tuple[int, str, str]]:
    assert isinstance(outcome.results, ExperimentResult)
    return [(each.number, each.state, each.reason) for each in outcome.results.trials]
