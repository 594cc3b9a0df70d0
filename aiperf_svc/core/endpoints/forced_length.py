"""Whether the target takes the members that force an output length: found out before the load.

Requests with an output length carry `ignore_eos` and `min_tokens`, without which most responses end
early. A strict server refuses every one of them. So one worker sends a tiny request with these
members while the run is configured, and where that is refused the same without them. If only the
second is taken, all requests of the run go without them.

A worker asks, because on a cluster only workers may reach the target. The dataset manager decides
who, since every worker asks it for its requests anyway.
"""

import re
from enum import StrEnum
from typing import Final

import msgspec

from aiperf_svc.config.models import BenchmarkConfig, DatasetKind, EndpointType
from aiperf_svc.core.endpoints.base import Prompt
from aiperf_svc.core.endpoints.registry import ENDPOINTS
from aiperf_svc.protocol.messages import Conversation

PROBE_TIMEOUT_S: Final = 5.0
"""Of each of the two requests. A server that takes longer is not known to refuse anything."""
_PATIENCE_NS: Final = 15_000_000_000
"""After so long without a word another worker is told to ask: both requests take less."""
_REFUSALS: Final = (400, 422)
_FORCED: Final = re.compile(rb',"min_tokens":\d+,"ignore_eos":true')
"""As `finish_body` writes them. In a JSON string no quote stands without a backslash before it, so
no prompt has these bytes."""


class Decision(StrEnum):
    """What a worker is to do."""

    PROBE = "probe"
    """Ask the target, and say how it responded."""
    WAIT = "wait"
    """Another worker asks it; come back."""
    KEEP = "keep"
    LEAVE_OUT = "leave_out"


class Finding(StrEnum):
    """What the target did with the two requests."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """With these members, and not without them."""
    UNKNOWN = "unknown"
    """It was not reached, or refuses both: the run will show why."""


class ForcedLength:
    """Who asks the target, and what follows from its response."""

    def __init__(self, *, is_used: bool) -> None:
        """`is_used`: at least one request of the dataset has these members."""
        self._is_used = is_used
        self._prober = ""
        self._since_mono_ns = 0
        self.finding: Finding | None = None
        self.said = ""
        """By the target, or why it could not be asked."""

    def asked(self, worker: str, now_mono_ns: int) -> Decision:
        """A worker wants to know what to send."""
        if not self._is_used:
            return Decision.KEEP
        if self.finding is not None:
            is_refused = self.finding is Finding.REFUSED
            return Decision.LEAVE_OUT if is_refused else Decision.KEEP
        if self._prober not in ("", worker) and now_mono_ns < self._since_mono_ns + _PATIENCE_NS:
            return Decision.WAIT
        self._prober, self._since_mono_ns = worker, now_mono_ns
        return Decision.PROBE

    def told(self, finding: Finding, said: str) -> None:
        """A worker has asked the target; the first to say so counts, for all of them."""
        if self.finding is None:
            self.finding, self.said = finding, said


def may_force_length(config: BenchmarkConfig) -> bool:
    """Whether a dataset of this config can have requests with these members."""
    has_lengths = (
        config.dataset.output_tokens is not None or config.dataset.kind is not DatasetKind.SYNTHETIC
    )
    is_embedding = config.endpoint.type is EndpointType.EMBEDDINGS
    return config.endpoint.force_output_length and has_lengths and not is_embedding


def probe_bodies(config: BenchmarkConfig) -> tuple[bytes, bytes]:
    """The smallest request with these members, and the same without them."""
    prompt = Prompt(texts=("Hi",), output_tokens=1)
    options = config.endpoint.model_copy(update={"streaming": False})
    plain = options.model_copy(update={"force_output_length": False})
    render = ENDPOINTS[config.endpoint.type].render
    return render(prompt, options).whole, render(prompt, plain).whole


def is_refusal(status: int) -> bool:
    """Whether a status says that the request itself is wrong."""
    return status in _REFUSALS


def without_forced_length(conversation: Conversation) -> Conversation:
    """The same requests without these members."""
    turns = tuple(
        msgspec.structs.replace(
            turn, messages=_FORCED.sub(b"", turn.messages), tail=_FORCED.sub(b"", turn.tail)
        )
        for turn in conversation.turns
    )
    return msgspec.structs.replace(conversation, turns=turns)
