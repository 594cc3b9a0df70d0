"""Tests before the load whether the target accepts the members that force an output length.

Requests with an output length contain `ignore_eos` and `min_tokens`, since most responses end early
without them. A strict server refuses every such request. So while the run is configured, one worker
sends a tiny request with these members and, if it is refused, the same request without them. If
only the second one is accepted, all requests of the run are sent without them.

A worker sends the probe, since on a cluster the dataset manager may not reach the target. The
dataset manager selects the worker, since every worker requests the dataset from it anyway.
"""

import re
from enum import StrEnum
from typing import Final

import msgspec

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import DatasetKind
from aiperf_svc.core.endpoints.base import Prompt
from aiperf_svc.core.endpoints.registry import endpoint_of
from aiperf_svc.domain.endpoint_types import Feature
from aiperf_svc.protocol.messages.dataset import Conversation

PROBE_TIMEOUT_S: Final = 5.0
"""Timeout of each of the two requests. A slower server counts as not refusing."""
_PROBE_LIMIT_NS: Final = 15_000_000_000
"""Time after which another worker sends the probe. It exceeds the time of both requests."""
_REFUSALS: Final = (400, 422)
_FORCED: Final = re.compile(rb',"min_tokens":\d+,"ignore_eos":true')
"""Members as written by `finish_body`. In a JSON string every quote follows a backslash, so no
prompt contains these bytes."""


class Decision(StrEnum):
    PROBE = "probe"
    """Send the probe, and report the target's response."""
    WAIT = "wait"
    """Another worker sends the probe; ask again later."""
    KEEP = "keep"
    LEAVE_OUT = "leave_out"


class Finding(StrEnum):
    """The target's response to the two requests."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """Refused with these members and accepted without them."""
    UNKNOWN = "unknown"
    """Not reached, or both were refused: the run will show why."""


class ForcedLength:
    """Decides which worker sends the probe, and evaluates the response."""

    def __init__(self, *, is_used: bool) -> None:
        """Set up the decision. `is_used`: some requests of the dataset have these members."""
        self._is_used = is_used
        self._prober = ""
        self._since_mono_ns = 0
        self.finding: Finding | None = None
        self.said = ""
        """Message of the target, or why it could not be reached."""

    def decide(self, worker: str, now_mono_ns: int) -> Decision:
        """Return what a worker must send, in response to its question."""
        if not self._is_used:
            return Decision.KEEP
        if self.finding is not None:
            is_refused = self.finding is Finding.REFUSED
            return Decision.LEAVE_OUT if is_refused else Decision.KEEP
        if self._prober not in ("", worker) and now_mono_ns < self._since_mono_ns + _PROBE_LIMIT_NS:
            return Decision.WAIT
        self._prober, self._since_mono_ns = worker, now_mono_ns
        return Decision.PROBE

    def handle_finding(self, finding: Finding, said: str) -> None:
        """Handle the result of a probe. The first one counts for all workers."""
        if self.finding is None:
            self.finding, self.said = finding, said


def may_force_length(config: BenchmarkConfig) -> bool:
    """Return whether a dataset of this config may contain requests with these members."""
    has_lengths = (
        config.dataset.output_tokens is not None
        or any(shape.output_tokens for shape in config.dataset.mix)
        or config.dataset.kind is not DatasetKind.SYNTHETIC
    )
    takes_members = config.endpoint.type.has(Feature.FORCED_LENGTH)
    return config.endpoint.force_output_length and has_lengths and takes_members


def probe_bodies(config: BenchmarkConfig) -> tuple[bytes, bytes]:
    """Return the smallest request with these members, and the same request without them."""
    prompt = Prompt(texts=("Hi",), output_tokens=1)
    options = config.endpoint.model_copy(update={"streaming": False})
    plain = options.model_copy(update={"force_output_length": False})
    render = endpoint_of(config.endpoint).render
    return render(prompt, options).whole, render(prompt, plain).whole


def is_refusal(status: int) -> bool:
    """Return whether a status means that the request itself is refused."""
    return status in _REFUSALS


def without_forced_length(conversation: Conversation) -> Conversation:
    """Return the same requests without these members."""
    turns = tuple(
        msgspec.structs.replace(
            turn,
            messages=_FORCED.sub(b"", turn.messages),
            tail=_FORCED.sub(b"", turn.tail),
            one_token_tail=_FORCED.sub(b"", turn.one_token_tail),
        )
        for turn in conversation.turns
    )
    return msgspec.structs.replace(conversation, turns=turns)
