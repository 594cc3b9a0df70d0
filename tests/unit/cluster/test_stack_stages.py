"""Every way through a stack's run ends, and none forgets the teardown."""

import itertools
from typing import Any

import pytest

from aiperf_svc.core.cluster.stack_stages import IllegalStep, StackLifecycle, Stage, StageResult

ENDING = (StageResult.FAILED, StageResult.INTERRUPTED) * 4
MAKING = (Stage.UP, Stage.RUN, Stage.COLLECT, Stage.EVIDENCE)


def at(stage: Stage, *, keep: bool = False, keep_on_failure: bool = False) -> StackLifecycle:
    lifecycle = StackLifecycle(keep=keep, keep_on_failure=keep_on_failure)
    for before in (Stage.PREFLIGHT, Stage.PREVIEW, Stage.UP, Stage.RUN):
        if lifecycle.stage is stage:
            break
        lifecycle.end(before, StageResult.DONE)
    return lifecycle


def test_good_run_passes_all_stages_except_evidence() -> None:
    lifecycle = StackLifecycle()
    seen = [lifecycle.stage]
    while lifecycle.stage is not Stage.FINISHED:
        seen.append(lifecycle.end(lifecycle.stage, StageResult.DONE))
    assert seen == [stage for stage in Stage if stage is not Stage.EVIDENCE]


@pytest.mark.parametrize("stage", [Stage.PREFLIGHT, Stage.PREVIEW])
@pytest.mark.parametrize(
    "result", [StageResult.FAILED, StageResult.DECLINED, StageResult.INTERRUPTED]
)
def test_lifecycle_ended_before_up_needs_no_teardown(stage: Stage, result: StageResult) -> None:
    lifecycle = at(stage)
    assert not lifecycle.may_exist
    assert lifecycle.end(stage, result) is Stage.FINISHED


def test_interrupt_at_the_preview_question_ends_run() -> None:
    assert at(Stage.PREVIEW).end(Stage.PREVIEW, StageResult.DONE, interrupts=1) is Stage.FINISHED


@pytest.mark.parametrize("stage", [Stage.UP, Stage.RUN, Stage.COLLECT])
def test_failure_evidence_is_saved_before_destroy(stage: Stage) -> None:
    lifecycle = at(stage)
    assert lifecycle.end(stage, StageResult.FAILED) is Stage.EVIDENCE
    assert lifecycle.failed_in is stage
    assert lifecycle.end(Stage.EVIDENCE, StageResult.FAILED) is Stage.DESTROY


def test_one_interrupt_collects_results_two_do_not() -> None:
    assert at(Stage.RUN).end(Stage.RUN, StageResult.DONE, interrupts=1) is Stage.COLLECT
    assert at(Stage.RUN).end(Stage.RUN, StageResult.INTERRUPTED, interrupts=2) is Stage.DESTROY


def test_failed_run_with_results_is_collected_with_evidence() -> None:
    lifecycle = at(Stage.RUN)
    lifecycle.fail_run()
    assert lifecycle.end(Stage.RUN, StageResult.DONE) is Stage.COLLECT
    assert lifecycle.end(Stage.COLLECT, StageResult.DONE) is Stage.EVIDENCE


def test_survived_loss_saves_evidence_without_failure() -> None:
    lifecycle = at(Stage.RUN, keep_on_failure=True)
    lifecycle.suspect_run()
    assert lifecycle.end(Stage.RUN, StageResult.DONE) is Stage.COLLECT
    assert lifecycle.end(Stage.COLLECT, StageResult.DONE) is Stage.EVIDENCE
    assert lifecycle.end(Stage.EVIDENCE, StageResult.DONE) is Stage.DESTROY
    assert lifecycle.failed_in is None


@pytest.mark.parametrize("interrupts", [0, 1, 2])
@pytest.mark.parametrize("result", [StageResult.DONE, StageResult.FAILED, StageResult.INTERRUPTED])
def test_leak_check_follows_any_result_of_destroy(result: StageResult, interrupts: int) -> None:
    lifecycle = at(Stage.COLLECT)
    lifecycle.end(Stage.COLLECT, StageResult.DONE)
    assert lifecycle.end(Stage.DESTROY, result, interrupts=interrupts) is Stage.CHECK
    assert lifecycle.end(Stage.CHECK, result, interrupts=interrupts) is Stage.FINISHED


