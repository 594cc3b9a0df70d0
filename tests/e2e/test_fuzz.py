"""A short fuzz run: what `make fuzz` does for minutes, with other seeds."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from aiperf_svc.protocol.records import METRIC_DTYPE
from benchmarks.fuzz.configs import fuzz_configs
from benchmarks.fuzz.in_process import run_in_process
from benchmarks.fuzz.reply import Reply, Truth
from benchmarks.fuzz.trials import REQUEST_TIMEOUT_S, Finding, Trial, compare, run_trial

SEED = 100
EVENTS = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\ndata: [DONE]\n\n'
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b" % (
    len(EVENTS),
    EVENTS,
)


@pytest.mark.parametrize("is_streaming", [True, False])
def test_every_response_becomes_the_expected_record(is_streaming: bool) -> None:
    # A small concurrency, so that a busy machine serves most requests within the time limit.
    trial = Trial(0, SEED, 1_000, is_streaming, bad_share=0.5, users=40, request_timeout_s=3.0)
    finding = run_in_process(trial)
    assert finding.problems == []
    assert finding.good > 300
    assert finding.bad > 200


def test_run_accounts_for_every_odd_response() -> None:
    finding = run_trial(Trial(1, SEED, 300, is_streaming=True, bad_share=0.5))
    assert finding.problems == []
    assert finding.verdict != "valid"


def test_changed_configs_are_accepted_or_refused_in_words() -> None:
    assert fuzz_configs(150, seed=SEED) == []


@pytest.mark.parametrize(
    ("truth", "tokens"), [(Truth.BAD, -1), (Truth.GOOD, 7)], ids=["outcome", "tokens"]
)
def test_record_that_differs_from_its_response_is_found(truth: Truth, tokens: int) -> None:
    class Mistaken(Trial):
        def reply(self, index: int) -> Reply:
            return Reply("mistaken", truth, ((0.0, STREAM),), chunks=1, tokens=tokens)

    finding = run_in_process(Mistaken(2, SEED, 20, is_streaming=True, bad_share=0.0))
    assert len(finding.problems) == 20


@pytest.mark.parametrize(
    ("truth", "server", "outcome", "is_right"),
    [
        (Truth.GOOD, {"ended_s": 0.5}, Outcome.COMPLETED, True),
        (Truth.GOOD, {"ended_s": 0.5}, Outcome.ERRORED, False),
        (Truth.GOOD, {"ended_s": REQUEST_TIMEOUT_S}, Outcome.COMPLETED, True),
        (Truth.GOOD, {"ended_s": REQUEST_TIMEOUT_S}, Outcome.ERRORED, True),
        (Truth.GOOD, {"is_in_last_part": True}, Outcome.COMPLETED, True),
        (Truth.GOOD, {}, Outcome.COMPLETED, False),
        (Truth.EITHER, {}, Outcome.COMPLETED, True),
        (Truth.BAD, {"ended_s": 0.5}, Outcome.COMPLETED, False),
        (Truth.GOOD, {"ended_s": 0.5, "arrivals": 0}, Outcome.COMPLETED, False),
    ],
)
def test_waiting_response_is_whole_or_late(
    truth: Truth, server: dict[str, Any], outcome: Outcome, is_right: bool
) -> None:
    class Known(Trial):
        def reply(self, index: int) -> Reply:
            return Reply("known", truth, ((0.0, STREAM),), chunks=1)

    trial = Known(3, SEED, 1, is_streaming=True, bad_share=0.0)
    records = np.zeros(1, dtype=METRIC_DTYPE)
    for name, value in {
        "phase": 1,
        "outcome": outcome,
        "chunks": 1,
        "start_wall_ns": 10**9,
    }.items():
        records[name] = value
    records["error"] = ErrorKind.TIMEOUT if outcome is Outcome.ERRORED else ErrorKind.NONE
    records["usage_completion_tokens"] = -1
    ended_s = server.get("ended_s")
    known = SimpleNamespace(
        arrivals={0: server.get("arrivals", 1)},
        in_last_part={0} if ended_s or server.get("is_in_last_part") else set(),
        ended_wall_ns={0: 10**9 + round(ended_s * 1e9)} if ended_s else {},
    )
    rows = {name: records[name] for name in METRIC_DTYPE.names or ()}
    assert compare(Finding(trial), known, rows) == is_right  # type: ignore[arg-type]
