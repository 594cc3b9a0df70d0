"""Tasks of lm-evaluation-harness, of a benchmark of the kind `lm-eval` and of a quality gate."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import Model, Verbatim

FileName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/+\.?[A-Za-z0-9_-][A-Za-z0-9_.-]*)*$")
]
"""Relative path of a file below the folder where a program runs: without `..`."""
SETTINGS_FILE = "lm_eval_settings.json"
"""Name of the file of settings that is written for the program."""
TaskName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]


class LmEvalTasks(Model):
    """Which tasks lm-evaluation-harness runs, and how."""

    tasks: Annotated[tuple[TaskName, ...], Field(min_length=1)]
    """Names of tasks or groups, such as `gsm8k`."""
    files: dict[FileName, Verbatim] = Field(default_factory=dict)
    """Text of files by relative path: definitions of tasks (YAML) and their questions, so that
    nothing is downloaded."""
    few_shot: Annotated[int, Field(ge=0, le=1_000)] | None = None
    """Examples before each question; None: as the task has it."""
    limit: Annotated[int, Field(gt=0)] | None = None
    """Number of questions of each task, from its beginning; None: all. A part of a task cannot be
    compared with the whole."""
    metric: Annotated[str, Field(pattern=r"^[A-Za-z0-9_@-]+(,[A-Za-z0-9_.-]+)?$")] | None = None
    """Metric that is the score, with its filter: `exact_match,strict-match`. None: the first one of
    each task."""
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    """Tokenizer of the model, on the Hugging Face hub or in a folder. Tasks that compare
    likelihoods need it, and the completions API."""
    max_length: Annotated[int, Field(gt=1)] | None = None
    """Longest prompt and output in tokens where a tokenizer is set; None: 2,048."""

    @model_validator(mode="after")
    def _has_distinct_names(self) -> Self:
        tags = [metric_tag(task) for task in self.tasks]
        for number, task in enumerate(self.tasks):
            if tags[number] in tags[:number]:
                raise ValueError(
                    f"{{tasks}} has {task!r} twice, compared without case and punctuation; leave "
                    "one out"
                )
        if SETTINGS_FILE in self.files:
            raise ValueError(f"{{files}} has {SETTINGS_FILE}, which is written for the program")
        return self


def metric_tag(task: str) -> str:
    """Return the tag of a task's own score."""
    return "score_" + "".join(sign if sign.isalnum() else "_" for sign in task.lower())
