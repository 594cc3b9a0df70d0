"""The quality gate: questions to the server after the load, and their required score.

A gate and a benchmark of the kind `lm-eval` name tasks of lm-evaluation-harness in the same way.
"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import SECOND_NS, Model, Verbatim
from aiperf_svc.config.units import PositiveDurationNs, Share

FileName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/+\.?[A-Za-z0-9_-][A-Za-z0-9_.-]*)*$")
]
"""Relative path of a file below the folder where a program runs: without `..`."""
SETTINGS_FILE = "lm_eval_settings.json"
"""Name of the settings file that is written for the program."""
TaskName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]


class LmEvalTasks(Model):
    """Which tasks lm-evaluation-harness runs, and how."""

    tasks: Annotated[tuple[TaskName, ...], Field(min_length=1)]
    """Names of tasks or groups, such as `gsm8k`."""
    files: dict[FileName, Verbatim] = Field(default_factory=dict)
    """Files by relative path, as text: task definitions (YAML) and their questions, so nothing is
    downloaded."""
    few_shot: Annotated[int, Field(ge=0, le=1_000)] | None = None
    """Examples before each question. Default: those of the task."""
    limit: Annotated[int, Field(gt=0)] | None = None
    """Number of questions of each task, from its beginning. Default: all. The score of a part
    cannot be compared with that of the whole task."""
    metric: Annotated[str, Field(pattern=r"^[A-Za-z0-9_@-]+(,[A-Za-z0-9_.-]+)?$")] | None = None
    """Metric that is the score, with its filter: `exact_match,strict-match`. Default: the first one
    of each task."""
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    """Tokenizer of the model, on the Hugging Face hub or in a folder. Tasks that compare
    likelihoods need it, and the completions API."""
    max_length: Annotated[int, Field(gt=1)] | None = None
    """Maximum length of prompt and output in tokens, if a tokenizer is set. Default: 2,048."""

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
    """Return the metric tag of a task's score."""
    return "score_" + "".join(sign if sign.isalnum() else "_" for sign in task.lower())


class Quality(Model):
    """Questions that are sent to the server right after the load, at its concurrency."""

    file: Annotated[str, Field(min_length=1)] | None = None
    """JSONL with a question on each line: `prompt` or `messages`, `grader` with `expected`, and
    `max_tokens`."""
    lm_eval: LmEvalTasks | None = None
    """Tasks of lm-evaluation-harness instead of a file. The machine or image of the services needs
    the program `lm_eval`."""
    min_score: Annotated[Share, Field(ge=0, le=1)] | None = None
    """Required score. The exit code is 4 if the lower end of the score's 95% interval is below
    it."""
    repeats: Annotated[int, Field(gt=0, le=100)] = 1
    """Number of times that each question is sent. From 2, the results state how often the server's
    answers to one question are equal."""
    logprobs: bool = False
    """Request the tokens of each answer and their log probabilities, so that answers are also
    compared token by token. Needs the API `chat` or `completions`, and a server that supports
    it."""
    timeout: PositiveDurationNs = 900 * SECOND_NS
    """Maximum time for all questions together. Questions that are unanswered by then count as
    wrong."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if self.file is None and self.lm_eval is None:
            raise ValueError("there are no questions; set {file} or {lm_eval.tasks}")
        if self.file is not None and self.lm_eval is not None:
            raise ValueError("{file} and {lm_eval.tasks} both set the questions; leave out one")
        if self.lm_eval is not None and (name := self._first_set("repeats", "logprobs")):
            raise ValueError(
                f"{{{name}}} is for the questions of {{file}}; leave it out with {{lm_eval.tasks}}"
            )
        return self

    @property
    def source(self) -> str:
        """Source of the questions in words."""
        return self.file or f"lm_eval {' '.join(self.lm_eval.tasks if self.lm_eval else ())}"
