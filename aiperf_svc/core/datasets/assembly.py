"""Turns prompts into a finished dataset: the warmup's share, order, output lengths, token counts,
bytes.

The result depends only on the config and its seed, so a resolved config makes the same requests in
the same order again.
"""

import hashlib
from collections.abc import Sequence

import msgspec
import numpy as np

from aiperf_svc.config.models import (
    MESSAGE_APIS,
    RANKINGS,
    BenchmarkConfig,
    DatasetKind,
    EndpointType,
    Warmup,
)
from aiperf_svc.core.datasets import synthetic
from aiperf_svc.core.datasets.base import (
    PromptConversation,
    PromptTurn,
    Purpose,
    TokenCounter,
    generator,
)
from aiperf_svc.core.datasets.built import BuiltDataset, entry_bytes
from aiperf_svc.core.datasets.counting import count_inputs
from aiperf_svc.core.datasets.lengths import draw_lengths
from aiperf_svc.core.datasets.prefixes import with_prefixes
from aiperf_svc.core.endpoints.base import Endpoint, Prompt, extra_input_problems
from aiperf_svc.core.endpoints.registry import endpoint_of
from aiperf_svc.domain.errors import ConfigError, DatasetError
from aiperf_svc.protocol.messages import Conversation, DatasetReport, TokenStatistics, Turn

DEFAULT_WARMUP_ENTRIES = 100
"""Number of entries kept for a warmup that is given by its duration."""


class Source(msgspec.Struct, frozen=True):
    """Origin of the prompts, for the report."""

    name: str
    sha256: str = ""
    """Checksum of the file; empty if there is none."""
    left_out: int = 0
    """Number of entries of the file that cannot be sent as conversations."""


def synthetic_prompts(
    config: BenchmarkConfig, counter: TokenCounter | None
) -> list[PromptConversation]:
    """Return the synthetic entries of a config, with those of its warmup at the end."""
    entries = config.dataset.entries or synthetic.DEFAULT_ENTRIES
    total = entries + _wanted_warmup(config.load.warmup, entries)
    seed, dataset = config.random_seed, config.dataset
    prompts = synthetic.generate(dataset, total, seed, counter)
    if config.endpoint.type in RANKINGS:
        return synthetic.with_passages(prompts, dataset.passages, seed, counter)
    takes_messages = config.endpoint.type in MESSAGE_APIS
    return with_prefixes(prompts, dataset.prefix, seed, counter, takes_messages=takes_messages)


def assemble(
    config: BenchmarkConfig,
    prompts: Sequence[PromptConversation],
    source: Source,
    counter: TokenCounter | None,
) -> BuiltDataset:
    """Return the finished dataset.

    Raises DatasetError for prompts that the endpoint cannot carry, and for none at all;
    ConfigError for `extra_inputs` that contradict the rest of the config.
    """
    endpoint = endpoint_of(config.endpoint)
    problems = extra_input_problems(endpoint, config.endpoint)
    if problems:
        raise ConfigError("; ".join(problems))
    if not prompts:
        raise DatasetError(f"{source.name}: no entries; a dataset needs at least one prompt")
    warmup_entries = _warmup_entries(config, len(prompts))
    ordered = _ordered(config, prompts, warmup_entries)
    ordered = _with_output_lengths(config, ordered, counter)
    input_tokens = _input_tokens(ordered, endpoint, counter)
    conversations = _rendered(config, endpoint, ordered, input_tokens)
    report = _report(config, source, ordered, conversations, input_tokens, counter, warmup_entries)
    return BuiltDataset(conversations, warmup_entries, report)


def _wanted_warmup(warmup: Warmup | None, entries: int) -> int:
    return min(warmup.requests or DEFAULT_WARMUP_ENTRIES, entries) if warmup else 0


