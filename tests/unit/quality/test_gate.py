"""The score of a quality gate, its interval, and the agreement of answers."""

from typing import Any

import pytest

from aiperf_svc.adapters.terminal.inference_tables import print_inference_result
from aiperf_svc.core.experiments.outcomes import measured_in
from aiperf_svc.core.quality.gate import (
    Answer,
    GraderScore,
    QualityResult,
    Top1Agreement,
    agreement,
    graded,
    score,
    self_agreement,
    wilson,
)
from aiperf_svc.core.quality.questions import Grader, Question
from aiperf_svc.core.results.slo_results import MISSED
from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.fake_results import inference_result, objective
from tests.support.terminal import on_console

QUESTIONS = [
    Question(prompt="a", grader=Grader.EXACT, expected="yes"),
    Question(prompt="b", grader=Grader.REGEX, expected="y"),
    Question(prompt="c"),
]


def answer(question: int, text: str = "yes", *, repeat: int = 0, **keys: Any) -> Answer:
    return Answer(question=question, repeat=repeat, text=text, **keys)


def result(answers: list[Answer], min_score: float | None = None) -> QualityResult:
    found = graded(QUESTIONS, answers)
    graders = [str(each.grader) for each in QUESTIONS]
    return score(graders, found, file="q.jsonl", sha256="0", concurrency=4, min_score=min_score)


@pytest.mark.parametrize(
    ("right", "issued", "low", "high"),
    # From the tables of Newcombe (1998), and from the formula for 0 and n.
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (29, 29, 0.883, 1),
    ],
)
def test_intervals_equal_wilsons(right: int, issued: int, low: float, high: float) -> None:
    assert wilson(right, issued) == pytest.approx((low, high), abs=5e-4)


def test_requests_without_an_answer_are_wrong() -> None:
    found = result([answer(0), answer(1, error="status 500"), answer(2, "no grader")])
    assert (found.issued, found.right, found.score, found.failed) == (2, 1, 0.5, 1)
    assert found.graders == {"exact": GraderScore(1, 1), "regex": GraderScore(1, 0)}


@pytest.mark.parametrize("reason", ["length", "max_tokens", "max_output_tokens"])
def test_cut_and_empty_answers_are_named(reason: str) -> None:
    answers = [answer(0, "y", finish_reason=reason), answer(1, "", reasoning="hm")]
    found = result(answers)
    assert (found.cut, found.without_text) == (1, 1)
    assert "1 cut by max_tokens" in found.notes
    assert "1 with only reasoning" in found.notes


@pytest.mark.parametrize(("minimum", "is_met"), [(0.83, True), (0.84, False), (None, True)])
def test_lower_end_must_reach_the_minimum(minimum: float | None, is_met: bool) -> None:
    answers = [answer(0) for _ in range(19)]
    found = result(answers, minimum)
    assert found.low == pytest.approx(0.832, abs=1e-3)
    assert found.is_met is is_met
    run = inference_result(quality=found)
    assert run.exit_code is (ExitCode.OK if is_met else ExitCode.SLO_MISSED)
    assert ("quality: 19 of 19 correct" in run.problem) is not is_met


def test_repeats_make_the_interval_no_narrower() -> None:
    once = result([answer(0), answer(1, "no")])
    often = result(
        [each for n in range(9) for each in (answer(0, repeat=n), answer(1, "no", repeat=n))]
    )
    assert (often.issued, often.score) == (18, once.score)
    assert (often.low, often.high) == pytest.approx((once.low, once.high))


def test_trials_below_the_minimum_miss_their_slo() -> None:
    found = measured_in(inference_result(quality=result([answer(0, "no")], 0.5)))
    assert found.slo == MISSED
    assert found.not_held[0].startswith("quality: 0 of 1 correct")
    passed = measured_in(inference_result(quality=result([answer(0)], 0.1)))
    assert (passed.slo, passed.not_held) == ("", ())


def test_missed_slo_and_quality_are_both_named() -> None:
    found = result([answer(0, "no")], 0.5)
    run = inference_result(slo=(objective(ok=False),), quality=found)
    assert run.exit_code is ExitCode.SLO_MISSED
    assert "SLO missed: request_latency p99" in run.problem
    assert "quality: 0 of 1 correct" in run.problem


def test_repeats_measure_a_servers_self_agreement() -> None:
    answers = [answer(0), answer(0, repeat=1), answer(1), answer(1, "no", repeat=1)]
    assert self_agreement(answers) == 0.5
    assert self_agreement(answers[:1]) is None


def test_equal_answers_count_as_agreement() -> None:
    base = [answer(0, "the same"), answer(1, "the river"), answer(2, error="lost")]
    new = [answer(0, "the same"), answer(1, "the road"), answer(2, "there")]
    found = agreement(base, new)
    assert found is not None
    assert (found.questions, found.equal, found.first_difference) == (2, 1, 5)
    assert "1 of 2 equal on both sides (50.0%)" in found.lines[0]
    assert agreement(base, [answer(2)]) is None


def scored(tokens: str, *logprobs: float, question: int = 0, repeat: int = 0) -> Answer:
    words = tuple(tokens.split())
    return answer(
        question, tokens, repeat=repeat, tokens=words, logprobs=logprobs or (-0.5,) * len(words)
    )


def test_tokens_are_compared_up_to_the_first_difference() -> None:
    base = [scored("a b c d"), scored("x y", question=1), scored("p", question=2)]
    new = [scored("a b X d", -0.5, -0.7, -1, -1), scored("x y z", question=1), answer(3)]
    found = agreement(base, new)
    assert found is not None
    assert found.tokens is not None
    assert (found.tokens.compared, found.tokens.equal) == (3 + 3, 2 + 2)
    assert found.tokens.logprob_difference == pytest.approx(0.2 / 4)
    assert found.lines[-1] == (
        "tokens: base against new: top-1 agreement 66.67% of 6 tokens, |Δ logprob| 0.0500"
    )


def test_server_is_compared_with_itself_too() -> None:
    twice = [scored("a b c"), scored("a b d", repeat=1)]
    once = [scored("a b c")]
    found = agreement(twice, once)
    assert found is not None
    assert found.base_tokens == Top1Agreement(compared=3, equal=2, logprob_difference=0.0)
    assert found.new_tokens is None
    assert found.tokens is not None
    assert found.tokens.equal == 3
    notes = result([*twice]).notes
    assert notes[-1] == "top-1 agreement 66.67% of 3 tokens, |Δ logprob| 0.0000, against itself"


def test_answers_without_tokens_have_no_agreement_of_tokens() -> None:
    found = agreement([answer(0)], [scored("yes")])
    assert found is not None
    assert found.tokens is None


@pytest.mark.parametrize(("minimum", "line"), [(None, "Quality: 1 of"), (0.5, "Quality: ✗ 1 of")])
def test_only_scores_with_a_minimum_are_marked(minimum: float | None, line: str) -> None:
    run = inference_result(quality=result([answer(0)], minimum))
    assert line in on_console(print_inference_result, run)
