"""The quality gate: questions to the server after the load, and the score that they must reach."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import SECOND_NS, Model
from aiperf_svc.config.lm_eval import LmEvalTasks
from aiperf_svc.config.units import PositiveDurationNs, Share


class Quality(Model):
    """Questions that are sent to the server right after the load, at its concurrency."""

    file: Annotated[str, Field(min_length=1)] | None = None
    """JSONL with a question on each line: `prompt` or `messages`, `grader` with `expected`, and
    `max_tokens`."""
    lm_eval: LmEvalTasks | None = None
    """Tasks of lm-evaluation-harness instead of a file. The machine or image of the services needs
    the program `lm_eval`."""
    min_score: Annotated[Share, Field(ge=0, le=1)] | None = None
    """Lowest score. The exit code is 4 if the lower end of the score's 95% interval is below it."""
    repeats: Annotated[int, Field(gt=0, le=100)] = 1
    """Number of times that each question is sent. From 2, the results state how often the server's
    answers to one question are equal."""
    logprobs: bool = False
    """Ask for the tokens of each answer and their log probabilities, so that answers are compared
    token by token too. The APIs `chat` and `completions` have them, if the server does."""
    timeout: PositiveDurationNs = 900 * SECOND_NS
    """Longest time of all questions. Those without an answer by then are wrong."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.file is None) == (self.lm_eval is None):
            raise ValueError("expected either {quality.file} or {quality.lm_eval}")
        if self.lm_eval is not None and self.repeats > 1:
            raise ValueError("{quality.repeats} is for the questions of {quality.file}")
        if self.lm_eval is not None and self.logprobs:
            raise ValueError("{quality.logprobs} is for the questions of {quality.file}")
        return self

    @property
    def source(self) -> str:
        """Where the questions are from, in words."""
        return self.file or f"lm_eval {' '.join(self.lm_eval.tasks if self.lm_eval else ())}"