@pytest.mark.parametrize(
    ("result", "keep", "keep_on_failure", "is_kept"),
    [
        (StageResult.DONE, True, False, True),
        (StageResult.FAILED, True, False, True),
        (StageResult.FAILED, False, True, True),
        (StageResult.DONE, False, True, False),
    ],
)
def test_stack_is_kept_as_requested(
    result: StageResult, keep: bool, keep_on_failure: bool, is_kept: bool
) -> None:
    lifecycle = at(Stage.COLLECT, keep=keep, keep_on_failure=keep_on_failure)
    lifecycle.end(Stage.COLLECT, result)
    if lifecycle.stage is Stage.EVIDENCE:
        lifecycle.end(Stage.EVIDENCE, StageResult.DONE)
    assert (lifecycle.is_kept, lifecycle.stage is Stage.FINISHED) == (is_kept, is_kept)


@pytest.mark.parametrize(("interrupts", "is_kept"), [(0, True), (1, False)])
def test_only_copy_of_results_keeps_the_stack(interrupts: int, is_kept: bool) -> None:
    lifecycle = at(Stage.COLLECT)
    lifecycle.has_only_copy = True
    assert lifecycle.end(Stage.COLLECT, StageResult.FAILED, interrupts=interrupts) is Stage.EVIDENCE
    after = lifecycle.end(Stage.EVIDENCE, StageResult.DONE, interrupts=interrupts)
    assert (after, lifecycle.is_kept) == (Stage.FINISHED if is_kept else Stage.DESTROY, is_kept)


def test_up_without_objects_needs_no_teardown() -> None:
    assert at(Stage.UP).end(Stage.UP, StageResult.DECLINED) is Stage.FINISHED


@pytest.mark.parametrize("stage", [Stage.UP, Stage.RUN, Stage.COLLECT])
def test_interrupted_stack_is_not_kept(stage: Stage) -> None:
    lifecycle = at(stage, keep=True, keep_on_failure=True)
    lifecycle.end(stage, StageResult.INTERRUPTED, interrupts=2)
    assert (lifecycle.stage, lifecycle.is_kept) == (Stage.DESTROY, False)


def test_every_lifecycle_ends_and_checks_for_leaks() -> None:
    for results in itertools.product(
        (StageResult.DONE, StageResult.FAILED, StageResult.INTERRUPTED), repeat=6
    ):
        for stops_at in range(8):
            lifecycle, made = StackLifecycle(shapes=[1, 2, 3]), False
            for step, result in enumerate((*results, *ENDING)):
                if lifecycle.stage is Stage.FINISHED:
                    break
                made = made or lifecycle.stage in MAKING
                lifecycle.end(lifecycle.stage, result, interrupts=max(0, step - stops_at))
            assert lifecycle.stage is Stage.FINISHED, lifecycle.story
            looked = any(step.startswith(Stage.CHECK.value) for step in lifecycle.story)
            assert looked == made, lifecycle.story


def test_only_the_current_stage_can_end() -> None:
    lifecycle = at(Stage.RUN)
    with pytest.raises(IllegalStep, match="up done"):
        lifecycle.end(Stage.UP, StageResult.DONE)


def in_run_of(shapes: int, **how: Any) -> StackLifecycle:
    lifecycle = StackLifecycle(shapes=list(range(1, shapes + 1)), **how)
    for stage in (Stage.PREFLIGHT, Stage.PREVIEW, Stage.UP):
        lifecycle.end(stage, StageResult.DONE)
    return lifecycle


