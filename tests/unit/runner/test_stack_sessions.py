"""Concurrent shapes of an experiment: a stack for each, one folder, one exit code."""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.exports import experiment_file
from aiperf_svc.adapters.pulumi import project
from aiperf_svc.adapters.storage import folders
from aiperf_svc.adapters.storage.experiment_artifacts import write_experiment
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.summary import summarise
from aiperf_svc.domain.errors import AiperfError, ConfigError, EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.options import RunOptions, StackOptions
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.parts import PartContext, Work
from aiperf_svc.runner.stack import placement
from aiperf_svc.runner.stack.placement import StackPlacement, run_stacks
from aiperf_svc.runner.stack.request import StackRequest
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_results import as_json, inference_result

RESULTS = inference_result()
LIMIT = 2


class Stacks:
    """Fake stacks that leave the trials of their shape, like those on a cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.errors: dict[int, AiperfError] = {}
        """Problems of stacks that are not created, by shape."""
        self.failures: dict[int, str] = {}
        """Problems of stacks that do not start."""
        self.ended_by_trial: set[int] = set()
        """Shapes whose first trial fails and is the last."""
        self.kept: set[int] = set()
        self.stops_at: int | None = None
        """The shape during whose run the user interrupts."""
        self.left: dict[int, str] = {}
        self.begun: list[int] = []
        self.resumed: list[int] = []
        """Shapes whose stacks continue from what a killed runner left."""
        self.stderr = ""
        """Messages of the last command to the user."""

    async def run_part(self, request: StackRequest, context: PartContext) -> RunOutcome:
        shape = request.only_shape
        assert shape is not None
        assert request.stack == f"s-{shape}"
        assert request.folder is not None
        self.begun.append(shape)
        if error := self.errors.get(shape):
            raise error
        context.is_counting.set()
        interrupts = context.interrupts
        folder = folders.make_folder(request.folder)
        if request.is_resumed:
            self.resumed.append(shape)
        (folder / "logs" / "worker.log").write_text("line\n")
        more = {"stack": request.stack, "kept": shape in self.kept}
        if reason := self.failures.get(shape):
            return RunOutcome(
                run_id="r", state="failed", reason=reason, failure=ExitCode.ERROR,
                results=None, artifacts=folder, more=more, is_last=shape in self.kept,
            )  # fmt: skip
        if self.stops_at == shape:
            signal.raise_signal(signal.SIGINT)
            await interrupts.reached(1)
        is_whole = shape not in self.ended_by_trial
        self._leave_trials(request, folder, is_whole=is_whole)
        return RunOutcome(
            run_id="r", state="done" if is_whole else "failed",
            reason="" if is_whole else "no request completed", artifacts=folder, more=more,
            results=experiment_file.decode((folder / "experiment.json").read_bytes()),
            was_interrupted=interrupts.count > 0,
            left=(self.left[shape],) if shape in self.left else (),
        )  # fmt: skip

    def _leave_trials(self, request: StackRequest, folder: Path, *, is_whole: bool) -> None:
        (number,) = request.own_shapes
        trials = request.shapes[number - 1].trials
        for trial in trials:
            own = folder / "trials" / trial.folder
            own.mkdir(parents=True)
            (own / "profile_export_aiperf.json").write_text(json.dumps(as_json(RESULTS)))
        ended = [TrialOutcome(trial, "done", "", RESULTS) for trial in trials]
        if not is_whole:
            ended = [TrialOutcome(trials[0], "failed", "no request completed", None)]
        write_experiment(folder, request.config, summarise(ended))

    def request(self, *, number: int = 4, **experiment: Any) -> StackRequest:
        """Return a request with this many shapes of two trials each."""
        benchmark = {
            "endpoint": {"url": "http://10.0.0.1:8000", "model": "m"},
            "load": {"concurrency": 1, "requests": 10},
            "artifacts": {"dir": str(self.folder / "artifacts")},
            "deployment": experiment.pop("deployment", {}),
            "experiment": {
                "product": {"workers.max": list(range(1, number + 1))},
                "repetitions": 2,
                "parallel": LIMIT,
                **experiment,
            },
        }
        config = parse_config(benchmark, "")
        return StackRequest(stack="s", config=config, environ={"PULUMI_CONFIG_PASSPHRASE": "x"})

    def run(
        self, capsys: pytest.CaptureFixture[str], *, resume: Path | None = None, **settings: Any
    ) -> tuple[ExitCode, Any]:
        """Run a command. Return its exit code and its printed JSON."""
        options = StackOptions(run=RunOptions(ui="plain", json=True, resume=resume), yes=True)
        code = run_stacks(self.request(**settings), options)
        captured = capsys.readouterr()
        self.stderr = captured.err
        return code, json.loads(captured.out)


@pytest.fixture
def stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stacks:
    stacks = Stacks(tmp_path)

    @contextlib.asynccontextmanager
    async def connect(**_: object) -> AsyncIterator[Cluster]:
        yield FakeCluster().typed

    monkeypatch.setattr(project, "check_tools", lambda environ: None)

    async def run(self: StackPlacement, work: Work, context: PartContext) -> RunOutcome:
        return await stacks.run_part(self.request_of(work), context)

    monkeypatch.setattr(placement, "connect", connect)
    monkeypatch.setattr(StackPlacement, "run", run)
    return stacks


def states(found: Any) -> list[str]:
    return [trial["state"] for trial in found["results"]["trials"]]


def test_parallel_shapes_share_one_folder(
    stacks: Stacks, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = stacks.run(capsys)
    assert (code, found["state"], states(found)) == (ExitCode.OK, "done", ["done"] * 8)
    assert stacks.begun == [1, 2, 3, 4]
    folder = Path(found["artifacts"])
    assert len(list((folder / "trials").iterdir())) == 8
    assert (folder / "shapes" / "3" / "logs" / "worker.log").exists()
    assert not (folder / "shapes" / "3" / "experiment.json").exists()
    assert (folder / "report.html").exists()
    assert (folder / "profile_runs" / "run_0008").exists()
    assert json.loads((folder / "experiment.json").read_bytes()) == found["results"]
    assert [each["stack"] for each in found["stacks"]] == ["s-1", "s-2", "s-3", "s-4"]


def test_failed_shape_fails_only_its_trials(
    stacks: Stacks, capsys: pytest.CaptureFixture[str]
) -> None:
    stacks.failures[2] = "`pulumi up` failed: no such image"
    stacks.errors[3] = EnvironmentProblem("no such node")
    code, found = stacks.run(capsys)
    assert code == ExitCode.BENCHMARK_FAILED
    assert states(found) == ["done", "failed", "failed", "done"] * 2
    reasons = [trial["reason"] for trial in found["results"]["trials"]][:3]
    assert reasons == ["", "`pulumi up` failed: no such image", "no such node"]


def test_no_part_begins_after_stopping_failure(
    stacks: Stacks, capsys: pytest.CaptureFixture[str]
) -> None:
    stacks.failures[1] = "no room"
    code, found = stacks.run(capsys, on_failure="stop", parallel=2, number=5)
    assert code == ExitCode.BENCHMARK_FAILED
    assert stacks.begun == [1, 2]
    assert (found["state"], found["reason"]) == ("failed", "no room")
    assert states(found) == ["failed", "done"] * 2
    assert "the experiment had ended" in found["stacks"][4]["reason"]


def test_unbegun_trials_do_not_count_as_failed(
    stacks: Stacks, capsys: pytest.CaptureFixture[str]
) -> None:
    stacks.ended_by_trial = {1}
    code, found = stacks.run(capsys, on_failure="stop", parallel=2, number=3)
    assert (code, stacks.begun) == (ExitCode.BENCHMARK_FAILED, [1, 2])
    assert (found["state"], found["reason"]) == ("failed", "no request completed")
    trials = [(each["number"], each["state"]) for each in found["results"]["trials"]]
    assert trials == [(1, "failed"), (2, "done"), (5, "done")]


def test_kept_stack_ends_the_experiment(stacks: Stacks, capsys: pytest.CaptureFixture[str]) -> None:
    stacks.failures[2], stacks.kept = "no room", {2}
    code, _ = stacks.run(capsys)
    assert (code, stacks.begun) == (ExitCode.BENCHMARK_FAILED, [1, 2])


def test_interrupt_keeps_results_and_begins_nothing(
    stacks: Stacks, capsys: pytest.CaptureFixture[str]
) -> None:
    stacks.stops_at = 2
    code, found = stacks.run(capsys)
    assert (code, stacks.begun) == (ExitCode.INTERRUPTED, [1, 2])
    assert found["state"] == "cancelled"
    assert [trial["number"] for trial in found["results"]["trials"]] == [1, 2, 5, 6]


def test_interrupt_while_clusters_connect_makes_nothing(
    stacks: Stacks, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.asynccontextmanager
    async def connect(**_: object) -> AsyncIterator[Cluster]:
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()
        yield cast("Cluster", None)

    monkeypatch.setattr(placement, "connect", connect)
    code, found = stacks.run(capsys)
    assert (code, found["state"], found["reason"]) == (
        ExitCode.INTERRUPTED, "cancelled", "nothing was created"
    )  # fmt: skip
    assert (stacks.begun, found["results"]) == ([], None)
    assert not (stacks.folder / "artifacts").exists()


def test_leftover_of_one_stack_decides_exit_code(
    stacks: Stacks, capsys: pytest.CaptureFixture[str]
) -> None:
    stacks.left[3] = "Pod aiperf-s-3/x"
    code, found = stacks.run(capsys)
    assert (code, found["left"]) == (ExitCode.LEAKED, ["Pod aiperf-s-3/x"])


def test_resumed_experiment_runs_remaining_shapes(
    stacks: Stacks, capsys: pytest.CaptureFixture[str]
) -> None:
    stacks.stops_at = 2
    _, found = stacks.run(capsys)
    folder = Path(found["artifacts"])
    assert stacks.begun == [1, 2]
    # A killed runner leaves the folder of a shape whose stack is up.
    folders.make_folder(folder / "shapes" / "4")
    stacks.stops_at, stacks.begun = None, []
    code, found = stacks.run(capsys, resume=folder)
    assert (code, states(found)) == (ExitCode.OK, ["done"] * 8)
    assert (stacks.begun, stacks.resumed) == ([3, 4], [4])
    assert Path(found["artifacts"]) == folder
    stacks.begun = []
    code, found = stacks.run(capsys, resume=folder)
    assert (code, stacks.begun, states(found)) == (ExitCode.OK, [], ["done"] * 8)


def test_resumed_session_names_trials_of_another_image_once(
    stacks: Stacks, capsys: pytest.CaptureFixture[str]
) -> None:
    stacks.stops_at = 2
    _, found = stacks.run(capsys)
    folder = Path(found["artifacts"])
    for trial in (folder / "trials").iterdir():
        (trial / "config.yaml").write_text("deployment: {image: {name: services:1}}\n")
    stacks.stops_at = None
    stacks.run(capsys, resume=folder, deployment={"image": {"name": "services:2"}})
    note = "services' image services:1, and the others run with services:2"
    assert stacks.stderr.count(note) == 1


def test_first_reason_decides_exit_code_without_results(
    stacks: Stacks, capsys: pytest.CaptureFixture[str]
) -> None:
    stacks.errors = dict.fromkeys(range(1, 5), EnvironmentProblem("not allowed"))
    code, found = stacks.run(capsys)
    assert (code, found["reason"]) == (ExitCode.ERROR, "not allowed")


def test_time_limit_is_reason_of_incomplete_experiment(
    stacks: Stacks, capsys: pytest.CaptureFixture[str]
) -> None:
    options = StackOptions(run=RunOptions(ui="plain", json=True), yes=True, timeout_s=0.0)
    code = run_stacks(stacks.request(), options)
    found = json.loads(capsys.readouterr().out)
    assert (code, stacks.begun) == (ExitCode.BENCHMARK_FAILED, [])
    assert found["reason"] == "not started: --timeout had expired"


def test_parallel_auto_needs_the_room(stacks: Stacks, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="auto needs to list nodes"):
        stacks.run(capsys, parallel="auto")
    assert stacks.begun == []
    assert not (stacks.folder / "artifacts").exists()


def test_options_for_one_stack_are_refused(stacks: Stacks) -> None:
    options = StackOptions(run=RunOptions(ui="none"), yes=True)
    space = {"namespace": {"name": "mine", "mode": "create"}}
    with pytest.raises(ConfigError, match="cannot all create mine"):
        run_stacks(stacks.request(deployment=space), options)
    with pytest.raises(ConfigError, match="--keep: kept stacks take the resources"):
        run_stacks(stacks.request(), StackOptions(run=options.run, yes=True, keep=True))
    page = RunOptions(ui="none", metrics_address=("127.0.0.1", 9464))
    with pytest.raises(ConfigError, match="--serve-metrics: the page shows one run"):
        run_stacks(stacks.request(), StackOptions(run=page, yes=True))
