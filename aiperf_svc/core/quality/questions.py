"""Questions of a quality gate, and the graders of their answers.

A line of the file has `prompt` or `messages`, and `grader` with `expected`:

- `exact`: the answer is this text, or one of a list, ignoring white space around it;
- `number`: the last number of the answer equals this one, to one part in a million;
- `choice`: the letter that the answer names, after "answer", in a box, or alone;
- `regex`: the pattern occurs in the answer;
- `tool_call`: exactly the calls of `{name, arguments}`, in order. `tools` are sent with the
  request.

A question without a grader has no score; its answers are compared with those of other runs.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from aiperf_svc.domain.json_objects import Json

DEFAULT_TOKENS = 512
"""Maximum tokens of an answer unless its question sets another number."""
MAX_TOKENS = 1_000_000
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")
_NAMED_CHOICE = re.compile(
    r"(?i:answer(?:\s+is)?)[\s:=*\"'(\[{]*(?i:(?:option|choice)[\s*\"'(\[]+)?([A-Z])\b"
)
_BOXED_CHOICE = re.compile(r"\\boxed\{\s*(?:\\text\{)?\s*([A-Z])\b")
_ALONE = re.compile(r"[\s*\"'(\[]*([A-Z])(?:[\s*\"')\].:,]|$)")
_TOLERANCE = 1e-6


class Grader(StrEnum):
    """Methods for judging an answer."""

    EXACT = "exact"
    NUMBER = "number"
    CHOICE = "choice"
    REGEX = "regex"
    TOOL_CALL = "tool_call"


class Call(msgspec.Struct, frozen=True):
    name: str
    arguments: Json = {}


class Question(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str | None = None
    messages: tuple[Json, ...] = ()
    tools: tuple[Json, ...] = ()
    grader: Grader | None = None
    expected: Any = None
    max_tokens: int = DEFAULT_TOKENS

    @property
    def calls(self) -> tuple[Call, ...]:
        """The expected calls. Raises msgspec.ValidationError."""
        several = self.expected if isinstance(self.expected, list) else [self.expected]
        return msgspec.convert(tuple(several), tuple[Call, ...])

    @property
    def texts(self) -> tuple[str, ...]:
        """The expected texts. Raises msgspec.ValidationError."""
        several = self.expected if isinstance(self.expected, list) else [self.expected]
        return msgspec.convert(tuple(several), tuple[str, ...])


class _Line(Question, frozen=True, forbid_unknown_fields=True):
    """A question as written."""


def read_questions(lines: Iterable[bytes], source: str) -> list[Question]:
    """Return the questions of the file `source`. Raises ValueError naming the file and the line."""
    found: list[Question] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            question = msgspec.json.decode(line, type=_Line)
            _check(question)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
            graders = f"; expected {', '.join(Grader)}" if "`$.grader`" in str(error) else ""
            raise ValueError(f"{source}:{number}: {error}{graders}") from error
        found.append(question)
    if not found:
        raise ValueError(f"{source}: no question; expected one on each line")
    return found


def _check(question: Question) -> None:
    if (question.prompt is None) == (not question.messages):
        raise ValueError("expected either `prompt` or `messages`")
    if not 0 < question.max_tokens <= MAX_TOKENS:
        raise ValueError(f"`max_tokens` {question.max_tokens}: expected 1 to {MAX_TOKENS:,}")
    expected = question.expected
    if question.grader is None:
        if expected is not None:
            raise ValueError(f"`expected` needs `grader`: one of {', '.join(Grader)}")
        return
    if expected is None:
        raise ValueError(f"`grader` {question.grader} needs `expected`")
    problem = f"`expected` {json.dumps(expected)}: `grader` {question.grader} needs "
    match question.grader:
        case Grader.EXACT:
            wanted = "a text, or a list of texts"
            is_good = _is_convertible(question, "texts") and bool(question.texts)
        case Grader.NUMBER:
            wanted, is_good = "a number", number_of(str(expected), is_whole=True) is not None
            is_good &= not isinstance(expected, bool)
        case Grader.CHOICE:
            wanted = "a letter from A to Z"
            is_good = isinstance(expected, str) and bool(re.fullmatch("[A-Z]", expected))
        case Grader.REGEX:
            wanted, is_good = "a regular expression", isinstance(expected, str)
            if is_good:
                try:
                    re.compile(expected)
                except re.error as error:
                    wanted, is_good = f"a regular expression: {error}", False
        case Grader.TOOL_CALL:
            wanted = "{name, arguments}, or a list of them"
            is_good = _is_convertible(question, "calls") and bool(question.calls)
    if not is_good:
        raise ValueError(problem + wanted)


def _is_convertible(question: Question, name: str) -> bool:
    try:
        getattr(question, name)
    except msgspec.ValidationError:
        return False
    return True


def is_right(question: Question, text: str, tool_calls: str) -> bool:
    """Return whether an answer is right. `tool_calls` are the concatenated names and arguments of
    its calls."""
    match question.grader:
        case Grader.EXACT:
            return text.strip() in {each.strip() for each in question.texts}
        case Grader.NUMBER:
            found, wanted = number_of(text), number_of(str(question.expected))
            assert wanted is not None
            return found is not None and math.isclose(found, wanted, rel_tol=_TOLERANCE)
        case Grader.CHOICE:
            return choice_of(text) == str(question.expected)
        case Grader.REGEX:
            return re.search(question.expected, text) is not None
        case Grader.TOOL_CALL:
            return _has_calls(tool_calls, question.calls)
    raise ValueError("a question without a grader")


def number_of(text: str, *, is_whole: bool = False) -> float | None:
    """Return the last number of a text; None if there is none. With `is_whole`, the whole text must
    be a number."""
    found = _NUMBER.findall(text)
    if not found or (is_whole and found[-1] != text.strip()):
        return None
    return float(found[-1].replace(",", ""))


def choice_of(text: str) -> str:
    """Return the letter that an answer names; empty if it names none."""
    boxed, named = _BOXED_CHOICE.findall(text), _NAMED_CHOICE.findall(text)
    if boxed or named:
        return str((boxed or named)[-1]).upper()
    alone = _ALONE.match(text)
    return alone[1] if alone else ""


def _has_calls(text: str, calls: Iterable[Call]) -> bool:
    decoder = json.JSONDecoder()
    for call in calls:
        if not text.startswith(call.name):
            return False
        text = text[len(call.name) :].lstrip()
        try:
            arguments, end = decoder.raw_decode(text) if text[:1] == "{" else ({}, 0)
        except ValueError:
            return False
        if not isinstance(arguments, Mapping) or arguments != call.arguments:
            return False
        text = text[end:].lstrip()
    return not text
