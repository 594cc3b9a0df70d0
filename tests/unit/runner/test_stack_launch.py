"""What a run of a stack does when it cannot go on as planned: what it says, keeps and removes."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster, Unreachable
from aiperf_svc.adapters.cluster.ownership import TakenOver
from aiperf_svc.adapters.pulumi.state_home import RunRecord
from aiperf_svc.adapters.terminal.screens import Screen
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.options import RunOptions, StackOptions
from aiperf_svc.runner.parts import PartContext
from aiperf_svc.runner.stack import bring_up, collection, launch, placement, preflight
from aiperf_svc.runner.stack.request import StackRequest
from tests.support.fake_stack_run import RECORD, FakeStackRun, in_shapes, trials_of


async def test_a_silent_api_server_is_said_from_up_to_the_leak_check(played: FakeStackRun) -> None:
    await played.launched()
    # While the run is followed `RunWatch` says it.
    assert played.did_watched == ["up", "fetch", "destroy", "check"]


async def test_a_state_on_which_somebody_works_is_left_alone(played: FakeStackRun) -> None:
    earlier = msgspec.structs.replace(RECORD, namespace="earlier")
    played.up_error = bring_up.StateLocked("somebody else works on its state")
    for known in (None, earlier):
        if known:
            played.home.save(known)
        with pytest.raises(EnvironmentProblem, match="somebody else works on its state"):
            await played.launched()
        assert (played.did, played.home.load("s")) == ([], known)


async def test_a_run_whose_stack_was_taken_over_names_who_has_taken_it(
    played: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Keeper:
        loss = TakenOver("stack s was taken over by bob@laptop (process 7)")

        def begin(self, namespace: str) -> None:
            return None

        async def close(self, *, is_kept: bool) -> None:
            assert not is_kept

    monkeypatch.setattr(launch, "LeaseKeeper", lambda *_: Keeper())
    # What follows from it does not hide it, and keeps no stack.
    played.fetch_error = EnvironmentProblem("no connection to the pod")
    outcome = await played.launched()
    said = outcome.as_json()
    assert (outcome.exit_code, said["reason"], said["kept"]) == (
        ExitCode.BENCHMARK_FAILED, str(Keeper.loss), False
    )  # fmt: skip
    assert played.did == ["destroy", "check"]


async def test_a_check_that_could_not_be_made_is_the_exit_code_even_of_an_interrupt(
    played: FakeStackRun, capsys: pytest.CaptureFixture[str]
) -> None:
    played.report = Unreachable("the cluster does not respond")
    played.stops_up_of = 1
    outcome = await played.launched()
    assert outcome.exit_code is ExitCode.ERROR
    assert outcome.as_json()["not_checked"] == ["everything (the cluster does not respond)"]
    assert "look with: aiperf-svc gc s" in capsys.readouterr().err
    assert played.home.load("s") is not None


async def test_results_that_cannot_be_fetched_keep_their_stack(
    played: FakeStackRun, capsys: pytest.CaptureFixture[str]
) -> None:
    played.fetch_error = EnvironmentProblem("the disk is full")
    outcome = await played.launched()
    assert (outcome.exit_code, outcome.as_json()["kept"], played.did) == (ExitCode.ERROR, True, [])
    said = capsys.readouterr().err
    assert "The stack holds the only copy of them" in said
    assert "aiperf-svc results s" in said
    assert played.home.load("s") is not None


async def test_evidence_for_which_there_is_no_room_fails_no_run(
    played: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(collection, "save_evidence", full)
    played.fetch_error = EnvironmentProblem("the disk is full")
    outcome = await played.launched()
    assert (outcome.state, outcome.reason, outcome.exit_code) == ("done", "", ExitCode.ERROR)


async def test_the_services_logs_are_saved_with_the_results_and_a_missing_one_fails_no_run(
    played: FakeStackRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Path] = []

    async def save(cluster: Cluster, record: RunRecord, artifacts: Path) -> tuple[str, ...]:
        asked.append(artifacts)
        if len(asked) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return ("logs/worker-1.main.log: no response",)

    monkeypatch.setattr(collection, "save_logs", save)
    for words in ("logs/worker-1.main.log: no response", "No space left on device"):
        outcome = await played.launched()
        assert (outcome.exit_code, outcome.artifacts) == (ExitCode.OK, asked[-1])
        said = capsys.readouterr().err
        assert "not saved: " in said
        assert words in said


async def test_results_that_are_in_a_bucket_keep_no_stack(played: FakeStackRun) -> None:
    played.fetch_error = EnvironmentProblem("the disk is full")
    played.uploaded_to = "s3://bucket/run"
    outcome = await played.launched()
    assert (outcome.exit_code, played.did) == (ExitCode.ERROR, ["destroy", "check"])


async def test_a_run_that_was_stopped_early_leaves_no_empty_folder(played: FakeStackRun) -> None:
    played.stops_up_of = 1
    outcome = await played.launched()
    assert (outcome.exit_code, outcome.artifacts) == (ExitCode.INTERRUPTED, None)
    assert os.listdir(played.request.config.artifacts.dir) == []  # noqa: PTH208


async def test_a_stack_without_a_file_that_was_not_made_leaves_no_state(
    played: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = played.request
    request = StackRequest(stack="s", config=request.config, is_ephemeral=True, environ={})

    async def refuse(*_: Any, **__: Any) -> None:
        assert played.home.ephemeral_stacks() == ("s",)
        raise EnvironmentProblem("the stack cannot come up")

    monkeypatch.setattr(preflight, "check", refuse)
    cluster = cast("Cluster", SimpleNamespace(identity="uid"))
    options = StackOptions(run=RunOptions(ui="none"), yes=True)
    context = PartContext(played.interrupts, Screen(options.run.ui))
    with (
        played.home.hold("s") as held,
        pytest.raises(EnvironmentProblem, match="cannot come up"),
    ):
        await placement.launch(request, options, played.home, cluster, context, held=held)
    assert played.home.ephemeral_stacks() == ()


async def test_all_shapes_run_on_one_stack_and_their_trials_are_in_one_folder(
    played: FakeStackRun,
) -> None:
    in_shapes(played)
    outcome = await played.launched()
    assert (played.ups, played.did) == ([1, 2, 3], ["destroy", "check"])
    assert trials_of(outcome) == [(number, "done", "") for number in range(1, 7)]
    assert outcome.artifacts is not None
    assert len(list((outcome.artifacts / "trials").iterdir())) == 6
    assert (outcome.artifacts / "experiment.parquet").exists()
    assert not (outcome.artifacts / "shapes").exists()


async def test_a_shape_that_does_not_come_up_takes_only_its_own_trials(
    played: FakeStackRun,
) -> None:
    in_shapes(played)
    played.up_errors[2] = EnvironmentProblem("no room")
    outcome = await played.launched()
    assert (played.ups, played.did) == ([1, 2, 3], ["destroy", "check"])
    assert [state for _, state, _ in trials_of(outcome)] == ["done", "failed", "done"] * 2
    assert trials_of(outcome)[4] == (5, "failed", "no room")
    assert (outcome.state, outcome.exit_code) == ("done", ExitCode.BENCHMARK_FAILED)


async def test_a_shape_that_preflight_refuses_is_not_brought_up(played: FakeStackRun) -> None:
    first, _, _ = in_shapes(played)
    played.check_errors[first] = EnvironmentProblem("no such node")
    outcome = await played.launched()
    assert played.ups == [2, 3]
    assert trials_of(outcome)[3] == (4, "failed", "no such node")


async def test_nothing_is_made_if_preflight_refuses_a_shape_and_a_failure_is_to_stop(
    played: FakeStackRun,
) -> None:
    _, second, _ = in_shapes(played, on_failure="stop")
    played.check_errors[second] = EnvironmentProblem("no such node")
    with pytest.raises(EnvironmentProblem, match="no such node"):
        await played.launched()
    assert (played.ups, played.did) == ([], [])


async def test_the_finished_trials_stay_where_a_failure_stops_an_experiment(
    played: FakeStackRun,
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
    played: FakeStackRun,
) -> None:
    in_shapes(played, number=2)
    played.up_errors[2] = bring_up.StateLocked("somebody else works on its state")
    outcome = await played.launched()
    assert played.did == ["destroy", "check"]
    assert trials_of(outcome)[1] == (2, "failed", "somebody else works on its state")


async def test_who_stops_an_experiment_keeps_the_shapes_that_are_over(played: FakeStackRun) -> None:
    in_shapes(played)

    played.stops_up_of = 2
    outcome = await played.launched()
    assert (played.ups, played.did) == ([1, 2], ["destroy", "check"])
    assert [number for number, _, _ in trials_of(outcome)] == [1, 4]
    assert outcome.exit_code is ExitCode.INTERRUPTED


async def test_a_stack_of_one_shape_runs_it_alone_and_leaves_an_experiment(
    played: FakeStackRun,
) -> None:
    in_shapes(played)
    benchmark = {**played.benchmark}
    benchmark["experiment"] = {**benchmark["experiment"], "parallel": 2}
    config = parse_config(benchmark, "")
    played.request = StackRequest(stack="s-2", config=config, only_shape=2, environ={})
    outcome = await played.launched()
    assert (played.ups, played.did) == ([1], ["destroy", "check"])
    assert (outcome.state, outcome.exit_code) == ("done", ExitCode.OK)
    (plan,) = played.request.plans
    assert plan.config.experiment is not None
    assert plan.config.experiment.part is not None
    assert plan.config.experiment.part.trials == (2, 5)
