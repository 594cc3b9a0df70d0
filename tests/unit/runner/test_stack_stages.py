"""Every way through a stack's run ends, and none forgets the teardown."""

import itertools

import pytest

from aiperf_svc.runner.stack.stages import Course, How, IllegalStep, Stage

MAKING = (Stage.UP, Stage.RUN, Stage.COLLECT, Stage.EVIDENCE)


def at(stage: Stage, *, keep: bool = False, keep_on_failure: bool = False) -> Course:
    course = Course(keep=keep, keep_on_failure=keep_on_failure)
    for before in (Stage.PREFLIGHT, Stage.PREVIEW, Stage.UP, Stage.RUN):
        if course.stage is stage:
            break
        course.end(before, How.DONE)
    return course


def test_a_run_without_trouble_goes_through_all_stages_but_evidence() -> None:
    course = Course()
    seen = [course.stage]
    while course.stage is not Stage.OVER:
        seen.append(course.end(course.stage, How.DONE))
    assert seen == [stage for stage in Stage if stage is not Stage.EVIDENCE]


@pytest.mark.parametrize("stage", [Stage.PREFLIGHT, Stage.PREVIEW])
@pytest.mark.parametrize("how", [How.FAILED, How.DECLINED, How.LEFT])
def test_before_up_there_is_nothing_to_tear_down(stage: Stage, how: How) -> None:
    course = at(stage)
    assert not course.may_exist
    assert course.end(stage, how) is Stage.OVER


def test_an_interrupt_during_a_question_is_no_yes() -> None:
    assert at(Stage.PREVIEW).end(Stage.PREVIEW, How.DONE, interrupts=1) is Stage.OVER


@pytest.mark.parametrize("stage", [Stage.UP, Stage.RUN, Stage.COLLECT])
def test_a_failure_is_looked_at_before_it_is_destroyed(stage: Stage) -> None:
    course = at(stage)
    assert course.end(stage, How.FAILED) is Stage.EVIDENCE
    assert course.failed_in is stage
    assert course.end(Stage.EVIDENCE, How.FAILED) is Stage.DESTROY


def test_one_interrupt_in_the_run_leads_to_its_results_two_do_not() -> None:
    assert at(Stage.RUN).end(Stage.RUN, How.DONE, interrupts=1) is Stage.COLLECT
    assert at(Stage.RUN).end(Stage.RUN, How.LEFT, interrupts=2) is Stage.DESTROY


def test_a_run_that_failed_with_results_is_collected_and_then_looked_at() -> None:
    course = at(Stage.RUN)
    course.fail_run()
    assert course.end(Stage.RUN, How.DONE) is Stage.COLLECT
    assert course.end(Stage.COLLECT, How.DONE) is Stage.EVIDENCE


def test_a_loss_that_the_run_survived_is_looked_at_and_is_no_failure() -> None:
    course = at(Stage.RUN, keep_on_failure=True)
    course.suspect_run()
    assert course.end(Stage.RUN, How.DONE) is Stage.COLLECT
    assert course.end(Stage.COLLECT, How.DONE) is Stage.EVIDENCE
    assert course.end(Stage.EVIDENCE, How.DONE) is Stage.DESTROY
    assert course.failed_in is None


@pytest.mark.parametrize("interrupts", [0, 1, 2])
@pytest.mark.parametrize("how", [How.DONE, How.FAILED, How.LEFT])
def test_however_destroying_ends_somebody_looks(how: How, interrupts: int) -> None:
    course = at(Stage.COLLECT)
    course.end(Stage.COLLECT, How.DONE)
    assert course.end(Stage.DESTROY, how, interrupts=interrupts) is Stage.CHECK
    assert course.end(Stage.CHECK, how, interrupts=interrupts) is Stage.OVER


@pytest.mark.parametrize(
    ("how", "keep", "keep_on_failure", "is_kept"),
    [
        (How.DONE, True, False, True),
        (How.FAILED, True, False, True),
        (How.FAILED, False, True, True),
        (How.DONE, False, True, False),
    ],
)
def test_a_stack_stays_where_the_user_asked_for_it(
    how: How, keep: bool, keep_on_failure: bool, is_kept: bool
) -> None:
    course = at(Stage.COLLECT, keep=keep, keep_on_failure=keep_on_failure)
    course.end(Stage.COLLECT, how)
    if course.stage is Stage.EVIDENCE:
        course.end(Stage.EVIDENCE, How.DONE)
    assert (course.is_kept, course.stage is Stage.OVER) == (is_kept, is_kept)


@pytest.mark.parametrize(("interrupts", "is_kept"), [(0, True), (1, False)])
def test_the_only_copy_of_the_results_stays_unless_the_user_wants_the_stack_gone(
    interrupts: int, is_kept: bool
) -> None:
    course = at(Stage.COLLECT)
    course.has_only_copy = True
    assert course.end(Stage.COLLECT, How.FAILED, interrupts=interrupts) is Stage.EVIDENCE
    after = course.end(Stage.EVIDENCE, How.DONE, interrupts=interrupts)
    assert (after, course.is_kept) == (Stage.OVER if is_kept else Stage.DESTROY, is_kept)


def test_an_up_that_made_nothing_is_not_torn_down() -> None:
    assert at(Stage.UP).end(Stage.UP, How.DECLINED) is Stage.OVER


@pytest.mark.parametrize("stage", [Stage.UP, Stage.RUN, Stage.COLLECT])
def test_who_stops_a_run_wants_its_stack_gone(stage: Stage) -> None:
    course = at(stage, keep=True, keep_on_failure=True)
    course.end(stage, How.LEFT, interrupts=2)
    assert (course.stage, course.is_kept) == (Stage.DESTROY, False)


def test_every_course_ends_and_tears_down_what_it_made() -> None:
    for hows in itertools.product((How.DONE, How.FAILED, How.LEFT), repeat=6):
        for stops_at in range(8):
            course, made = Course(), False
            for step, how in enumerate((*hows, How.FAILED, How.LEFT)):
                if course.stage is Stage.OVER:
                    break
                made = made or course.stage in MAKING
                course.end(course.stage, how, interrupts=max(0, step - stops_at))
            assert course.stage is Stage.OVER, course.story
            looked = any(step.startswith(Stage.CHECK.value) for step in course.story)
            assert looked == made, course.story


def test_a_stage_that_is_not_going_on_cannot_end() -> None:
    course = at(Stage.RUN)
    with pytest.raises(IllegalStep, match="up done"):
        course.end(Stage.UP, How.DONE)
