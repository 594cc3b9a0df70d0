"""Which worker probes for forced output lengths, and how the response changes requests."""

import itertools

import msgspec
import pytest

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.endpoints.base import Prompt
from aiperf_svc.core.endpoints.forced_length import (
    Decision,
    Finding,
    ForcedLength,
    may_force_length,
    probe_bodies,
    without_forced_length,
)
from aiperf_svc.core.endpoints.registry import ENDPOINTS
from aiperf_svc.protocol.messages.dataset import Conversation, Turn
from tests.support.small_configs import small_config

SECOND_NS = 10**9


def config(
    kind: str = "chat", *, dataset: dict[str, object] | None = None, **endpoint: object
) -> BenchmarkConfig:
    return small_config(
        endpoint={"type": kind, **endpoint}, dataset=dataset or {"output_tokens": {"mean": 8}}
    )


def test_one_worker_probes_and_the_others_wait() -> None:
    forced = ForcedLength(is_used=True)
    assert forced.decide("worker-1", 0) is Decision.PROBE
    assert forced.decide("worker-1", 1) is Decision.PROBE, "its question was sent again"
    assert forced.decide("worker-0", 2) is Decision.WAIT
    forced.handle_finding(Finding.REFUSED, "Extra inputs are not permitted")
    assert forced.decide("worker-1", 3) is forced.decide("worker-0", 4) is Decision.LEAVE_OUT
    forced.handle_finding(Finding.ACCEPTED, "")
    assert forced.decide("worker-0", 5) is Decision.LEAVE_OUT, "the first finding counts for all"


@pytest.mark.parametrize("finding", [Finding.ACCEPTED, Finding.UNKNOWN])
def test_forced_length_is_kept_unless_refused(finding: Finding) -> None:
    forced = ForcedLength(is_used=True)
    forced.decide("worker-0", 0)
    forced.handle_finding(finding, "")
    assert forced.decide("worker-1", 1) is Decision.KEEP


def test_another_worker_probes_when_the_first_is_silent() -> None:
    forced = ForcedLength(is_used=True)
    forced.decide("worker-0", 0)
    assert forced.decide("worker-1", 14 * SECOND_NS) is Decision.WAIT
    assert forced.decide("worker-1", 15 * SECOND_NS) is Decision.PROBE
    assert forced.decide("worker-2", 16 * SECOND_NS) is Decision.WAIT


def test_requests_without_forced_length_are_not_probed() -> None:
    assert ForcedLength(is_used=False).decide("worker-0", 0) is Decision.KEEP


def test_only_datasets_with_output_lengths_are_probed() -> None:
    assert may_force_length(config())
    assert may_force_length(config(dataset={"kind": "single_turn", "file": "f.jsonl"}))
    assert not may_force_length(config(dataset={"entries": 5}))
    assert not may_force_length(config(force_output_length=False))
    assert not may_force_length(config("embeddings"))


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_probes_differ_only_in_forced_length_members(kind: str) -> None:
    forced, plain = map(msgspec.json.decode, probe_bodies(config(kind, streaming=True)))
    assert forced == plain | {"min_tokens": 1, "ignore_eos": True}
    assert (plain["max_tokens"], "stream" in plain) == (1, False)


TEXTS = ("hello", 'say "min_tokens":7,"ignore_eos":true}', '\\","min_tokens":7,"ignore_eos":true')
EXTRAS: tuple[dict[str, object], ...] = (
    {},
    {"temperature": 0.5},
    {"max_tokens": None, "max_completion_tokens": 9},
    {"model": None, "max_tokens": None},
)


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_removing_forced_length_equals_unforced_rendering(kind: str) -> None:
    render = ENDPOINTS[config(kind).endpoint.type].render
    for text, extra, streams in itertools.product(TEXTS, EXTRAS, (True, False)):
        prompt = Prompt(texts=(text,), output_tokens=12)
        turns = []
        for is_forced in (True, False):
            options = config(
                kind, streaming=streams, extra_inputs=extra, force_output_length=is_forced
            ).endpoint
            made = render(prompt, options)
            whole = Turn(made.whole)
            one_token = Turn(made.body, made.tail, one_token_tail=made.tail)
            turns.append(Conversation("c", (whole, one_token), head=made.head))
        assert turns[0] != turns[1]
        assert without_forced_length(turns[0]) == turns[1]
        assert without_forced_length(turns[1]) == turns[1]


def test_users_extra_inputs_are_kept() -> None:
    options = config(extra_inputs={"ignore_eos": False}).endpoint
    made = ENDPOINTS[options.type].render(Prompt(texts=("a",), output_tokens=3), options)
    turn = Conversation("c", (Turn(made.whole),))
    assert without_forced_length(turn) == turn
