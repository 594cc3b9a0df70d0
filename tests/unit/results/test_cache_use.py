"""Shares of cached tokens are ratios of sums, by run, conversation and turn."""

import pytest

from aiperf_svc.core.results.cache_stats import CacheUse, SessionCache, TurnCache, turn_ranges
from aiperf_svc.core.results.inference_result import TurnOverflow
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from aiperf_svc.protocol.records import CONTRADICTORY_TOKENS
from tests.support.fake_run import make_rows, results

PROMPT = [100, 1_000, 100, 3_000]
CACHED = [0, 900, 0, 2_400]
"""Two conversations of two turns."""
STATED = {"usage_prompt_tokens": PROMPT, "cached_tokens": CACHED}
TALKS = {"index": [0, 0, 1, 1], "turn": [0, 1, 0, 1]}


def test_cached_share_is_a_ratio_of_sums() -> None:
    found = results(make_rows(4, **STATED, **TALKS)).scalars
    assert found["cached_token_share"] == 3_300 / 4_200
    assert found["overall_usage_prompt_cache_read_pct"] == pytest.approx(100 * 3_300 / 4_200)
    assert found["cached_token_coverage"] == 1.0
    assert found["total_usage_prompt_cache_read_tokens"] == 3_300
    assert found["total_usage_prompt_cache_miss_tokens"] == 900
    assert "total_usage_prompt_cache_write_tokens" not in found


def test_turns_and_conversations_have_separate_shares() -> None:
    found = results(make_rows(4, **STATED, **TALKS)).cache
    assert found is not None
    assert [(turn.share, turn.known) for turn in found.turns] == [(0.0, 2), (3_300 / 4_000, 2)]
    shares = sorted([900 / 1_100, 2_400 / 3_100])
    sessions = found.sessions
    assert sessions is not None
    assert sessions.count == 2
    assert (sessions.p10, sessions.p50, sessions.p90) == pytest.approx(
        [shares[0] + q * (shares[1] - shares[0]) for q in (0.1, 0.5, 0.9)]
    )


def test_server_without_cache_fields_has_no_share() -> None:
    summary = results(make_rows(4, usage_prompt_tokens=PROMPT, **TALKS))
    assert not [tag for tag in summary.scalars if "cache" in tag]
    assert not [tag for tag in summary.metrics if "cache" in tag]
    assert summary.cache is None


def test_unknown_counts_are_not_zero() -> None:
    found = results(make_rows(2, usage_prompt_tokens=[100, 500], cached_tokens=[50, -1])).scalars
    assert found["cached_token_share"] == 0.5
    assert found["cached_token_coverage"] == 0.5


def test_requests_without_cached_tokens_are_noted() -> None:
    # A server that omits the count if nothing was cached.
    summary = results(make_rows(4, usage_prompt_tokens=100, cached_tokens=[80, -1, -1, -1]))
    assert summary.scalars["cached_token_share"] == 0.8
    assert summary.scalars["overall_usage_prompt_cache_read_pct"] == pytest.approx(20.0)
    (check,) = [each for each in summary.verdict.checks if each.check == "cached_counts"]
    assert check.severity == Severity.INFO
    assert check.text.startswith("3 of 4 responses report no cached tokens")
    whole = results(make_rows(4, **STATED)).verdict
    assert "cached_counts" not in [each.check for each in whole.checks]


def test_single_requests_have_no_table_of_turns() -> None:
    assert results(make_rows(4, **STATED)).cache is None


def test_impossible_counts_are_named_and_left_out() -> None:
    summary = results(make_rows(2, usage_prompt_tokens=100, cached_tokens=[50, 101]))
    assert summary.scalars["cached_token_share"] == 0.5
    (check,) = [each for each in summary.verdict.checks if each.check == "cached_tokens"]
    assert (check.severity, check.measured) == (Severity.DEGRADED, 0.5)


def test_contradictory_usage_is_named_and_left_out() -> None:
    rows = make_rows(2, usage_prompt_tokens=100, cached_tokens=[50, CONTRADICTORY_TOKENS])
    summary = results(rows)
    assert summary.scalars["cached_token_coverage"] == 0.5
    (check,) = [each for each in summary.verdict.checks if each.check == "usage_twice"]
    assert "in 1 responses" in check.text


def test_many_turns_are_shown_in_ranges() -> None:
    sessions = SessionCache(count=1, p10=0.0, p50=0.0, p90=0.0)
    turns = tuple(
        TurnCache(turn=n, requests=2, known=1, prompt_tokens=10, cached_tokens=n) for n in range(13)
    )
    lines = turn_ranges(CacheUse(turns=turns, sessions=sessions))
    assert [name for name, _ in lines] == ["1", "2", "3-4", "5-8", "9-13"]
    last = lines[-1][1]
    assert (last.requests, last.prompt_tokens, last.cached_tokens) == (10, 50, 50)
    assert len(turn_ranges(CacheUse(turns=turns[:12], sessions=sessions))) == 12


def test_overflows_are_counted_by_turn() -> None:
    rows = make_rows(
        5,
        turn=[0, 1, 2, 2, 3],
        outcome=[*[Outcome.COMPLETED] * 2, *[Outcome.ERRORED] * 3],
        error=[0, 0, ErrorKind.CONTEXT_OVERFLOW, ErrorKind.STATUS, ErrorKind.CONTEXT_OVERFLOW],
    )
    found = results(rows)
    assert found.scalars["context_overflow_count"] == 2
    assert found.context_overflows == (
        TurnOverflow(turn=2, requests=2, overflows=1),
        TurnOverflow(turn=3, requests=1, overflows=1),
    )


def test_overflows_of_single_requests_have_no_turns() -> None:
    rows = make_rows(2, outcome=Outcome.ERRORED, error=ErrorKind.CONTEXT_OVERFLOW)
    found = results(rows)
    assert found.scalars["context_overflow_count"] == 2
    assert found.context_overflows == ()
