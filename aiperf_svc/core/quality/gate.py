"""The score of a quality gate, and the agreement of answers.

The score is right answers over issued questions, so a question without an answer is wrong. Its 95%
interval is Wilson's (Wilson 1927), which stays within 0 and 1 and is valid for few questions. Since
the questions are a sample, the gate is passed if the lower end of the interval reaches the minimum.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec

from aiperf_svc.core.quality.questions import Question, is_right
from aiperf_svc.domain.finish_reasons import FinishReason, finish_reason_of
from aiperf_svc.domain.number_text import count

_Z_95 = 1.959963984540054


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of the server: a line of quality.jsonl."""

    question: int
    """Number of the question, from 0."""
    repeat: int
    """From 0."""
    text: str = ""
    reasoning: str = ""
    tool_calls: str = ""
    """Names and arguments of its calls, concatenated."""
    finish_reason: str = ""
    error: str = ""
    """Why there is no answer; empty if there is one."""
    latency_ms: float = 0.0
    is_right: bool | None = None
    """None for a question without a grader."""
    tokens: tuple[str, ...] = ()
    """Its tokens, if requested and reported by the server."""
    logprobs: tuple[float, ...] = ()
    """Natural logarithm of the probability of each token."""

    @property
    def content(self) -> str:
        """Content by which the answers of two servers are compared."""
        return self.text + self.tool_calls


class GraderScore(msgspec.Struct, frozen=True):
    """Answers to the questions of one grader or task."""

    issued: int
    right: int


class QualityResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a quality gate."""

    file: str
    sha256: str
    """Checksum of the file with the questions."""
    concurrency: int
    questions: int
    issued: int
    """Requests that count for the score: those with a grader, repeats included."""
    right: int
    score: float | None
    """`right` / `issued`; None without a grader."""
    low: float | None
    """95% interval of the score."""
    high: float | None
    min_score: float | None
    is_met: bool
    """True if the lower end of the interval reaches the minimum, or there is no minimum."""
    failed: int
    """Requests without an answer."""
    cut: int
    """Answers cut by `max_tokens`."""
    without_text: int
    """Answers with reasoning only."""
    without_tokens: int = 0
    """Answers without tokens, although they were requested."""
    self_agreement: float | None
    """Share of the questions whose answers are all equal; None if each was sent once."""
    self_tokens: "Top1Agreement | None" = None
    """Agreement of the tokens of answers to the same question; None if unknown."""
    graders: dict[str, GraderScore]
    """By grader, or by task of lm_eval."""

    @property
    def text(self) -> str:
        if self.score is None or self.low is None or self.high is None:
            return "no question has a grader"
        interval = f"95% interval {self.low:.1%} to {self.high:.1%}"
        return f"{self.right:,} of {self.issued:,} correct, {self.score:.1%}, {interval}"

    @property
    def notes(self) -> list[str]:
        """Notes for readers of the answers."""
        questions = count(self.questions, "question")
        total = f"{questions} of {self.file} at concurrency {self.concurrency:,}"
        counts = (
            (self.failed, "without an answer, which count as wrong"),
            (self.cut, "cut by max_tokens"),
            (self.without_text, "with only reasoning"),
            (self.without_tokens, "without the log probabilities that quality.logprobs requests"),
        )
        found = [total, *(f"{number:,} {text}" for number, text in counts if number)]
        if self.self_agreement is not None:
            found.append(f"{self.self_agreement:.1%} of the questions had equal answers each time")
        if self.self_tokens is not None:
            found.append(f"{self.self_tokens.text}, against itself")
        return found

    @property
    def problem(self) -> str:
        """Why the gate is not passed; empty if it is."""
        if self.is_met or self.min_score is None:
            return ""
        return f"{self.text}; expected {self.min_score:.1%} at its lower end"


def graded(questions: Sequence[Question], answers: Iterable[Answer]) -> list[Answer]:
    return [
        msgspec.structs.replace(each, is_right=_grade(questions[each.question], each))
        for each in answers
    ]


def _grade(question: Question, answer: Answer) -> bool | None:
    if question.grader is None:
        return None
    return not answer.error and is_right(question, answer.text, answer.tool_calls)


def score(
    graders: Sequence[str],
    answers: Sequence[Answer],
    *,
    file: str,
    sha256: str,
    concurrency: int,
    min_score: float | None,
    wants_tokens: bool = False,
) -> QualityResult:
    """Return the outcome of graded answers, one for each due request. `graders` maps questions to
    graders or tasks; `file` is the source of the questions."""
    counted = [each for each in answers if each.is_right is not None]
    right = sum(each.is_right is True for each in counted)
    # Repeats of a question do not enlarge the sample of questions.
    repeats = 1 + max((each.repeat for each in counted), default=0)
    low, high = wilson(right / repeats, len(counted) / repeats) if counted else (None, None)
    by_grader: dict[str, GraderScore] = {}
    for each in counted:
        name = graders[each.question]
        known = by_grader.get(name, GraderScore(0, 0))
        by_grader[name] = GraderScore(known.issued + 1, known.right + (each.is_right is True))
    return QualityResult(
        file=file,
        sha256=sha256,
        concurrency=concurrency,
        questions=len(graders),
        issued=len(counted),
        right=right,
        score=right / len(counted) if counted else None,
        low=low,
        high=high,
        min_score=min_score,
        is_met=min_score is None or (low is not None and low >= min_score),
        failed=sum(bool(each.error) for each in answers),
        cut=sum(finish_reason_of(a.finish_reason) is FinishReason.LENGTH for a in answers),
        without_text=sum(bool(each.reasoning) and not each.content for each in answers),
        without_tokens=sum(not each.error and not each.tokens for each in answers)
        if wants_tokens
        else 0,
        self_agreement=self_agreement(answers),
        self_tokens=_self_tokens(answers),
        graders=by_grader,
    )


def wilson(right: float, issued: float) -> tuple[float, float]:
    """Return the 95% interval of a share."""
    share, z2 = right / issued, _Z_95**2 / issued
    middle = (share + z2 / 2) / (1 + z2)
    half = _Z_95 * math.sqrt(share * (1 - share) / issued + z2 / issued / 4) / (1 + z2)
    return max(0.0, middle - half), min(1.0, middle + half)


def by_question(answers: Iterable[Answer]) -> dict[int, list[Answer]]:
    """Return the answers by question, without requests that have none."""
    found: dict[int, list[Answer]] = {}
    for each in answers:
        if not each.error:
            found.setdefault(each.question, []).append(each)
    return found


def self_agreement(answers: Iterable[Answer]) -> float | None:
    """Return the share of the questions whose answers are all equal."""
    several = [each for each in by_question(answers).values() if len(each) > 1]
    equal = sum(len({answer.content for answer in each}) == 1 for each in several)
    return equal / len(several) if several else None


class Top1Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Agreement of the likeliest tokens of answers to the same questions.

    Tokens are comparable as long as all earlier tokens are equal: up to and including the first
    difference.
    """

    compared: int
    equal: int
    logprob_difference: float
    """Mean absolute difference of the log probabilities of equal tokens."""

    @property
    def text(self) -> str:
        share = self.equal / self.compared
        return (
            f"top-1 agreement {share:.2%} of {self.compared:,} tokens, "
            f"|Δ logprob| {self.logprob_difference:.4f}"
        )