def _warmup_entries(config: BenchmarkConfig, total: int) -> int:
    """Return how many of `total` entries belong to the warmup: those generated for it, or up to a
    tenth of a file. A file of one entry cannot be divided, so both phases use it."""
    warmup = config.load.warmup
    if config.dataset.kind is DatasetKind.SYNTHETIC:
        return _wanted_warmup(warmup, config.dataset.entries or synthetic.DEFAULT_ENTRIES)
    return 0 if total == 1 else _wanted_warmup(warmup, max(1, total // 10))


def _ordered(
    config: BenchmarkConfig, prompts: Sequence[PromptConversation], warmup_entries: int
) -> list[PromptConversation]:
    if config.dataset.order == "sequential":
        return list(prompts)
    profiling = len(prompts) - warmup_entries
    order = generator(config.random_seed, Purpose.ORDER).permutation(profiling)
    return [*(prompts[place] for place in order.tolist()), *prompts[profiling:]]


def _with_output_lengths(
    config: BenchmarkConfig, entries: list[PromptConversation], counter: TokenCounter | None
) -> list[PromptConversation]:
    """Set the output lengths: a turn's own length first, else the length of the file's response,
    else the distribution."""
    turns = [turn for entry in entries for turn in entry.turns]
    lengths: list[int | None] = [None] * len(turns)
    if config.dataset.output_tokens is not None:
        rng = generator(config.random_seed, Purpose.OUTPUT_LENGTHS)
        lengths = [*draw_lengths(config.dataset.output_tokens, len(turns), rng).tolist()]
    if counter is not None:
        with_response = [place for place, turn in enumerate(turns) if turn.response]
        counts = counter.count_batch([turns[place].response for place in with_response])
        for place, count in zip(with_response, counts, strict=True):
            lengths[place] = max(1, count)
    finished = iter(map(_with_output_length, turns, lengths))
    return [
        msgspec.structs.replace(entry, turns=tuple(next(finished) for _ in entry.turns))
        for entry in entries
    ]


def _with_output_length(turn: PromptTurn, length: int | None) -> PromptTurn:
    if length is None or turn.prompt.output_tokens is not None:
        return turn
    prompt = msgspec.structs.replace(turn.prompt, output_tokens=length)
    return msgspec.structs.replace(turn, prompt=prompt)


def _input_tokens(
    entries: list[PromptConversation], endpoint: Endpoint, counter: TokenCounter | None
) -> list[int]:
    """Return the input tokens of each turn, in order; -1: unknown."""
    turns = [turn for entry in entries for turn in entry.turns]
    known = [turn.input_tokens for turn in turns]
    if counter is not None and -1 in known:
        prompts: list[Prompt] = [turn.prompt for turn in turns]
        return count_inputs(prompts, (endpoint.prompt_key, endpoint.passages_key), counter)
    return known


def _rendered(
    config: BenchmarkConfig,
    endpoint: Endpoint,
    entries: list[PromptConversation],
    input_tokens: list[int],
) -> tuple[Conversation, ...]:
    tokens = iter(input_tokens)
    conversations = []
    for entry in entries:
        if len(entry.turns) > 1 and config.endpoint.type is not EndpointType.CHAT:
            raise DatasetError(
                f"{entry.place}: a conversation of {len(entry.turns)} turns needs endpoint.type "
                f"chat, not {config.endpoint.type}"
            )
        if any(turn.prompt.passages for turn in entry.turns) and not endpoint.passages_key:
            raise DatasetError(
                f"{entry.place}: `passages` are ranked; expected endpoint.type "
                f"{' or '.join(RANKINGS)}, not {config.endpoint.type}"
            )
        try:
            bodies = [endpoint.render(turn.prompt, config.endpoint) for turn in entry.turns]
        except ValueError as error:
            raise DatasetError(f"{entry.place}: {error}") from None
        if len(bodies) == 1:
            # A single turn has no history, so the body is one piece.
            bodies = [msgspec.structs.replace(bodies[0], body=bodies[0].whole, head=b"", tail=b"")]
        turns = tuple(
            Turn(body.body, body.tail, turn.delay_ns, next(tokens), body.requested_tokens)
            for body, turn in zip(bodies, entry.turns, strict=True)
        )
        conversations.append(Conversation(entry.id, turns, head=bodies[0].head))
    return tuple(conversations)


def _report(
    config: BenchmarkConfig,
    source: Source,
    entries: list[PromptConversation],
    conversations: tuple[Conversation, ...],
    input_tokens: list[int],
    counter: TokenCounter | None,
    warmup_entries: int,
) -> DatasetReport:
    digest = hashlib.sha256()
    distinct = {
        (entry.head, *((turn.messages, turn.tail) for turn in entry.turns))
        for entry in conversations
    }
    for entry in conversations:
        digest.update(entry.head)
        for turn in entry.turns:
            digest.update(turn.messages)
            digest.update(turn.tail)
    outputs = [turn.prompt.output_tokens for entry in entries for turn in entry.turns]
    return DatasetReport(
        kind=config.dataset.kind.value,
        source=source.name,
        source_sha256=source.sha256 or None,
        sha256=digest.hexdigest(),
        entries=len(conversations),
        distinct_entries=len(distinct),
        turns=len(input_tokens),
        left_out=source.left_out,
        bytes=sum(map(entry_bytes, conversations)),
        tokenizer=counter.name if counter is not None else None,
        input_tokens=_statistics([count for count in input_tokens if count >= 0]),
        output_tokens=_statistics([count for count in outputs if count is not None]),
        warmup_entries=warmup_entries,
    )


def _statistics(counts: list[int]) -> TokenStatistics | None:
    """Return statistics of known counts; None if there are none."""
    if not counts:
        return None
    values = np.array(counts, dtype=np.int64)
    return TokenStatistics(
        avg=float(values.mean()),
        std=float(values.std()),
        min=int(values.min()),
        max=int(values.max()),
        count=len(counts),
        sum=int(values.sum()),
    )
