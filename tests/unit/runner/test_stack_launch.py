"""What a run of a stack does when it cannot go on as planned: what it says, keeps and removes."""

import contextlib
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import yaml

from aiperf_svc.adapters.cluster.api.connection import Cluster, Unreachable
from aiperf_svc.adapters.cluster.api.objects import ObjectRef
from aiperf_svc.adapters.cluster.teardown.leaks import LeakReport
from aiperf_svc.adapters.pulumi.cli import PulumiCli
from aiperf_svc.adapters.storage.experiment_artifacts import write_experiment
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.summary import summarise
from aiperf_svc.domain.errors import AiperfError, EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack import bring_up, launch, measure, run
from aiperf_svc.runner.stack.launch import Launch
from aiperf_svc.runner.stack.options import StackOptions
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.runner.stack.screen import WholeScreen
from aiperf_svc.runner.stack.state_home import RunRecord, StateHome

CONFIG = """
endpoint: {url: "http://10.0.0.1:8000", model: m}
load: {concurrency: 1, requests: 10}
"""
RECORD = RunRecord(
    stack="s", cluster="uid", kubeconfig=None, context="c", backend="", is_ephemeral=False, own=()
)
SUMMARY = {"request_count": {"avg": 10.0}, "aiperf_svc": {"verdict": "valid"}}
NOT_ALL = LeakReport(left=(), not_checked=("nodes (not allowed)", "leases (not allowed)"))
CLEAN = LeakReport(left=(), not_checked=())
OTHER = ObjectRef(kind="Namespace", namespace="", name="aiperf-s-x", uid="x", path="")


class Played:
    """A stack's life in which a test says what goes wrong, and what was done of it."""

    def __init__(self, folder: Path) -> None:
        self.home = StateHome({"XDG_STATE_HOME": str(folder / "state")})
        benchmark = yaml.safe_load(CONFIG) | {"artifacts": {"dir": str(folder / "artifacts")}}
        config = BenchmarkConfig.model_validate(benchmark)
        self.request = StackRequest(stack="s", config=config, benchmark=benchmark, environ={})
        self.interrupts = Interrupts()
        self.report: LeakReport | Exception = CLEAN
        self.up_error: AiperfError | None = None
        self.up_errors: dict[int, AiperfError] = {}
        """Those of the shapes that cannot come up."""
        self.check_errors: dict[str, AiperfError] = {}
        """What the preflight checks find, by the id of a shape's run."""
        self.ups: list[int] = []
        self.fetch_error: AiperfError | None = None
        self.uploaded_to = ""
        self.stops_up_of: int | None = None
        """The shape in whose `up` the user stops it."""
        self.is_destroyed = self.is_mended = True
        self.did: list[str] = []
        self.is_watched = False
        """A silent API server would be said now."""
        self.did_watched: list[str] = []

    @contextlib.asynccontextmanager
    async def watched_contact(self, _: Cluster, **__: Any) -> AsyncIterator[None]:
        self.is_watched = True
        yield
        self.is_watched = False

    def note_watched(self, what: str) -> None:
        self.did_watched += [what] if self.is_watched else []

    async def launched(self) -> RunOutcome:
        cluster = cast("Cluster", SimpleNamespace(identity="uid"))
        options = StackOptions(run=RunOptions(ui="none"), yes=True)
        cli = cast("PulumiCli", self)
        screen = WholeScreen(options.run)
        launch = Launch(self.request, options, self.home, cluster, cli, self.interrupts, screen)
        return await launch.run()

    # --- as PulumiCli ---

    async def outputs(self) -> dict[str, Any]:
        return {}

    # --- as Teardown ---

    async def destroy(self) -> bool:
        self.did.append("destroy")
        self.note_watched("destroy")
        return self.is_destroyed

    async def update_state(self) -> bool:
        self.did.append("mend")
        return self.is_mended

    async def check(self) -> LeakReport:
        self.did.append("check")
        self.note_watched("check")
        if isinstance(self.report, Exception):
            raise self.report
        return self.report

    # --- as Measuring ---

    has_results, has_losses, is_out_of_time, failure, summary = True, False, False, None, SUMMARY

    @property
    def status(self) -> Any:
        return SimpleNamespace(
            state="done", reason="", exit_code=None, artifact_error="", uploaded_to=self.uploaded_to
        )

    async def follow(self, **_: Any) -> dict[str, Any]:
        self.note_watched("follow")
        return SUMMARY

    async def fetch(self, folder: Path) -> str:
        self.note_watched("fetch")
        if self.fetch_error:
            raise self.fetch_error
        if len(self.request.plans) > 1:
            shape = self.request.shapes[self.ups[-1] - 1]
            for trial in shape.trials:
                (folder / "trials" / trial.folder).mkdir(parents=True)
            ended = [TrialOutcome(trial, "done", "", SUMMARY) for trial in shape.trials]
            write_experiment(folder, self.request.config, summarise(ended))
        return "all"

    async def close(self) -> None:
        return None


