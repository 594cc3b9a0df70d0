"""Compares the client's token counts with those that the server reports.

They differ by a token or two per request, since special tokens end an output and a chat template
surrounds a prompt. If they differ by more, the tokenizer is not the server's, or the server did not
use the whole prompt. A server may count more input tokens than the client, since they include its
template, tools and the history of a conversation, but not fewer. If the client knows all of a
prompt except the template, there is an upper limit too.
"""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.stats.columns import PhaseRows, exclude_abandoned
from aiperf_svc.domain.metric_catalog import Population
from aiperf_svc.domain.metric_formulas import USAGE_DISCREPANCY_PCT

SPECIAL_TOKENS = 2
"""Difference of one count that is ignored: the end of an output, and the rounding when texts are
split into tokens again."""
CERTAINLY_CUT = 8.0
"""Ratio of the two counts of a prompt that tokenizers do not explain: a token has four bytes on
average, and a tokenizer of single bytes is the other extreme."""

TEMPLATE_TOKENS = 256
"""Maximum tokens that a chat template adds to one message, including a default system prompt: those
of open models have 5 to 80."""

Counts = NDArray[np.int64]


class Counted(msgspec.Struct, kw_only=True):
    """One kind of tokens, counted twice."""

    requests: int = 0
    """Requests with both counts."""
    apart: int = 0
    """Requests whose counts differ by over 10% and by more than special tokens."""
    client: float = 0.0
    server: float = 0.0
    """Sums over the requests that differ."""
    larger: float = 0.0
    """Sum of the larger count of each request."""
    distance: float = 0.0
    """Sum of the differences of the requests that differ."""

    @property
    def difference(self) -> float:
        """Difference over the requests that differ, as a share of all tokens. Unlike in their sums,
        requests with too many and with too few tokens do not cancel out."""
        return self.distance / self.larger if self.larger else 0.0


class TokenAgreement(msgspec.Struct, kw_only=True):
    """Output tokens, and input tokens for which the server's count is lower or far higher."""

    output: Counted = msgspec.field(default_factory=Counted)
    input: Counted = msgspec.field(default_factory=Counted)
    longer: Counted = msgspec.field(default_factory=Counted)
    """First prompts whose excess a chat template alone cannot explain."""
    input_limit: int = 0
    """Largest count that the server reports for a prompt with too few tokens."""
    at_limit: int = 0
    """Number of such prompts with that count."""
    shortest: int = 0
    longest: int = 0
    """Tokens of these prompts, by the client."""

    @property
    def has_common_limit(self) -> bool:
        """Return whether most prompts with too few tokens have the same number of them."""
        return self.at_limit >= 2 and 2 * self.at_limit >= self.input.apart

    @property
    def is_cut(self) -> bool:
        """Return whether the server certainly cut the prompts: different ones have the same count,
        or the counts differ by more than tokenizers do."""
        if self.has_common_limit and self.longest > self.shortest + SPECIAL_TOKENS:
            return True
        return self.input.apart > 0 and self.input.client >= CERTAINLY_CUT * self.input.server


def token_agreement(rows: PhaseRows, *, are_prompts_whole: bool) -> TokenAgreement:
    """Compare the counts of all completed requests that have both. `are_prompts_whole`: first
    prompts contain nothing that the client does not count, such as tools, besides the template."""
    found = TokenAgreement()
    for chunk in rows.chunks(Population.COMPLETED):
        done = exclude_abandoned(chunk)
        columns = {
            name: done[name].astype(np.int64)
            for name in (
                *("output_tokens", "usage_completion_tokens"),
                *("input_tokens", "usage_prompt_tokens"),
            )
        }
        _add(found.output, columns["output_tokens"], columns["usage_completion_tokens"])
        client, server = columns["input_tokens"], columns["usage_prompt_tokens"]
        if are_prompts_whole:
            known = np.where(server > client + TEMPLATE_TOKENS, server, client)
            is_first = (done["turn"] == 0) & (server >= 0)
            _add(found.longer, client[is_first], known[is_first])
        # More tokens than the client counts are not a difference.
        client, server = _add(found.input, client, np.where(server > client, client, server))
        if len(server):
            _add_limit(found, client, server)
    return found


def _add(total: Counted, client: Counts, server: Counts) -> tuple[Counts, Counts]:
    """Add the requests of a chunk, and return the counts of those that differ."""
    is_known = (client >= 0) & (server >= 0)
    client, server = client[is_known], server[is_known]
    larger, distance = np.maximum(client, server), np.abs(client - server)
    apart = (distance > SPECIAL_TOKENS) & (distance * 100.0 > larger * USAGE_DISCREPANCY_PCT)
    total.requests += len(client)
    total.apart += int(np.count_nonzero(apart))
    total.larger += _sum(larger)
    total.distance += _sum(distance[apart])
    client, server = client[apart], server[apart]
    total.client += _sum(client)
    total.server += _sum(server)
    return client, server


def _add_limit(found: TokenAgreement, client: Counts, server: Counts) -> None:
    largest = int(server.max())
    if largest > found.input_limit or not found.at_limit:
        found.input_limit, found.at_limit = largest, 0
        found.shortest = found.longest = 0
    at_limit = client[server == found.input_limit]
    if not len(at_limit):
        return
    found.at_limit += len(at_limit)
    shortest, longest = int(at_limit.min()), int(at_limit.max())
    found.shortest = min(found.shortest or shortest, shortest)
    found.longest = max(found.longest, longest)


def _sum(numbers: NDArray[Any]) -> float:
    return float(numbers.sum(dtype=np.int64))
