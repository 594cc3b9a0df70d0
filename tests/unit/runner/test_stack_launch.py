"""A stack run that cannot continue as planned: its messages, and what it keeps and removes."""

import asyncio
import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, Unreachable
from aiperf_svc.adapters.cluster.ownership import StackInUse, TakenOver
from aiperf_svc.adapters.cluster.teardown.leaks import LeakReport
from aiperf_svc.adapters.pulumi.state_home import RunRecord
from aiperf_svc.adapters.terminal import output
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.domain.errors import BenchmarkFailed, EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.session import Session
from aiperf_svc.runner.stack import bring_up, launch, measure, placement, records
from aiperf_svc.runner.stack.request import open_project
from tests.support.fake_stack_run import (
    OTHER,
    RECORD,
    FakeStackRun,
    in_shapes,
    returning,
    trials_of,
)


async def test_silent_api_server_is_reported_in_cluster_stages(stack_run: FakeStackRun) -> None:
    await stack_run.launch()
    # While the run is followed, `RunWatch` reports it.
    assert stack_run.did_watched == ["up", "fetch", "destroy", "check"]


async def test_pulumi_works_on_the_connected_cluster(stack_run: FakeStackRun) -> None:
    await stack_run.launch()
    assert stack_run.pinned == ("uid", "c")


@pytest.mark.parametrize("gpus", [0, 2])
async def test_gpu_pods_are_reported_gone_after_the_check(
    stack_run: FakeStackRun, capsys: pytest.CaptureFixture[str], gpus: int
) -> None:
    target = {"kind": "custom", "image": "v:1"} | ({"gpu": {"count": gpus}} if gpus else {})
    benchmark = {**stack_run.benchmark, "deployment": {"target": target}}
    benchmark["endpoint"] = {**benchmark["endpoint"], "url": "http://target"}
    stack_run.request = replace(stack_run.request, config=parse_config(benchmark, ""))
    await stack_run.launch()
    words = "the pods with 2 GPUs have ended on their nodes"
    assert (words in capsys.readouterr().err) is bool(gpus)


async def test_locked_state_is_left_alone(stack_run: FakeStackRun) -> None:
    earlier = msgspec.structs.replace(RECORD, namespace="earlier")
    stack_run.up_error = bring_up.StateLocked("somebody else works on its state")
    for known in (None, earlier):
        if known:
            stack_run.home.save(known)
        with pytest.raises(EnvironmentProblem, match="somebody else works on its state"):
            await stack_run.launch()
        assert (stack_run.did, stack_run.home.load("s")) == ([], known)


@pytest.mark.parametrize("own", [(), ("left",)])
async def test_unfinished_roots_are_removed_before_first_up(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch, own: tuple[str, ...]
) -> None:
    ups_before: list[int] = []

    async def remove_unfinished(*_: Any) -> None:
        ups_before.append(len(stack_run.ups))

    in_shapes(stack_run, number=2)
    record = msgspec.structs.replace(RECORD, own=own)
    for name in ("first_record", "find_own"):
        monkeypatch.setattr(records, name, returning(record))
    monkeypatch.setattr(records, "remove_unfinished", remove_unfinished)
    await stack_run.launch()
    assert stack_run.ups == [1, 2]
    assert ups_before == ([0] if own else [])


@pytest.mark.parametrize("is_in_use", [False, True])
async def test_takeover_names_the_new_holder(
    stack_run: FakeStackRun,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_in_use: bool,
) -> None:
    class Keeper:
        loss = TakenOver("stack s was taken over by bob@laptop (process 7)")
        loss.is_in_use = is_in_use

        def begin(self, namespace: str) -> None:
            return None

        async def close(self, *, is_kept: bool) -> None:
            assert is_kept is is_in_use

    monkeypatch.setattr(launch, "LeaseKeeper", lambda *_: Keeper())
    # Consequential errors do not hide it, and an unused stack is not kept.
    stack_run.fetch_error = EnvironmentProblem("no connection to the pod")
    outcome = await stack_run.launch()
    printed = outcome.as_json()
    assert (outcome.exit_code, printed["reason"], printed["kept"]) == (
        ExitCode.BENCHMARK_FAILED, str(Keeper.loss), is_in_use
    )  # fmt: skip
    assert stack_run.did == ([] if is_in_use else ["destroy", "check"])
    assert "kept: " not in capsys.readouterr().err