def top1_agreement(pairs: Iterable[tuple[Answer, Answer]]) -> Top1Agreement | None:
    """Return the token agreement of pairs of answers; None if no pair has tokens."""
    compared = equal = 0
    difference = 0.0
    for one, other in pairs:
        if one.tokens and other.tokens:
            same = _equal_length(one.tokens, other.tokens)
            equal += same
            compared += same + (one.tokens != other.tokens)
            difference += sum(
                abs(a - b) for a, b in zip(one.logprobs[:same], other.logprobs[:same], strict=True)
            )
    if not compared:
        return None
    mean = difference / equal if equal else 0.0
    return Top1Agreement(compared=compared, equal=equal, logprob_difference=mean)


def _self_tokens(answers: Iterable[Answer]) -> Top1Agreement | None:
    return top1_agreement(
        (each[0], other) for each in by_question(answers).values() for other in each[1:]
    )


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Agreement of the first answers of two servers to the same questions."""

    questions: int
    """Questions answered by both."""
    equal: int
    first_difference: int | None
    """Median number of equal characters before the first difference; None if there is none."""
    base_itself: float | None
    """Share of the questions that the base always answered in the same way; None if each was sent
    once."""
    new_itself: float | None
    tokens: Top1Agreement | None = None
    """None if a side has no tokens."""
    base_tokens: Top1Agreement | None = None
    """Agreement of the base's answers to the same question."""
    new_tokens: Top1Agreement | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """The agreement as text, one line each."""
        share = self.equal / self.questions
        first = f"answers: {self.equal:,} of {self.questions:,} equal on both sides ({share:.1%})"
        if self.first_difference is not None:
            first += f"; others differ after {self.first_difference:,} characters (median)"
        sides = (("base", self.base_itself), ("new", self.new_itself))
        itself = [f"{name} {share:.1%}" for name, share in sides if share is not None]
        second = f"answers: questions with equal answers each time: {', '.join(itself)}"
        if not itself:
            second = "answers: set quality.repeats 2 to see how far each side agrees with itself"
        tokens = (
            ("base against new", self.tokens),
            ("base against itself", self.base_tokens),
            ("new against itself", self.new_tokens),
        )
        known = (f"tokens: {name}: {each.text}" for name, each in tokens if each is not None)
        return (first, second, *known)


def agreement(base: Sequence[Answer], new: Sequence[Answer]) -> Agreement | None:
    """Return the agreement of two servers; None if they have no answered question in common."""
    one, other = by_question(base), by_question(new)
    pairs = [(one[each][0], other[each][0]) for each in one if each in other]
    if not pairs:
        return None
    texts = [(first.content, second.content) for first, second in pairs]
    differing = sorted(_equal_length(*pair) for pair in texts if pair[0] != pair[1])
    return Agreement(
        questions=len(pairs),
        equal=len(pairs) - len(differing),
        first_difference=differing[len(differing) // 2] if differing else None,
        base_itself=self_agreement(base),
        new_itself=self_agreement(new),
        tokens=top1_agreement(pairs),
        base_tokens=_self_tokens(base),
        new_tokens=_self_tokens(new),
    )


def _equal_length(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of characters or tokens before the first difference."""
    shorter = min(len(one), len(other))
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)
