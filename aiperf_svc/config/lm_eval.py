"""Tasks of lm-evaluation-harness, of a benchmark of the kind `lm-eval` and of a quality gate."""

from typing import Annotated

from pydantic import Field

from aiperf_svc.config.base import Model, Verbatim

FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*$")]
"""Relative path of a file."""
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