async def test_stack_in_use_is_not_removed(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_use, silent = StackInUse("bob works on stack s"), Unreachable("no response")
    raised: list[Exception] = [in_use, silent, KeyError("resources")]

    async def refuse_used(*_: Any, **__: Any) -> None:
        raise raised.pop(0)

    monkeypatch.setattr(records, "refuse_used", refuse_used)
    outcome = await stack_run.launch()
    assert (outcome.exit_code, outcome.as_json()["kept"], stack_run.did) == (
        ExitCode.ERROR, True, []
    )  # fmt: skip
    assert outcome.reason == "bob works on stack s"
    assert stack_run.home.load("s") is not None
    assert "kept: " not in capsys.readouterr().err
    # Unknown results do not keep a stack.
    for _ in range(2):
        assert (await stack_run.launch()).exit_code is ExitCode.OK
    assert stack_run.did == ["destroy", "check"] * 2


@pytest.mark.parametrize(
    ("failures", "is_destroyed", "searches", "did"),
    [
        (1, True, 2, ["destroy", "check"]),
        (2, False, 3, ["destroy", "check", "mend"]),
        # The state is empty and no longer shows which objects belonged to the stack.
        (2, True, 2, ["destroy"]),
    ],
    ids=["known before", "known after", "unknown"],
)
async def test_only_known_objects_are_removed_by_label(
    stack_run: FakeStackRun,
    monkeypatch: pytest.MonkeyPatch,
    failures: int,
    is_destroyed: bool,
    searches: int,
    did: list[str],
) -> None:
    requested: list[str] = []

    async def find_own(record: RunRecord, *_: Any) -> RunRecord:
        requested.append(record.stack)
        if len(requested) <= failures:
            raise Unreachable("the cluster does not respond")
        return msgspec.structs.replace(record, own=("ours",))

    monkeypatch.setattr(records, "find_own", find_own)
    stack_run.is_destroyed = is_destroyed
    outcome = await stack_run.launch()
    assert (len(requested), stack_run.did) == (searches, did)
    is_known = "check" in did
    assert outcome.exit_code is (ExitCode.OK if is_known else ExitCode.ERROR)
    assert (stack_run.home.load("s") is None) is is_known


async def test_unexpected_error_proves_no_empty_cluster(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def find_own(*_: Any) -> RunRecord:
        raise KeyError("resources")

    monkeypatch.setattr(records, "find_own", find_own)
    outcome = await stack_run.launch()
    # `first_record` has recorded that there were none before `up`.
    assert RECORD.own == ()
    assert (outcome.exit_code, stack_run.did) == (ExitCode.ERROR, ["destroy"])
    assert "the stack's own: unexpected KeyError: 'resources'" in capsys.readouterr().err
    assert stack_run.home.load("s") is not None


async def test_failed_leak_check_decides_exit_code(
    stack_run: FakeStackRun, capsys: pytest.CaptureFixture[str]
) -> None:
    stack_run.report = Unreachable("the cluster does not respond")
    stack_run.stops_up_of = 1
    outcome = await stack_run.launch()
    assert outcome.exit_code is ExitCode.ERROR
    assert outcome.as_json()["not_checked"] == ["everything (the cluster does not respond)"]
    assert "look with: aiperf-svc gc s" in capsys.readouterr().err
    assert stack_run.home.load("s") is not None


async def test_unknown_undo_of_events_decides_exit_code(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[Exception | None] = [None, Refused("nodes", status=403, reason="Forbidden")]

    async def undo_recorded(*_: Any) -> None:
        if error := ends.pop(0):
            raise error

    monkeypatch.setattr(launch, "find_roots", returning(()))
    monkeypatch.setattr(launch, "undo_recorded", undo_recorded)
    benchmark = stack_run.benchmark | {
        "endpoint": {"url": "http://target", "model": "m"},
        "load": {"request_rate": 10, "duration": "1m"},
        "events": [{"at": "20s", "do": "scale", "replicas": 3}],
        "deployment": {"target": {"kind": "mock"}},
    }
    stack_run.request = replace(stack_run.request, config=parse_config(benchmark, ""))
    outcome = await stack_run.launch()
    assert (outcome.exit_code, stack_run.did) == (ExitCode.ERROR, ["destroy", "check"])
    assert outcome.reason == (
        "it is unknown whether an event of stack s is undone; to undo it: aiperf-svc gc s"
    )


async def test_unfetched_results_keep_their_stack(
    stack_run: FakeStackRun, capsys: pytest.CaptureFixture[str]
) -> None:
    stack_run.fetch_error = EnvironmentProblem("the disk is full")
    outcome = await stack_run.launch()
    assert (outcome.exit_code, outcome.as_json()["kept"], stack_run.did) == (
        ExitCode.ERROR,
        True,
        [],
    )
    printed = capsys.readouterr().err
    assert "The stack holds the only copy of them" in printed
    assert "aiperf-svc results s" in printed
    assert stack_run.home.load("s") is not None


async def test_full_disk_for_evidence_fails_no_run(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(measure.Collection, "_evidence", full)
    stack_run.fetch_error = EnvironmentProblem("the disk is full")
    outcome = await stack_run.launch()
    assert (outcome.state, outcome.reason, outcome.exit_code) == ("done", "", ExitCode.ERROR)


async def test_service_logs_are_saved_missing_ones_noted(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requested: list[Path] = []

    async def save(cluster: Cluster, *, folder: Path, **_: str) -> tuple[str, ...]:
        requested.append(folder)
        if len(requested) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return ("logs/worker-1.main.log: no response",)

    monkeypatch.setattr(measure, "save_logs", save)
    record = msgspec.structs.replace(RECORD, namespace="n")
    for name in ("first_record", "find_own"):
        monkeypatch.setattr(records, name, returning(record))
    for words in ("logs/worker-1.main.log: no response", "No space left on device"):
        outcome = await stack_run.launch()
        assert (outcome.exit_code, outcome.artifacts) == (ExitCode.OK, requested[-1])
        printed = capsys.readouterr().err
        assert "not saved: " in printed
        assert words in printed


async def test_uploaded_results_do_not_keep_the_stack(stack_run: FakeStackRun) -> None:
    stack_run.fetch_error = EnvironmentProblem("the disk is full")
    stack_run.uploaded_to = "s3://bucket/run"
    outcome = await stack_run.launch()
    assert (outcome.exit_code, stack_run.did) == (ExitCode.ERROR, ["destroy", "check"])


async def test_early_stop_leaves_no_empty_folder(stack_run: FakeStackRun) -> None:
    stack_run.stops_up_of = 1
    outcome = await stack_run.launch()
    assert (outcome.exit_code, outcome.artifacts) == (ExitCode.INTERRUPTED, None)
    assert stack_run.made == []


async def test_uncreated_ephemeral_stack_leaves_no_state(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack_run.request = replace(stack_run.request, is_ephemeral=True)

    async def refuse(*_: Any, **__: Any) -> None:
        assert stack_run.home.ephemeral_stacks() == ("s",)
        raise EnvironmentProblem("the stack cannot come up")

    monkeypatch.setattr(bring_up, "check", refuse)
    monkeypatch.setattr(placement, "open_project", open_project)
    with pytest.raises(EnvironmentProblem, match="cannot come up"):
        await stack_run.launch()
    assert stack_run.home.ephemeral_stacks() == ()


async def test_shapes_share_one_stack_and_folder(stack_run: FakeStackRun) -> None:
    in_shapes(stack_run)
    outcome = await stack_run.launch()
    assert (stack_run.ups, stack_run.did) == ([1, 2, 3], ["destroy", "check"])
    assert stack_run.changes == [False, True, True]
    assert trials_of(outcome) == [(number, "done", "") for number in range(1, 7)]
    assert (outcome.state, outcome.exit_code) == ("done", ExitCode.OK)
    assert set(outcome.more) == {"stack", "namespace", "kept", "left", "not_checked", "took_s"}
    assert outcome.artifacts is not None
    assert len(list((outcome.artifacts / "trials").iterdir())) == 6
    assert (outcome.artifacts / "experiment.parquet").exists()
    assert not (outcome.artifacts / "shapes").exists()


async def test_failed_shape_fails_only_its_trials(stack_run: FakeStackRun) -> None:
    in_shapes(stack_run)
    stack_run.up_errors[2] = EnvironmentProblem("no room")
    outcome = await stack_run.launch()
    assert (stack_run.ups, stack_run.did) == ([1, 2, 3], ["destroy", "check"])
    assert [state for _, state, _ in trials_of(outcome)] == ["done", "failed", "done"] * 2
    assert trials_of(outcome)[4] == (5, "failed", "no room")
    assert (outcome.state, outcome.exit_code) == ("done", ExitCode.BENCHMARK_FAILED)


async def test_shape_refused_by_preflight_is_not_created(stack_run: FakeStackRun) -> None:
    first, _, _ = in_shapes(stack_run)
    stack_run.check_errors[first] = EnvironmentProblem("no such node")
    outcome = await stack_run.launch()
    assert stack_run.ups == [2, 3]
    assert trials_of(outcome)[3] == (4, "failed", "no such node")


async def test_refused_shape_stops_before_creation(stack_run: FakeStackRun) -> None:
    _, second, _ = in_shapes(stack_run, on_failure="stop")
    stack_run.check_errors[second] = EnvironmentProblem("no such node")
    with pytest.raises(EnvironmentProblem, match="no such node"):
        await stack_run.launch()
    assert (stack_run.ups, stack_run.did) == ([], [])


async def test_stopping_failure_keeps_finished_trials(stack_run: FakeStackRun) -> None:
    in_shapes(stack_run, on_failure="stop")
    stack_run.up_errors[2] = EnvironmentProblem("no room")
    outcome = await stack_run.launch()
    assert (stack_run.ups, stack_run.did) == ([1, 2], ["destroy", "check"])
    assert [(n, state) for n, state, _ in trials_of(outcome)] == [
        (1, "done"),
        (2, "failed"),
        (4, "done"),
        (5, "failed"),
    ]
    assert (outcome.state, outcome.exit_code) == ("failed", ExitCode.BENCHMARK_FAILED)


async def test_lock_between_shapes_leads_to_teardown(stack_run: FakeStackRun) -> None:
    in_shapes(stack_run, number=2)
    stack_run.up_errors[2] = bring_up.StateLocked("somebody else works on its state")
    outcome = await stack_run.launch()
    assert stack_run.did == ["destroy", "check"]
    assert trials_of(outcome)[1] == (2, "failed", "somebody else works on its state")


async def test_lock_before_the_first_shape_makes_nothing(stack_run: FakeStackRun) -> None:
    in_shapes(stack_run, number=2)
    stack_run.up_errors[1] = bring_up.StateLocked("somebody else works on its state")
    with pytest.raises(EnvironmentProblem, match="somebody else works on its state"):
        await stack_run.launch()
    assert (stack_run.ups, stack_run.did, stack_run.made) == ([1], [], [])


async def test_question_that_is_declined_makes_nothing(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_shapes(stack_run, number=2)
    stack_run.options = replace(stack_run.options, yes=False)
    monkeypatch.setattr(output, "can_ask", lambda: True)
    monkeypatch.setattr(output, "ask", returning(value=False))
    outcome = await stack_run.launch()
    assert (outcome.state, outcome.reason) == ("cancelled", "nothing was created")
    assert (outcome.exit_code, outcome.more["kept"]) == (ExitCode.INTERRUPTED, False)
    assert (stack_run.ups, stack_run.did, stack_run.made) == ([], [], [])


async def test_interrupt_in_the_checks_makes_nothing(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_shapes(stack_run, number=2)

    async def interrupted(*_: Any, **__: Any) -> tuple[()]:
        stack_run.interrupts.add()
        return ()

    monkeypatch.setattr(bring_up, "check", interrupted)
    outcome = await stack_run.launch()
    assert (outcome.exit_code, outcome.reason) == (ExitCode.INTERRUPTED, "nothing was created")
    assert stack_run.made == []


async def test_interrupt_before_the_cluster_responds_makes_nothing(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_shapes(stack_run, number=2)

    async def hanging(*_: Any, **__: Any) -> None:
        stack_run.interrupts.add()
        await asyncio.Event().wait()

    monkeypatch.setattr(placement, "with_api_server", hanging)
    outcome = await stack_run.launch()
    assert (outcome.exit_code, outcome.reason) == (ExitCode.INTERRUPTED, "nothing was created")
    assert outcome.more == {"stack": "s"}
    assert stack_run.made == []


async def test_interrupt_keeps_finished_shapes(stack_run: FakeStackRun) -> None:
    in_shapes(stack_run)

    stack_run.stops_up_of = 2
    outcome = await stack_run.launch()
    assert (stack_run.ups, stack_run.did) == ([1, 2], ["destroy", "check"])
    assert [number for number, _, _ in trials_of(outcome)] == [1, 4]
    assert (outcome.state, outcome.exit_code) == ("cancelled", ExitCode.INTERRUPTED)


async def test_interrupt_between_shapes_removes_a_kept_stack(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_shapes(stack_run, number=2)
    stack_run.options = replace(stack_run.options, keep=True)
    close = Session._close

    async def interrupted(self: Session, round_: int) -> None:
        stack_run.interrupts.add()
        await close(self, round_)

    monkeypatch.setattr(Session, "_close", interrupted)
    outcome = await stack_run.launch()
    assert (stack_run.ups, stack_run.did) == ([1], ["destroy", "check"])
    assert (outcome.exit_code, outcome.more["kept"]) == (ExitCode.INTERRUPTED, False)


async def test_stack_to_keep_stays_with_its_last_shape(stack_run: FakeStackRun) -> None:
    in_shapes(stack_run, number=2)
    stack_run.options = replace(stack_run.options, keep=True)
    outcome = await stack_run.launch()
    assert (stack_run.ups, stack_run.did) == ([1, 2], [])
    assert (outcome.exit_code, outcome.more["kept"]) == (ExitCode.OK, True)


async def test_kept_failure_ends_the_shapes(stack_run: FakeStackRun) -> None:
    in_shapes(stack_run)
    stack_run.options = replace(stack_run.options, keep_on_failure=True)
    stack_run.up_errors[2] = EnvironmentProblem("no room")
    outcome = await stack_run.launch()
    assert (stack_run.ups, stack_run.did) == ([1, 2], [])
    assert (outcome.state, outcome.reason) == ("failed", "no room")
    assert outcome.more["kept"] is True


async def test_only_copy_of_a_shape_ends_the_shapes(stack_run: FakeStackRun) -> None:
    in_shapes(stack_run)
    stack_run.fetch_error = EnvironmentProblem("the disk is full")
    outcome = await stack_run.launch()
    assert (stack_run.ups, stack_run.did, outcome.more["kept"]) == ([1], [], True)
    assert (outcome.exit_code, outcome.artifact_error) == (ExitCode.ERROR, "the disk is full")


async def test_time_limit_leaves_the_other_trials_out(stack_run: FakeStackRun) -> None:
    in_shapes(stack_run)
    stack_run.is_out_of_time = True
    stack_run.failure = BenchmarkFailed("--timeout: the run was stopped at the time limit")
    stack_run.options = replace(stack_run.options, timeout_s=1000.0)
    stack_run.fetched = 1
    outcome = await stack_run.launch()
    assert [number for number, _, _ in trials_of(outcome)] == [1, 2, 3]
    assert (outcome.state, outcome.reason) == ("failed", str(stack_run.failure))


async def test_shapes_that_all_fail_are_a_failed_benchmark(stack_run: FakeStackRun) -> None:
    in_shapes(stack_run, number=2)
    stack_run.up_errors = dict.fromkeys((1, 2), EnvironmentProblem("no room"))
    outcome = await stack_run.launch()
    assert (outcome.state, outcome.reason) == ("done", "no room")
    assert outcome.exit_code is ExitCode.BENCHMARK_FAILED


async def test_trials_of_a_failed_run_have_its_reason(stack_run: FakeStackRun) -> None:
    in_shapes(stack_run, number=2)
    stack_run.run_state, stack_run.run_reason, stack_run.fetched = "failed", "no worker", 0
    outcome = await stack_run.launch()
    assert stack_run.ups == [1, 2]
    assert trials_of(outcome) == [(number, "failed", "no worker") for number in range(1, 5)]


async def test_leak_is_the_reason_of_a_whole_experiment(stack_run: FakeStackRun) -> None:
    in_shapes(stack_run, number=2)
    stack_run.report = LeakReport(left=(OTHER,), not_checked=())
    outcome = await stack_run.launch()
    assert (outcome.state, outcome.exit_code) == ("done", ExitCode.LEAKED)
    assert outcome.reason == "1 object is left of stack s; to try again: aiperf-svc gc s"


async def test_parallel_shape_has_a_stack_of_its_own(stack_run: FakeStackRun) -> None:
    in_shapes(stack_run, parallel=2)
    outcome = await stack_run.run_part(2)
    assert (stack_run.ups, stack_run.did) == ([2], ["destroy", "check"])
    assert (outcome.state, outcome.exit_code) == ("done", ExitCode.OK)
    assert [plan.identity.stack for plan in stack_run.plans] == ["s-2"]
    assert stack_run.part_trials == (2, 5)
