"""Every path through a stack's run ends and includes the teardown."""

import itertools

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
    assert at(stage).end(stage, result) is Stage.FINISHED


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
    lifecycle.is_suspect = True
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
            lifecycle, made, parts = StackLifecycle(), False, 2
            for step, result in enumerate((*results, *ENDING)):
                if lifecycle.stage is Stage.FINISHED:
                    break
                made = made or lifecycle.stage in MAKING
                if lifecycle.stage is Stage.DESTROY and parts and not lifecycle.is_last:
                    lifecycle.begin_part()
                    parts -= 1
                lifecycle.end(lifecycle.stage, result, interrupts=max(0, step - stops_at))
            assert lifecycle.stage is Stage.FINISHED, lifecycle.story
            looked = any(step.startswith(Stage.CHECK.value) for step in lifecycle.story)
            assert looked == made, lifecycle.story


def test_only_the_current_stage_can_end() -> None:
    lifecycle = at(Stage.RUN)
    with pytest.raises(IllegalStep, match="up done"):
        lifecycle.end(Stage.UP, StageResult.DONE)


def after_part(result: StageResult = StageResult.DONE, **options: bool) -> StackLifecycle:
    """Return a stack whose first part ended with this result during its run."""
    lifecycle = at(Stage.RUN, **options)
    lifecycle.end(Stage.RUN, result)
    while lifecycle.stage in MAKING:
        lifecycle.end(lifecycle.stage, StageResult.DONE)
    return lifecycle


def test_next_part_starts_before_the_stack_is_removed() -> None:
    lifecycle, seen = after_part(), []
    for _ in range(2):
        lifecycle.begin_part()
        while lifecycle.stage in MAKING:
            seen.append(lifecycle.stage)
            lifecycle.end(lifecycle.stage, StageResult.DONE)
    assert seen == [Stage.UP, Stage.RUN, Stage.COLLECT] * 2
    assert lifecycle.stage is Stage.DESTROY


def test_part_after_a_failed_one_leaves_no_evidence() -> None:
    lifecycle = after_part(StageResult.FAILED)
    assert (lifecycle.failed_in, lifecycle.is_last) == (Stage.RUN, False)
    lifecycle.begin_part()
    for each in (Stage.UP, Stage.RUN, Stage.COLLECT):
        after = lifecycle.end(each, StageResult.DONE)
    assert after is Stage.DESTROY


def test_stack_that_stays_has_no_next_part() -> None:
    kept = after_part(StageResult.FAILED, keep_on_failure=True)
    copy = at(Stage.COLLECT)
    copy.has_only_copy = True
    copy.end(Stage.COLLECT, StageResult.FAILED)
    copy.end(Stage.EVIDENCE, StageResult.DONE)
    lost = after_part()
    lost.is_lost = True
    for lifecycle in (kept, copy, lost):
        assert lifecycle.is_last
        with pytest.raises(IllegalStep, match="a part began in"):
            lifecycle.begin_part()
    assert [each.is_kept for each in (kept, copy, lost)] == [True, True, False]


def test_stack_to_keep_may_have_a_next_part() -> None:
    lifecycle = after_part(keep=True)
    assert (lifecycle.stage, lifecycle.is_kept) == (Stage.FINISHED, True)
    lifecycle.begin_part()
    assert (lifecycle.stage, lifecycle.is_kept) == (Stage.UP, False)


def test_interrupt_after_a_part_keeps_nothing() -> None:
    lifecycle = after_part(keep=True)
    lifecycle.stop()
    assert (lifecycle.stage, lifecycle.is_kept) == (Stage.DESTROY, False)
    assert lifecycle.was_interrupted
    lifecycle = at(Stage.PREVIEW)
    lifecycle.stop()
    assert lifecycle.stage is Stage.PREVIEW


def test_finished_experiment_removes_stack_of_killed_runner() -> None:
    lifecycle = StackLifecycle(has_parts=False)
    assert lifecycle.end(Stage.PREFLIGHT, StageResult.DONE) is Stage.DESTROY
    assert lifecycle.end(Stage.DESTROY, StageResult.DONE) is Stage.CHECK
    lifecycle = StackLifecycle(has_parts=False)
    assert lifecycle.end(Stage.PREFLIGHT, StageResult.DECLINED) is Stage.FINISHED


def test_stack_in_use_by_others_stays() -> None:
    for stage in (Stage.UP, Stage.RUN, Stage.COLLECT):
        lifecycle = at(stage)
        lifecycle.is_lost = lifecycle.is_in_use = True
        assert lifecycle.end(stage, StageResult.FAILED) is Stage.EVIDENCE
        assert lifecycle.end(Stage.EVIDENCE, StageResult.DONE, interrupts=1) is Stage.FINISHED
        lifecycle.stop()
        assert (lifecycle.stage, lifecycle.is_kept) == (Stage.FINISHED, True)


def test_refused_removal_leaves_the_stack() -> None:
    lifecycle = at(Stage.COLLECT)
    lifecycle.end(Stage.COLLECT, StageResult.DONE)
    assert lifecycle.end(Stage.DESTROY, StageResult.DECLINED) is Stage.FINISHED
    assert (lifecycle.is_kept, lifecycle.is_in_use) == (True, True)


def test_stack_taken_over_is_not_kept() -> None:
    for stage in (Stage.RUN, Stage.COLLECT):
        lifecycle = at(stage, keep=True, keep_on_failure=True)
        lifecycle.has_only_copy = True
        lifecycle.is_lost = True
        assert lifecycle.end(stage, StageResult.FAILED) is Stage.EVIDENCE
        assert lifecycle.end(Stage.EVIDENCE, StageResult.DONE) is Stage.DESTROY
        assert not lifecycle.is_kept
