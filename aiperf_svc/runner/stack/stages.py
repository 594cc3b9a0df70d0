"""The course of a stack's run: which stage comes next, whatever happens. Pure.

    preflight ─> preview ─> up ─> run ─> collect ─┬───────────> destroy ─> check ─> over
        │           │        │      │        │    │                ▲
        └───────────┴> over  └──────┴────────┴────┴─> evidence ────┘

From the moment in which something may exist every way leads through `destroy` and `check`, except
where the user asked to keep the stack, or it holds the only copy of the results. Evidence of a
failure, or of a loss that the run survived, is saved before it is destroyed.
"""

from dataclasses import dataclass, field
from enum import StrEnum


class Stage(StrEnum):
    """What is being done."""

    PREFLIGHT = "preflight"
    PREVIEW = "preview"
    UP = "up"
    RUN = "run"
    COLLECT = "collect"
    EVIDENCE = "evidence"
    DESTROY = "destroy"
    CHECK = "leak check"
    OVER = "over"


class How(StrEnum):
    """How a stage ended."""

    DONE = "done"
    FAILED = "failed"
    DECLINED = "declined"
    """Nothing was made: the user said no to the preview, or the state is somebody else's."""
    LEFT = "left"
    """Ended early because the user asked for it."""


AFTER = {
    Stage.PREFLIGHT: Stage.PREVIEW,
    Stage.PREVIEW: Stage.UP,
    Stage.UP: Stage.RUN,
    Stage.RUN: Stage.COLLECT,
}
"""Of a stage that was done, before the results are here."""


class IllegalStep(RuntimeError):
    """A stage ended that was not going on."""


@dataclass
class Course:
    """Where the run is, and what has become of it so far."""

    keep: bool = False
    keep_on_failure: bool = False
    stage: Stage = Stage.PREFLIGHT
    failed_in: Stage | None = None
    """The first stage that failed."""
    is_suspect: bool = False
    """Something of the stack died in a run that went on."""
    was_left: bool = False
    """The user stopped it."""
    has_only_copy: bool = False
    """The results are in the stack and nowhere else: it stays until they are fetched."""
    is_kept: bool = False
    story: list[str] = field(default_factory=list)
    """Every step, for the message about an illegal one."""

    @property
    def may_exist(self) -> bool:
        """Whether the cluster may hold something of the stack."""
        return self.stage not in (Stage.PREFLIGHT, Stage.PREVIEW, Stage.OVER)

    def end(self, stage: Stage, how: How, *, interrupts: int = 0) -> Stage:
        """`stage` has ended; the next one.

        `interrupts` counts the user's so far: one in a run still leads to its results, two skip
        them. Raises IllegalStep.
        """
        if stage is not self.stage or stage is Stage.OVER:
            raise IllegalStep(f"{stage} ended in {self.stage} after {', '.join(self.story)}")
        self.story.append(f"{stage} {how}")
        if how is How.FAILED and self.failed_in is None:
            self.failed_in = stage
        self.was_left = self.was_left or how is How.LEFT or interrupts > 0
        self.stage = self._next(how, interrupts)
        return self.stage

    def _next(self, how: How, interrupts: int) -> Stage:
        stage = self.stage
        if stage in (Stage.PREFLIGHT, Stage.PREVIEW):
            is_on = how is How.DONE and interrupts == 0
            return AFTER[stage] if is_on else Stage.OVER
        if stage is Stage.DESTROY:
            # How destroying ended is no evidence of anything.
            return Stage.CHECK
        if stage is Stage.CHECK or how is How.DECLINED:
            return Stage.OVER
        if how is How.FAILED and stage is not Stage.EVIDENCE and interrupts < 2:
            return Stage.EVIDENCE
        # An interrupt before the run leaves nothing to wait for, one in the run leaves results.
        patience = 1 if stage is Stage.UP else 2
        if stage in AFTER and how is How.DONE and interrupts < patience:
            return AFTER[stage]
        if stage is Stage.COLLECT and (self.failed_in or self.is_suspect) and interrupts < 2:
            return Stage.EVIDENCE
        return self._teardown()

    def fail_run(self) -> None:
        """The run ended well enough to have results, and it failed."""
        self.failed_in = self.failed_in or Stage.RUN

    def suspect_run(self) -> None:
        """The run ended well; what the cluster says of it is wanted all the same."""
        self.is_suspect = True

    def _teardown(self) -> Stage:
        wants = self.keep or self.has_only_copy
        wants = wants or (self.keep_on_failure and self.failed_in is not None)
        if wants and not self.was_left:
            self.is_kept = True
            return Stage.OVER
        return Stage.DESTROY