def test_all_shapes_are_collected_before_the_stack_goes() -> None:
    lifecycle, seen = StackLifecycle(shapes=[1, 2, 3]), []
    while lifecycle.stage is not Stage.FINISHED:
        seen.append((lifecycle.stage, lifecycle.shape))
        lifecycle.end(lifecycle.stage, StageResult.DONE)
    of_a_shape = (Stage.UP, Stage.RUN, Stage.COLLECT)
    assert seen == [
        (Stage.PREFLIGHT, 1),
        (Stage.PREVIEW, 1),
        *((stage, shape) for shape in (1, 2, 3) for stage in of_a_shape),
        (Stage.DESTROY, 3),
        (Stage.CHECK, 3),
    ]


@pytest.mark.parametrize("stage", [Stage.UP, Stage.RUN])
def test_failed_shape_saves_evidence_and_next_follows(stage: Stage) -> None:
    lifecycle = StackLifecycle(shapes=[1, 2])
    while lifecycle.stage is not stage:
        lifecycle.end(lifecycle.stage, StageResult.DONE)
    assert lifecycle.end(stage, StageResult.FAILED) is Stage.EVIDENCE
    assert lifecycle.end(Stage.EVIDENCE, StageResult.DONE) is Stage.UP
    assert (lifecycle.shape, lifecycle.failed_in) == (2, stage)
    for each in (Stage.UP, Stage.RUN, Stage.COLLECT):
        after = lifecycle.end(each, StageResult.DONE)
    # The second one did not fail: there is nothing to look at.
    assert after is Stage.DESTROY


@pytest.mark.parametrize("how", [{"stops_on_failure": True}, {"keep_on_failure": True}])
def test_no_shape_follows_a_stopping_failure(how: dict[str, bool]) -> None:
    lifecycle = in_run_of(2, **how)
    lifecycle.end(Stage.RUN, StageResult.FAILED)
    after = lifecycle.end(Stage.EVIDENCE, StageResult.DONE)
    assert after is (Stage.FINISHED if "keep_on_failure" in how else Stage.DESTROY)
    assert lifecycle.shape == 1


def test_interrupt_timeout_or_only_copy_ends_shapes() -> None:
    for spoil in ("interrupt", "timeout", "only copy"):
        lifecycle = in_run_of(2)
        interrupts = int(spoil == "interrupt")
        lifecycle.end(Stage.RUN, StageResult.DONE, interrupts=interrupts)
        if spoil == "timeout":
            lifecycle.end_shapes()
        result = StageResult.FAILED if spoil == "only copy" else StageResult.DONE
        lifecycle.has_only_copy = spoil == "only copy"
        after = lifecycle.end(Stage.COLLECT, result, interrupts=interrupts)
        if after is Stage.EVIDENCE:
            after = lifecycle.end(Stage.EVIDENCE, StageResult.DONE, interrupts=interrupts)
        assert after is (Stage.FINISHED if spoil == "only copy" else Stage.DESTROY)


def test_kept_stack_has_its_last_shape() -> None:
    lifecycle = in_run_of(2, keep=True)
    while lifecycle.stage is not Stage.FINISHED:
        lifecycle.end(lifecycle.stage, StageResult.DONE)
    assert (lifecycle.shape, lifecycle.is_kept) == (2, True)


def test_finished_experiment_removes_stack_of_killed_runner() -> None:
    lifecycle = StackLifecycle(shapes=[])
    assert lifecycle.end(Stage.PREFLIGHT, StageResult.DONE) is Stage.DESTROY
    assert lifecycle.end(Stage.DESTROY, StageResult.DONE) is Stage.CHECK
    lifecycle = StackLifecycle(shapes=[])
    assert lifecycle.end(Stage.PREFLIGHT, StageResult.DECLINED) is Stage.FINISHED


def test_stack_taken_over_is_not_kept() -> None:
    for stage in (Stage.RUN, Stage.COLLECT):
        lifecycle = at(stage, keep=True, keep_on_failure=True)
        lifecycle.shapes = [1, 2]
        lifecycle.has_only_copy = True
        lifecycle.lose()
        assert lifecycle.end(stage, StageResult.FAILED) is Stage.EVIDENCE
        assert lifecycle.end(Stage.EVIDENCE, StageResult.DONE) is Stage.DESTROY
        assert not lifecycle.is_kept