def returning(value: Any) -> Callable[..., Awaitable[Any]]:
    async def response(*_: Any, **__: Any) -> Any:
        return value

    return response


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    played = Played(tmp_path)

    async def check(_: Cluster, plan: StackPlan, **__: Any) -> tuple[()]:
        if error := played.check_errors.get(plan.identity.run_id):
            raise error
        return ()

    async def up(*_: Any, shape: int, **__: Any) -> bool:
        played.note_watched("up")
        played.ups.append(shape)
        if error := played.up_errors.get(shape):
            raise error
        if played.up_error:
            raise played.up_error
        if played.stops_up_of == shape:
            played.interrupts.add()
        return played.stops_up_of != shape

    monkeypatch.setattr(bring_up, "check", check)
    for name, value in {"preview": "", "first_record": RECORD, "find_own": RECORD,
                        "save_evidence": (), "save_logs": ()}.items():  # fmt: skip
        monkeypatch.setattr(bring_up, name, returning(value))
    monkeypatch.setattr(bring_up, "unschedulable_limit_s", lambda *_: 0.0)
    monkeypatch.setattr(bring_up, "up", up)
    monkeypatch.setattr(measure, "Measuring", lambda *_: played)
    monkeypatch.setattr(launch, "Teardown", lambda **_: played)
    monkeypatch.setattr(launch, "watched_contact", played.watched_contact)
    return played


async def test_a_silent_api_server_is_said_from_up_to_the_leak_check(played: Played) -> None:
    await played.launched()
    # While the run is followed `RunWatch` says it.
    assert played.did_watched == ["up", "fetch", "destroy", "check"]


async def test_a_state_on_which_somebody_works_is_left_alone(played: Played) -> None:
    earlier = msgspec.structs.replace(RECORD, namespace="earlier")
    played.up_error = bring_up.StateLocked("somebody else works on its state")
    for known in (None, earlier):
        if known:
            played.home.save(known)
        with pytest.raises(EnvironmentProblem, match="somebody else works on its state"):
            await played.launched()
        assert (played.did, played.home.load("s")) == ([], known)


