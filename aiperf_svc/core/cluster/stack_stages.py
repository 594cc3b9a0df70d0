"""The lifecycle of a stack: decides which stage comes next. Pure.

    preflight ─> preview ─> up ─> run ─> collect ─┬────────────> destroy ─> check ─> finished
        │           │        │      │        │    │                 ▲
        └─────┬─────┘        └──────┴────────┴────┴─> evidence ─────┘
              └─> finished

If all trials of a resumed experiment have ended, `destroy` follows the preflight checks, because
the stack of a killed runner may still exist.

The stages from `up` to `collect` or `evidence` belong to one part of the session. If several parts
share the stack, `up` changes it, and `begin_part` inserts the next part before the removal.

As soon as the cluster may contain objects of the stack, every path leads through `destroy` and
`check`, unless the user asked to keep the stack, it holds the only copy of the results, or another
process uses it. Evidence of a failure, or of a loss during a successful run, is saved before the
stack is destroyed.
"""

from dataclasses import dataclass, field
from enum import StrEnum


class Stage(StrEnum):
    """The stages of a stack's lifecycle, in order."""

    PREFLIGHT = "preflight"
    PREVIEW = "preview"
    UP = "up"
    RUN = "run"
    COLLECT = "collect"
    EVIDENCE = "evidence"
    DESTROY = "destroy"
    CHECK = "leak check"
    FINISHED = "finished"


class StageResult(StrEnum):
    DONE = "done"
    FAILED = "failed"
    DECLINED = "declined"
    """Nothing was created: the user declined the preview, or another user holds the state. Or
    nothing was removed: another process uses the stack."""
    INTERRUPTED = "interrupted"
    """The user ended it early."""


AFTER = {
    Stage.PREFLIGHT: Stage.PREVIEW,
    Stage.PREVIEW: Stage.UP,
    Stage.UP: Stage.RUN,
    Stage.RUN: Stage.COLLECT,
}
"""The stage after a successful one, until the results are collected."""


class IllegalStep(RuntimeError):
    """A stage ended that was not the current one."""


@dataclass
class StackLifecycle:
    """The current stage, and the outcome of the previous ones."""

    keep: bool = False
    keep_on_failure: bool = False
    has_parts: bool = True
    """Whether any part remains to run."""
    stage: Stage = Stage.PREFLIGHT
    failed_in: Stage | None = None
    """The first stage that failed."""
    has_part_failed: bool = False
    """A stage of the current part failed."""
    is_suspect: bool = False
    """A pod of the stack died while the run continued, so evidence must be saved."""
    was_interrupted: bool = False
    """The user interrupted a stage."""
    has_only_copy: bool = False
    """The results exist only in the stack, which stays until they are fetched."""
    is_lost: bool = False
    """Another user has taken over the stack: no more parts start, and the stack is not kept."""
    is_in_use: bool = False
    """Another process took over the stack from this one, so the stack remains."""
    is_kept: bool = False
    story: list[str] = field(default_factory=list)
    """Every step so far, for error messages about illegal steps."""

    def end(self, stage: Stage, result: StageResult, *, interrupts: int = 0) -> Stage:
        """Record that `stage` has ended, and return the next one.

        `interrupts` is the number of user interrupts so far. After one interrupt during the run the
        results are still collected; after two they are not. Raises IllegalStep.
        """
        if stage is not self.stage or stage is Stage.FINISHED:
            raise IllegalStep(f"{stage} ended in {self.stage} after {', '.join(self.story)}")
        self.story.append(f"{stage} {result}")
        if result is StageResult.FAILED:
            self._fail_in(stage)
        self.was_interrupted = (
            self.was_interrupted or result is StageResult.INTERRUPTED or interrupts > 0
        )
        self.stage = self._next(result, interrupts)
        return self.stage

    def _next(self, result: StageResult, interrupts: int) -> Stage:
        stage = self.stage
        if stage in (Stage.PREFLIGHT, Stage.PREVIEW):
            continues = result is StageResult.DONE and interrupts == 0
            if continues and not self.has_parts:
                return Stage.DESTROY
            return AFTER[stage] if continues else Stage.FINISHED
        if stage is Stage.DESTROY and result is StageResult.DECLINED:
            self.is_kept = self.is_in_use = True
            return Stage.FINISHED
        if stage is Stage.DESTROY:
            # The check inspects the cluster, whatever `destroy` reported.
            return Stage.CHECK
        if stage is Stage.CHECK or result is StageResult.DECLINED:
            return Stage.FINISHED
        if result is StageResult.FAILED and stage is not Stage.EVIDENCE and interrupts < 2:
            return Stage.EVIDENCE
        # After an interrupt before the run there are no results to wait for, unlike during the
        # run.
        interrupt_limit = 1 if stage is Stage.UP else 2
        if stage in AFTER and result is StageResult.DONE and interrupts < interrupt_limit:
            return AFTER[stage]
        has_evidence = self.has_part_failed or self.is_suspect
        if stage is Stage.COLLECT and has_evidence and interrupts < 2:
            return Stage.EVIDENCE
        return self._teardown()

    @property
    def is_last(self) -> bool:
        """True if no part may follow the current one: the stack remains because of its content, or
        another user has taken it over."""
        is_kept = self.has_only_copy or (self.keep_on_failure and self.has_part_failed)
        return self.is_lost or is_kept

    def begin_part(self) -> None:
        """Begin the first part, or the next part on the same stack. Raises
        IllegalStep."""
        is_next = self.stage in (Stage.DESTROY, Stage.FINISHED) and not self.is_last
        if self.stage is not Stage.UP and not is_next:
            raise IllegalStep(f"a part began in {self.stage} after {', '.join(self.story)}")
        self.stage = Stage.UP
        self.has_part_failed = self.is_suspect = self.is_kept = False

    def stop(self) -> None:
        """Give up a kept stack, because the user interrupted the session after a part."""
        if self.is_kept and not self.is_in_use:
            self.is_kept, self.was_interrupted, self.stage = False, True, Stage.DESTROY

    def fail_run(self) -> None:
        """Mark the run as failed although it has results."""
        self._fail_in(Stage.RUN)

    def _fail_in(self, stage: Stage) -> None:
        self.failed_in = self.failed_in or stage
        self.has_part_failed = True

    def _teardown(self) -> Stage:
        should_keep = self.keep or self.has_only_copy
        should_keep = should_keep or (self.keep_on_failure and self.failed_in is not None)
        if self.is_in_use or (should_keep and not self.was_interrupted and not self.is_lost):
            self.is_kept = True
            return Stage.FINISHED
        return Stage.DESTROY
