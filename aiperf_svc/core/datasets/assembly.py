"""Turns prompts into a finished dataset: the warmup's share, order, output lengths, token counts
and bytes.

The result depends only on the config and its seed, so a resolved config makes the same requests in
the same order. The input tokens of a prompt cover its own text: chat templates, roles,
special tokens and the history of a conversation are not counted here, since the server counts them
in its usage.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config import endpoint as config_of
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import DatasetKind, History
from aiperf_svc.config.load_shapes import Warmup
from aiperf_svc.core.datasets import synthetic
from aiperf_svc.core.datasets.base import (
    PromptConversation,
    PromptTurn,
    Purpose,
    TokenCounter,
    generator,
)
from aiperf_svc.core.datasets.built import BuiltDataset, entry_bytes
from aiperf_svc.core.datasets.cache_bust import with_markers
from aiperf_svc.core.datasets.media import NO_FOLDERS, MediaFolders, with_media
from aiperf_svc.core.datasets.session_trees import message_problem
from aiperf_svc.core.datasets.synthetic import draw_lengths, with_prefixes
from aiperf_svc.core.datasets.templated import fitted, templated_tokens
from aiperf_svc.core.datasets.tool_results import with_tool_results
from aiperf_svc.core.endpoints.base import Endpoint, Prompt, extra_input_problems
from aiperf_svc.core.endpoints.history import split_results
from aiperf_svc.core.endpoints.registry import CONVERSATIONS, endpoint_of
from aiperf_svc.core.load.model_choice import model_numbers
from aiperf_svc.domain.endpoint_types import EndpointType, Feature, names_with
from aiperf_svc.domain.errors import ConfigError, DatasetError
from aiperf_svc.protocol.messages.dataset import Conversation, Turn
from aiperf_svc.protocol.messages.reports import DatasetReport, TokenStatistics

_INSTRUCTIONS = ("system", "instructions")
"""Members of a body with a system prompt, in Anthropic's API and in OpenAI's Responses."""


def count_inputs(
    prompts: Iterable[Prompt], keys: Iterable[str], counter: TokenCounter
) -> list[int]:
    """Return the tokens of each prompt. `keys` are the members of a payload that contain its
    prompt."""
    texts: list[str] = []
    owners: list[int] = []
    totals: list[int] = []
    for index, prompt in enumerate(prompts):
        totals.append(0)
        for part in _parts(prompt, keys):
            if isinstance(part, str):
                texts.append(part)
                owners.append(index)
            else:
                totals[index] += 1
    for owner, count in zip(owners, counter.count_batch(texts), strict=True):
        totals[owner] += count
    return totals


def _parts(prompt: Prompt, keys: Iterable[str]) -> Iterator[str | int]:
    """Yield the texts, and the token ids of payloads that contain tokens instead of text."""
    for key in _INSTRUCTIONS:
        yield from _flatten(prompt.body_members.get(key))
    if prompt.payload is not None:
        for key in keys:
            yield from _flatten(prompt.payload.get(key))
    else:
        yield from filter(None, [prompt.system])
        yield from prompt.texts
        yield from prompt.passages
        yield from _flatten(list(prompt.messages))


def _flatten(value: Any) -> Iterator[str | int]:
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _flatten(item)
    elif isinstance(value, dict):
        # A message has `content`, a part of one has `text`.
        yield from _flatten(value.get("content", value.get("text")))


Lengths = NDArray[np.int64]

DEFAULT_WARMUP_ENTRIES = 100
"""Number of entries for a warmup that is defined by its duration."""


class Source(msgspec.Struct, frozen=True):
    """Source of the prompts, for the report."""

    name: str
    sha256: str = ""
    """Checksum of the file; empty if there is none."""
    left_out: int = 0
    """Number of entries of the file that cannot be sent as conversations."""
    own_warmup: int | None = None
    """Number of entries of a replay that were generated for its warmup; None: a warmup takes a
    share of the file."""
    has_random_text: bool = False
    """Whether some or all prompts are random words."""


class Finished(msgspec.Struct, frozen=True):
    """Entries with output lengths, and their rendered requests."""

    entries: list[PromptConversation]
    input_tokens: list[int]
    """Input tokens of each turn, in order; -1: unknown."""
    conversations: tuple[Conversation, ...]


def synthetic_entries(config: BenchmarkConfig) -> int:
    """Return the number of synthetic entries, without those of the warmup. The default is limited
    to what the load can send, unless requests draw from them or several models share them."""
    if config.dataset.entries:
        return config.dataset.entries
    is_in_turn = config.dataset.order != "random" and len(config.endpoint.all_models) == 1
    sent = config.load.requests if is_in_turn else None
    return min(sent or synthetic.DEFAULT_ENTRIES, synthetic.DEFAULT_ENTRIES)


def synthetic_count(config: BenchmarkConfig) -> int:
    """Return the number of synthetic entries, with those of the warmup."""
    return synthetic_entries(config) + _synthetic_warmup(config)


def _synthetic_warmup(config: BenchmarkConfig) -> int:
    return own_warmup(config.load.warmup, config.dataset.entries or synthetic.DEFAULT_ENTRIES)


def synthetic_prompts(
    config: BenchmarkConfig, counter: TokenCounter | None, folders: MediaFolders = NO_FOLDERS
) -> list[PromptConversation]:
    """Return the synthetic entries of a config, with those of its warmup at the end. `folders` are
    the files to use as pictures and sounds."""
    seed, dataset = config.prompt_seed, config.dataset
    prompts = synthetic.generate(dataset, synthetic_count(config), seed, counter)
    if config.endpoint.type.has(Feature.RANKING):
        return synthetic.with_passages(prompts, dataset.passages, seed, counter)
    takes_messages = config.endpoint.type.has(Feature.MESSAGES)
    prompts = with_prefixes(prompts, dataset.prefix, seed, counter, takes_messages=takes_messages)
    prompts = with_media(prompts, dataset.images, dataset.sounds, seed, folders)
    if counter is not None and config.tokenizer.apply_chat_template:
        return fitted(prompts, counter, config.endpoint.extra_inputs)
    if config.endpoint.type.has(Feature.SOUND_ALONE):
        return [_without_text(entry) for entry in prompts]
    return prompts


def _without_text(entry: PromptConversation) -> PromptConversation:
    (turn,) = entry.turns
    turn = PromptTurn(msgspec.structs.replace(turn.prompt, texts=()))
    return msgspec.structs.replace(entry, turns=(turn,))


def assemble(
    config: BenchmarkConfig,
    prompts: Sequence[PromptConversation],
    source: Source,
    counter: TokenCounter | None,
) -> BuiltDataset:
    """Return the finished dataset. The last prompts are only for the warmup.

    Raises DatasetError for prompts that the endpoint does not support, and without any prompt;
    ConfigError for `extra_inputs` that contradict the rest of the config.
    """
    problems = extra_input_problems(endpoint_of(config.endpoint), config.endpoint)
    if problems:
        raise ConfigError("; ".join(problems))
    warmup_entries = warmup_share(config, source, len(prompts))
    prompts = with_tool_results(config, prompts, counter)
    marked = with_markers(prompts, range(len(prompts)), config, counter)
    ordered = [marked[place] for place in entry_order(config, len(prompts), warmup_entries)]
    lengths = draw_output_lengths(config, sum(len(entry.turns) for entry in ordered))
    _check_models(config, source, len(prompts) - warmup_entries)
    finished = finish(config, ordered, lengths, counter)
    report = _report(config, source, finished, counter, warmup_entries)
    return BuiltDataset(finished.conversations, warmup_entries, report)


def _check_models(config: BenchmarkConfig, source: Source, entries: int) -> None:
    used = set(model_numbers(config, np.arange(entries)).tolist())
    for number, name in enumerate(config.endpoint.all_models):
        if number not in used:
            raise DatasetError(
                f"{source.name}: none of its {entries:,} entries is for the model {name!r}; each "
                "entry asks for one model: give more entries, or fewer models"
            )


def finish(
    config: BenchmarkConfig,
    entries: Sequence[PromptConversation],
    lengths: Lengths | None,
    counter: TokenCounter | None,
    *,
    first_entry: int = 0,
) -> Finished:
    """Set output lengths, count tokens and render to bytes. `lengths` are drawn, one per turn. The
    entries are those of the dataset from `first_entry` on. Raises DatasetError for prompts that the
    endpoint does not support."""
    endpoint = endpoint_of(config.endpoint)
    complete = _with_output_lengths(entries, lengths, counter)
    if counter is not None and config.tokenizer.apply_chat_template:
        input_tokens = templated_tokens(complete, counter, config.endpoint.extra_inputs)
    else:
        input_tokens = _input_tokens(complete, endpoint, counter)
    if config.endpoint.prompt_token_ids and counter is not None:
        complete = [_with_token_ids(entry, counter) for entry in complete]
    numbers = model_numbers(config, first_entry + np.arange(len(complete)))
    models = [config.endpoint.all_models[number] for number in numbers.tolist()]
    # If the dataset has no count, the server's usage provides it.
    is_servers = config.endpoint.use_server_token_count
    counts = [-1] * len(input_tokens) if is_servers else input_tokens
    conversations = _rendered(config, endpoint, complete, counts, models)
    return Finished(complete, input_tokens, conversations)


def _with_token_ids(entry: PromptConversation, counter: TokenCounter) -> PromptConversation:
    """Return an entry whose prompts are token ids. Payloads are unchanged."""
    turns = tuple(
        msgspec.structs.replace(turn, prompt=_token_ids(turn.prompt, counter))
        for turn in entry.turns
    )
    return msgspec.structs.replace(entry, turns=turns)


def _token_ids(prompt: Prompt, counter: TokenCounter) -> Prompt:
    if not prompt.texts:
        return prompt
    ids = [counter.encode(text) for text in prompt.texts]
    payload = {"prompt": ids[0] if len(ids) == 1 else ids}
    return msgspec.structs.replace(prompt, texts=(), payload=payload)


def own_warmup(warmup: Warmup | None, entries: int) -> int:
    """Return how many extra entries the warmup needs beyond `entries` of profiling."""
    if warmup is None:
        return 0
    return min(warmup.requests or warmup.conversations or DEFAULT_WARMUP_ENTRIES, entries)


def warmup_share(config: BenchmarkConfig, source: Source, total: int) -> int:
    """Return how many of `total` entries belong to the warmup: those made for it, or up to a tenth
    of a file. A file with one entry cannot be divided, so both phases use it. Raises DatasetError
    if there is no entry."""
    if not total:
        raise DatasetError(f"{source.name}: no entries; a dataset needs at least one prompt")
    warmup = config.load.warmup
    if config.dataset.kind is DatasetKind.SYNTHETIC:
        return _synthetic_warmup(config)
    if source.own_warmup is not None:
        return source.own_warmup
    return 0 if total == 1 else own_warmup(warmup, max(1, total // 10))


def entry_order(config: BenchmarkConfig, total: int, warmup_entries: int) -> Lengths:
    """Return the positions of the entries in the order of sending."""
    order = np.arange(total)
    if config.dataset.order == "shuffled":
        profiling = total - warmup_entries
        rng = generator(config.random_seed, Purpose.ORDER)
        order[:profiling] = rng.permutation(profiling)
    return order


def draw_output_lengths(config: BenchmarkConfig, turns: int) -> Lengths | None:
    """Return an output length for each turn; None if the config has no output distribution."""
    if config.dataset.output_tokens is None:
        return None
    rng = generator(config.random_seed, Purpose.OUTPUT_LENGTHS)
    return draw_lengths(config.dataset.output_tokens, turns, rng)


def _with_output_lengths(
    entries: Sequence[PromptConversation], drawn: Lengths | None, counter: TokenCounter | None
) -> list[PromptConversation]:
    """Set the output lengths: the turn's own length if it has one, else the length of the file's
    response, else the drawn length."""
    turns = [turn for entry in entries for turn in entry.turns]
    lengths: list[int | None] = [None] * len(turns) if drawn is None else [*drawn.tolist()]
    if counter is not None:
        with_response = [index for index, turn in enumerate(turns) if turn.response]
        counts = counter.count_batch([turns[index].response for index in with_response])
        for index, count in zip(with_response, counts, strict=True):
            lengths[index] = max(1, count)
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
        counts = count_inputs(prompts, (endpoint.prompt_key, endpoint.passages_key), counter)
        # Only the server knows the tokens of pictures and sounds, and only the target API knows
        # which members of a payload are its prompt.
        return [
            -1 if prompt.is_media_alone or (prompt.payload and not endpoint.prompt_key) else count
            for prompt, count in zip(prompts, counts, strict=True)
        ]
    return known


def _rendered(
    config: BenchmarkConfig,
    endpoint: Endpoint,
    entries: Sequence[PromptConversation],
    input_tokens: list[int],
    models: Sequence[str],
) -> tuple[Conversation, ...]:
    tokens = iter(input_tokens)
    options = {
        name: config.endpoint.model_copy(update={"model": name})
        for name in config.endpoint.all_models
    }
    conversations = []
    for entry, model in zip(entries, models, strict=True):
        if len(entry.turns) > 1 and not config.endpoint.type.has(Feature.CONVERSATION):
            raise DatasetError(
                f"{entry.place}: a conversation of {len(entry.turns)} turns needs endpoint.type "
                f"{names_with(Feature.CONVERSATION)}, not {config.endpoint.type}"
            )
        _check_media(entry, config.endpoint.type)
        if any(turn.prompt.passages for turn in entry.turns) and not endpoint.passages_key:
            raise DatasetError(
                f"{entry.place}: `passages` are ranked; expected endpoint.type "
                f"{names_with(Feature.RANKING)}, not {config.endpoint.type}"
            )
        if len(options) > 1 and any("model" in turn.prompt.body_members for turn in entry.turns):
            raise DatasetError(
                f"{entry.place}: `model` in a payload, and endpoint.models names several; leave "
                "out one of them"
            )
        if len(entry.turns) > 1:
            _check_session_body(entry, config.endpoint.session_body)
        try:
            turns, head = _turns_of(entry, endpoint, options[model], config.dataset.history)
        except ValueError as error:
            raise DatasetError(f"{entry.place}: {error}") from None
        conversations.append(
            Conversation(
                entry.id,
                tuple(
                    msgspec.structs.replace(
                        turn,
                        delay_ns=round(written.delay_ns * config.dataset.delay_factor),
                        earliest_ns=written.earliest_ns,
                        input_tokens=next(tokens),
                    )
                    for turn, written in zip(turns, entry.turns, strict=True)
                ),
                head=head,
            )
        )
    return tuple(conversations)


def _turns_of(
    entry: PromptConversation, endpoint: Endpoint, options: config_of.Endpoint, history: History
) -> tuple[list[Turn], bytes]:
    """Return the turns of an entry as they are sent, and the common head of their bodies."""
    if len(entry.turns) == 1:
        # A single turn has no history, so its body is one piece.
        body = endpoint.render(entry.turns[0].prompt, options)
        return [Turn(messages=body.whole, requested_tokens=body.requested_tokens)], b""
    api = CONVERSATIONS[endpoint.type]
    prompts = [turn.prompt for turn in entry.turns]
    results: list[tuple[bytes, ...]] = [()] * len(prompts)
    recorded = [b""] * len(prompts)
    written = [(*turn.prompt.messages, *turn.recorded) for turn in entry.turns]
    for index, messages in enumerate(written, start=1):
        if any(each.get("role") in ("tool", "assistant") for each in messages) and (
            problem := message_problem(messages)
        ):
            raise ValueError(f"turn {index}: {problem}")
    if history == "live":
        for index, prompt in enumerate(prompts[1:], start=1):
            if not entry.turns[index].is_whole:
                prompts[index], results[index] = split_results(prompt, api)
    else:
        for index, turn in enumerate(entry.turns[:-1]):
            if not turn.recorded:
                raise ValueError(
                    f"turn {index + 1} has no recorded response, and dataset.history is recorded"
                )
            recorded[index] = api.render_messages(turn.recorded)
    if entry.turns[0].is_whole:
        # A complete request takes nothing from earlier ones, such as their system prompts.
        bodies = [body for prompt in prompts for body in api.render([prompt], options)]
    else:
        bodies = api.render(prompts, options)
    head = bodies[0].head
    if any(body.head != head for body in bodies):
        head = b""  # Complete requests, which name several models.
    return [
        Turn(
            messages=body.body if head else body.head + body.body,
            tail=body.tail,
            requested_tokens=body.requested_tokens,
            tool_results=found,
            spare_result=msgspec.json.encode(turn.spare_result) if turn.spare_result else b"",
            recorded=response,
            is_whole=turn.is_whole,
        )
        for turn, body, found, response in zip(entry.turns, bodies, results, recorded, strict=True)
    ], head


def _check_session_body(entry: PromptConversation, paths: Sequence[str]) -> None:
    """Raise DatasetError for a payload that sets the member for the conversation's id."""
    for member in (path.split(".")[0] for path in paths):
        if any(member in turn.prompt.body_members for turn in entry.turns):
            raise DatasetError(
                f"{entry.place}: `{member}` in a payload, and endpoint.session_body sets it; leave "
                "out one of them"
            )