async def test_a_check_that_could_not_be_made_is_the_exit_code_even_of_an_interrupt(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    played.report = Unreachable("the cluster does not respond")
    played.stops_up_of = 1
    outcome = await played.launched()
    assert outcome.exit_code is ExitCode.ERROR
    assert outcome.as_json()["not_checked"] == ["everything (the cluster does not respond)"]
    assert "look with: aiperf-svc gc s" in capsys.readouterr().err
    assert played.home.load("s") is not None


async def test_nothing_is_left_is_said_only_when_everything_was_looked_at(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (await played.launched()).exit_code is ExitCode.OK
    assert "leak check: nothing is left" in capsys.readouterr().err
    played.report = NOT_ALL
    assert (await played.launched()).exit_code is ExitCode.OK
    said = capsys.readouterr().err
    assert "leak check: found nothing; 2 types not checked: nodes (not allowed), leases" in said
    assert "nothing is left" not in said


async def test_a_state_that_a_failed_destroy_left_is_mended_or_its_record_stays(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    played.is_destroyed = False
    assert (await played.launched()).exit_code is ExitCode.OK
    assert (played.did, played.home.load("s")) == (["destroy", "check", "mend"], None)
    played.is_mended = False
    assert (await played.launched()).exit_code is ExitCode.ERROR
    assert played.home.load("s") == RECORD


async def test_another_stack_of_the_same_name_is_said_and_no_leak(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    played.report = msgspec.structs.replace(CLEAN, others=(OTHER,))
    assert (await played.launched()).exit_code is ExitCode.OK
    said = capsys.readouterr().err
    assert "not touched, of another stack with the same name: Namespace aiperf-s-x" in said


async def test_results_that_cannot_be_fetched_keep_their_stack(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    played.fetch_error = EnvironmentProblem("the disk is full")
    outcome = await played.launched()
    assert (outcome.exit_code, outcome.as_json()["kept"], played.did) == (ExitCode.ERROR, True, [])
    said = capsys.readouterr().err
    assert "they are in the stack and nowhere else" in said
    assert "aiperf-svc results s" in said
    assert played.home.load("s") is not None


async def test_evidence_for_which_there_is_no_room_fails_no_run(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bring_up, "save_evidence", full)
    played.fetch_error = EnvironmentProblem("the disk is full")
    outcome = await played.launched()
    assert (outcome.state, outcome.reason, outcome.exit_code) == ("done", "", ExitCode.ERROR)


async def test_the_services_logs_are_saved_with_the_results_and_a_missing_one_fails_no_run(
    played: Played, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Path] = []

    async def save(cluster: Cluster, record: RunRecord, artifacts: Path) -> tuple[str, ...]:
        asked.append(artifacts)
        if len(asked) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return ("logs/worker-1.main.log: no response",)

    monkeypatch.setattr(bring_up, "save_logs", save)
    for words in ("logs/worker-1.main.log: no response", "No space left on device"):
        outcome = await played.launched()
        assert (outcome.exit_code, outcome.artifacts) == (ExitCode.OK, asked[-1])
        said = capsys.readouterr().err
        assert "not saved: " in said
        assert words in said


async def test_results_that_are_in_a_bucket_keep_no_stack(played: Played) -> None:
    played.fetch_error = EnvironmentProblem("the disk is full")
    played.uploaded_to = "s3://bucket/run"
    outcome = await played.launched()
    assert (outcome.exit_code, played.did) == (ExitCode.ERROR, ["destroy", "check"])


async def test_a_run_that_was_stopped_early_leaves_no_empty_folder(played: Played) -> None:
    played.stops_up_of = 1
    outcome = await played.launched()
    assert (outcome.exit_code, outcome.artifacts) == (ExitCode.INTERRUPTED, None)
    assert os.listdir(played.request.config.artifacts.dir) == []  # noqa: PTH208


async def test_a_stack_without_a_file_that_was_not_made_leaves_no_state(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = played.request
    request = StackRequest(
        stack="s", config=request.config, benchmark=request.benchmark, is_ephemeral=True, environ={}
    )

    async def refuse(*_: Any, **__: Any) -> None:
        assert played.home.ephemeral_stacks() == ("s",)
        raise EnvironmentProblem("the stack cannot come up")

    monkeypatch.setattr(bring_up, "check", refuse)
    cluster = cast("Cluster", SimpleNamespace(identity="uid"))
    options = StackOptions(run=RunOptions(ui="none"), yes=True)
    with (
        played.home.hold("s") as held,
        pytest.raises(EnvironmentProblem, match="cannot come up"),
    ):
        await run._launched(
            request,
            options,
            played.home,
            cluster,
            played.interrupts,
            WholeScreen(options.run),
            held=held,
        )
    assert played.home.ephemeral_stacks() == ()


def in_shapes(played: Played, *, on_failure: str = "continue", number: int = 3) -> list[str]:
    """Give the stack trials of so many shapes, two of each; the ids of their runs."""
    experiment = {
        "product": {"workers.max": list(range(1, number + 1))},
        "repetitions": 2,
        "on_failure": on_failure,
    }
    benchmark = {**played.request.benchmark, "experiment": experiment}
    config = parse_config(benchmark, "")
    played.request = StackRequest(stack="s", config=config, benchmark=benchmark, environ={})
    return [plan.identity.run_id for plan in played.request.plans]


def trials_of(outcome: RunOutcome) -> list[tuple[int, str, str]]:
    assert outcome.summary is not None
    return [(t["number"], t["state"], t["reason"]) for t in outcome.summary["trials"]]


async def test_all_shapes_run_on_one_stack_and_their_trials_are_in_one_folder(
    played: Played,
) -> None:
    in_shapes(played)
    outcome = await played.launched()
    assert (played.ups, played.did) == ([1, 2, 3], ["destroy", "check"])
    assert trials_of(outcome) == [(number, "done", "") for number in range(1, 7)]
    assert outcome.artifacts is not None
    assert len(list((outcome.artifacts / "trials").iterdir())) == 6
    assert (outcome.artifacts / "experiment.parquet").exists()
    assert not (outcome.artifacts / "shapes").exists()


async def test_a_shape_that_does_not_come_up_takes_only_its_own_trials(played: Played) -> None:
    in_shapes(played)
    played.up_errors[2] = EnvironmentProblem("no room")
    outcome = await played.launched()
    assert (played.ups, played.did) == ([1, 2, 3], ["destroy", "check"])
    assert [state for _, state, _ in trials_of(outcome)] == ["done", "failed", "done"] * 2
    assert trials_of(outcome)[4] == (5, "failed", "no room")
    assert (outcome.state, outcome.exit_code) == ("done", ExitCode.BENCHMARK_FAILED)


async def test_a_shape_that_preflight_refuses_is_not_brought_up(played: Played) -> None:
    first, _, _ = in_shapes(played)
    played.check_errors[first] = EnvironmentProblem("no such node")
    outcome = await played.launched()
    assert played.ups == [2, 3]
    assert trials_of(outcome)[3] == (4, "failed", "no such node")


async def test_nothing_is_made_if_preflight_refuses_a_shape_and_a_failure_is_to_stop(
    played: Played,
) -> None:
    _, second, _ = in_shapes(played, on_failure="stop")
    played.check_errors[second] = EnvironmentProblem("no such node")
    with pytest.raises(EnvironmentProblem, match="no such node"):
        await played.launched()
    assert (played.ups, played.did) == ([], [])


async def test_the_finished_trials_stay_where_a_failure_stops_an_experiment(
    played: Played,
) -> None:
    in_shapes(played, on_failure="stop")
    played.up_errors[2] = EnvironmentProblem("no room")
    outcome = await played.launched()
    assert (played.ups, played.did) == ([1, 2], ["destroy", "check"])
    assert [(n, state) for n, state, _ in trials_of(outcome)] == [
        (1, "done"),
        (2, "failed"),
        (4, "done"),
        (5, "failed"),
    ]
    assert (outcome.state, outcome.exit_code) == ("failed", ExitCode.BENCHMARK_FAILED)


async def test_a_state_that_is_locked_between_two_shapes_still_leads_to_the_teardown(
    played: Played,
) -> None:
    in_shapes(played, number=2)
    played.up_errors[2] = bring_up.StateLocked("somebody else works on its state")
    outcome = await played.launched()
    assert played.did == ["destroy", "check"]
    assert trials_of(outcome)[1] == (2, "failed", "somebody else works on its state")


async def test_who_stops_an_experiment_keeps_the_shapes_that_are_over(played: Played) -> None:
    in_shapes(played)

    played.stops_up_of = 2
    outcome = await played.launched()
    assert (played.ups, played.did) == ([1, 2], ["destroy", "check"])
    assert [number for number, _, _ in trials_of(outcome)] == [1, 4]
    assert outcome.exit_code is ExitCode.INTERRUPTED
