"""Generates missing results of tools in a dataset: words from the seed, with the length from the
file or a drawn one. Missing delays are drawn.

If a synthetic request offers tools, the server decides whether to call any. So each later turn of a
conversation has one spare result, which is used for all calls.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.datasets.base import (
    MS_NS,
    PromptConversation,
    PromptTurn,
    Purpose,
    TokenCounter,
    Unwritten,
    generator,
)
from aiperf_svc.core.datasets.synthetic import draw_lengths, exact_texts


def with_tool_results(
    config: BenchmarkConfig, entries: Sequence[PromptConversation], counter: TokenCounter | None
) -> Sequence[PromptConversation]:
    """Return the entries with texts and delays of all results. Raises DatasetError for a length
    that the tokenizer cannot make."""
    settings, seed = config.dataset.tool_results, config.prompt_seed
    is_offered = "tools" in config.endpoint.extra_inputs and config.dataset.history == "live"
    stated = [
        tokens
        for entry in entries
        for index, turn in enumerate(entry.turns)
        for tokens in _wanted(turn, is_offered=is_offered and index > 0)
    ]
    delayed = sum(_needs_delay(turn) for entry in entries for turn in entry.turns)
    if not stated and not delayed:
        return entries
    lengths = draw_lengths(settings.tokens, len(stated), generator(seed, Purpose.RESULT_LENGTHS))
    lengths = np.where(np.array(stated, dtype=np.int64) > 0, stated, lengths).astype(np.int64)
    rng = generator(seed, Purpose.RESULT_WORDS)
    texts = iter(exact_texts(lengths, "dataset.tool_results.tokens", rng, counter))
    delay, rng = settings.delay_ms, generator(seed, Purpose.RESULT_DELAYS)
    drawn_ms = np.maximum(rng.normal(delay.mean, delay.stddev, size=delayed), 0.0)
    delays_ns = iter(np.rint(drawn_ms * MS_NS).astype(np.int64).tolist())

    def written(turn: PromptTurn, *, is_later: bool) -> PromptTurn:
        delay_ns = next(delays_ns) if _needs_delay(turn) else turn.delay_ns
        has_spare = bool(is_offered and is_later and not _has_results(turn))
        messages = tuple(
            {**each, "content": next(texts)} if isinstance(each.get("content"), Unwritten) else each
            for each in turn.prompt.messages
        )
        return msgspec.structs.replace(
            turn,
            prompt=msgspec.structs.replace(turn.prompt, messages=messages),
            delay_ns=delay_ns,
            spare_result=next(texts) if has_spare else "",
        )

    return [
        msgspec.structs.replace(
            entry,
            turns=tuple(
                written(turn, is_later=index > 0) for index, turn in enumerate(entry.turns)
            ),
        )
        for entry in entries
    ]


def _has_results(turn: PromptTurn) -> bool:
    messages = turn.prompt.messages
    return bool(messages) and messages[0].get("role") == "tool"


def _needs_delay(turn: PromptTurn) -> bool:
    return _has_results(turn) and not turn.has_delay


def _wanted(turn: PromptTurn, *, is_offered: bool) -> list[int]:
    """Return the stated lengths of the texts to generate, 0 for a drawn length."""
    contents = [message.get("content") for message in turn.prompt.messages]
    found = [each.tokens for each in contents if isinstance(each, Unwritten)]
    return [*found, 0] if is_offered and not _has_results(turn) else found
