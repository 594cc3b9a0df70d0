"""The quality gate: questions to the server after the load, and the score that they must reach."""

from typing import Annotated

from pydantic import Field

from aiperf_svc.config.base import SECOND_NS, Model
from aiperf_svc.config.units import PositiveDurationNs, Share


class Quality(Model):
    """Questions that are sent to the server right after the load, at its concurrency."""

    file: Annotated[str, Field(min_length=1)]
    """JSONL with a question on each line: `prompt` or `messages`, `grader` with `expected`, and
    `max_tokens`."""
    min_score: Annotated[Share, Field(ge=0, le=1)] | None = None
    """Lowest score. The exit code is 4 if the lower end of the score's 95% interval is below it."""
    repeats: Annotated[int, Field(gt=0, le=100)] = 1
    """Number of times that each question is sent. From 2, the results state how often the server's
    answers to one question are equal."""
    timeout: PositiveDurationNs = 900 * SECOND_NS
    """Longest time of all questions. Those without an answer by then are wrong."""