def _check_media(entry: PromptConversation, kind: EndpointType) -> None:
    """Raise DatasetError for pictures and sounds that the API does not support."""
    media = [media for turn in entry.turns for media in turn.prompt.media]
    expected = ""
    if any(not each.is_image for each in media) and not kind.has(Feature.SOUND):
        expected = f"sounds need endpoint.type {names_with(Feature.SOUND)}"
    elif any(each.is_image for each in media) and not kind.has(Feature.MESSAGES):
        expected = f"images need endpoint.type {names_with(Feature.MESSAGES)}"
    if expected:
        raise DatasetError(f"{entry.place}: {expected}, not {kind}")


def _report(
    config: BenchmarkConfig,
    source: Source,
    finished: Finished,
    counter: TokenCounter | None,
    warmup_entries: int,
) -> DatasetReport:
    conversations, input_tokens = finished.conversations, finished.input_tokens
    contents = [_content_of(entry) for entry in conversations]
    digest = hashlib.sha256()
    for content in contents:
        digest.update(b"".join(content))
    outputs = [turn.prompt.output_tokens for entry in finished.entries for turn in entry.turns]
    return DatasetReport(
        kind=config.dataset.kind.value,
        source=source.name,
        source_sha256=source.sha256 or None,
        sha256=digest.hexdigest(),
        entries=len(conversations),
        distinct_entries=len(set(contents)),
        turns=len(input_tokens),
        left_out=source.left_out,
        bytes=sum(map(entry_bytes, conversations)),
        tokenizer=counter.name if counter is not None else None,
        input_tokens=statistics(np.array([count for count in input_tokens if count >= 0])),
        output_tokens=statistics(np.array([count for count in outputs if count is not None])),
        warmup_entries=warmup_entries,
        has_random_text=source.has_random_text,
    )


def _content_of(entry: Conversation) -> tuple[bytes, ...]:
    """Return all request bytes that the dataset has for an entry."""
    parts = [entry.head]
    for turn in entry.turns:
        parts += [turn.messages, turn.tail, turn.recorded, *turn.tool_results, turn.spare_result]
    return tuple(parts)


def statistics(counts: NDArray[np.integer[Any]]) -> TokenStatistics | None:
    """Return statistics of known counts; None if there are none."""
    if not len(counts):
        return None
    values = counts.astype(np.int64)
    return TokenStatistics(
        avg=float(values.mean()),
        std=float(values.std()),
        min=int(values.min()),
        max=int(values.max()),
        count=len(values),
        sum=int(values.sum()),
    )
