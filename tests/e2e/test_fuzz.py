"""A short fuzz: what `make fuzz` does for minutes, of other seeds than its own."""

import pytest

from benchmarks.fuzz.configs import fuzz_configs
from benchmarks.fuzz.in_process import run_in_process
from benchmarks.fuzz.reply import Reply, Truth
from benchmarks.fuzz.trials import Trial, run_trial

SEED = 100
EVENTS = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\ndata: [DONE]\n\n'
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b" % (
    len(EVENTS),
    EVENTS,
)


@pytest.mark.parametrize("is_streaming", [True, False])
def test_every_response_becomes_the_record_that_it_should(is_streaming: bool) -> None:
    trial = Trial(0, SEED, 1_000, is_streaming, bad_share=0.5, users=100)
    finding = run_in_process(trial)
    assert finding.problems == []
    assert finding.good > 300
    assert finding.bad > 200


def test_a_whole_run_accounts_for_every_response_and_is_not_valid() -> None:
    finding = run_trial(Trial(1, SEED, 300, is_streaming=True, bad_share=0.5))
    assert finding.problems == []
    assert finding.verdict != "valid"


def test_changed_configs_are_accepted_or_refused_in_words() -> None:
    assert fuzz_configs(300, seed=SEED) == []


@pytest.mark.parametrize(
    ("truth", "tokens"), [(Truth.BAD, -1), (Truth.GOOD, 7)], ids=["outcome", "tokens"]
)
def test_a_record_that_differs_from_its_response_is_found(truth: Truth, tokens: int) -> None:
    class Mistaken(Trial):
        def reply(self, index: int) -> Reply:
            return Reply("mistaken", truth, ((0.0, STREAM),), chunks=1, tokens=tokens)

    finding = run_in_process(Mistaken(2, SEED, 20, is_streaming=True, bad_share=0.0))
    assert len(finding.problems) == 20
