"""Questions of a quality gate are validated by line, and answers are graded."""

import json
from typing import Any

import pytest

from aiperf_svc.core.quality.questions import Question, choice_of, is_right, read_questions


def question(**keys: Any) -> Question:
    (found,) = read_questions([json.dumps({"prompt": "?", **keys}).encode()], "gate.jsonl")
    return found


@pytest.mark.parametrize(
    ("grader", "expected", "text", "right"),
    [
        ("exact", "Paris", " Paris\n", True),
        ("exact", "Paris", "Paris.", False),
        ("exact", ["yes", "Yes"], "Yes", True),
        ("number", 42, "6 times 7 is 42.", True),
        ("number", "1,200", "The total is $1,200", True),
        ("number", 42, "42 at first, then 43", False),
        ("number", -0.5, "It is -0.5", True),
        ("number", 3, "no number", False),
        ("number", 1e-3, "0.001", True),
        ("choice", "B", "The answer is B.", True),
        ("choice", "B", "A is wrong. Answer: (B)", True),
        ("choice", "C", r"So \boxed{C}", True),
        ("choice", "D", "D", True),
        ("choice", "D", "(D) because", True),
        ("choice", "A", "A dog is an animal. The answer is C", False),
        ("choice", "A", "none of them", False),
        ("regex", r"\bParis\b", "It is Paris, of course", True),
        ("regex", r"^Paris$", "It is Paris", False),
    ],
)
def test_answers_are_graded(grader: str, expected: Any, text: str, right: bool) -> None:
    assert is_right(question(grader=grader, expected=expected), text, "") is right


WEATHER = {"name": "weather", "arguments": {"city": "Paris", "days": 2}}


@pytest.mark.parametrize(
    ("expected", "calls", "right"),
    [
        (WEATHER, 'weather{"days": 2, "city": "Paris"}', True),
        (WEATHER, 'weather{"city": "Rome", "days": 2}', False),
        (WEATHER, 'weather{"city": "Paris", "days": 2}time{}', False),
        (WEATHER, 'weather{"city": "Paris"', False),
        (WEATHER, "", False),
        ([WEATHER, {"name": "now"}], 'weather{"city":"Paris","days":2}now{}', True),
        ({"name": "now"}, "now", True),
    ],
)
def test_tool_calls_are_compared_as_json(expected: Any, calls: str, right: bool) -> None:
    assert is_right(question(grader="tool_call", expected=expected), "text", calls) is right


def test_choices_need_a_separate_letter() -> None:
    assert choice_of("Apples are red") == ""
    assert choice_of("The answer is: Apples") == ""


@pytest.mark.parametrize(
    "text",
    [
        "answer is **C**",
        "**Answer:** C",
        "The correct answer is: C",
        "The answer is: **C) iron**",
        "The best answer is option C.",
        "Answer = (C)",
        "ANSWER\n\nC",
    ],
)
def test_named_choice_may_have_marks_around_it(text: str) -> None:
    assert choice_of(text) == "C"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ({"prompt": "?", "grader": "exact"}, "`grader` exact needs `expected`"),
        ({"prompt": "?", "expected": "x"}, "`expected` needs `grader`: one of exact"),
        ({"prompt": "?", "grader": "bleu", "expected": "x"}, "expected exact, number, choice"),
        ({"prompt": "?", "grader": "exact", "expected": 3}, "needs a text, or a list of texts"),
        ({"prompt": "?", "grader": "exact", "expected": []}, "needs a text, or a list of texts"),
        ({"prompt": "?", "grader": "number", "expected": "a 3"}, "needs a number"),
        ({"prompt": "?", "grader": "number", "expected": True}, "needs a number"),
        ({"prompt": "?", "grader": "choice", "expected": "AB"}, "needs a letter from A to Z"),
        ({"prompt": "?", "grader": "regex", "expected": "("}, "needs a regular expression"),
        ({"prompt": "?", "grader": "tool_call", "expected": {"n": 1}}, "needs {name, arguments}"),
        ({"prompt": "?", "messages": [{}]}, "expected either `prompt` or `messages`"),
        ({"grader": "exact", "expected": "x"}, "expected either `prompt` or `messages`"),
        ({"prompt": "?", "max_tokens": 0}, "`max_tokens` 0: expected 1 to 1,000,000"),
        ({"prompt": "?", "answer": "x"}, "unknown field `answer`"),
    ],
)
def test_wrong_lines_are_refused(line: dict[str, Any], text: str) -> None:
    lines = [b'{"prompt": "fine"}', b"", json.dumps(line).encode()]
    with pytest.raises(ValueError, match=r"^gate\.jsonl:3: ") as caught:
        read_questions(lines, "gate.jsonl")
    assert text in str(caught.value)


def test_files_without_questions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^gate\.jsonl: no question"):
        read_questions([b"\n"], "gate.jsonl")
    with pytest.raises(ValueError, match=r"^gate\.jsonl:1: "):
        read_questions([b"{"], "gate.jsonl")


def test_question_of_too_many_levels_is_refused() -> None:
    line = b'{"prompt": "?", "expected": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(ValueError, match=r"^gate\.jsonl:1: "):
        read_questions([line], "gate.jsonl")
