"""Mixtures, distributions, shared prefixes and conversations of synthetic prompts, checked by
statistics and tokens."""

import math
from collections import Counter
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from aiperf_svc.adapters.datasets.tokenizers import LibraryTokenCounter
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import Dataset
from aiperf_svc.config.prompts import Length
from aiperf_svc.core.datasets.assembly import synthetic_prompts
from aiperf_svc.core.datasets.synthetic import draw_lengths, generate

Config = Callable[..., BenchmarkConfig]
MANY = 20_000


def length(**keys: object) -> Length:
    return Length.model_validate(keys)


def drawn(lengths: Length, seed: int = 1) -> np.ndarray:
    return draw_lengths(lengths, MANY, np.random.default_rng(seed))


def test_uniform_lengths_are_equally_likely() -> None:
    lengths = length(distribution="uniform", min=11, max=20)
    assert lengths.mean == 15.5
    counts = np.bincount(drawn(lengths), minlength=21)[11:]
    assert counts.sum() == MANY
    # Chi-squared test of ten cells: the 99.9th percentile with nine degrees of freedom is 27.9.
    assert ((counts - MANY / 10) ** 2 / (MANY / 10)).sum() < 27.9


def test_lognormal_lengths_have_the_requested_moments() -> None:
    values = drawn(length(mean=500, stddev=250, distribution="lognormal"))
    # Four standard errors of the mean. That of the deviation grows with the kurtosis of about 9.
    assert abs(values.mean() - 500) < 4 * 250 / MANY**0.5
    assert abs(values.std() - 250) < 4 * 250 * math.sqrt((9 - 1) / (4 * MANY))
    # The median of a lognormal distribution is mean / sqrt(1 + (stddev / mean)^2).
    assert abs(np.median(values) - 500 / math.sqrt(1.25)) < 5


def test_limits_cut_a_length_off() -> None:
    values = drawn(length(mean=100, stddev=50, min=80, max=130))
    assert (values.min(), values.max()) == (80, 130)


@pytest.mark.parametrize(
    "keys",
    [
        {"mean": 100},
        {"mean": 100, "max": 40},
        {"mean": 100, "stddev": 10},
        {"mean": 100, "stddev": 3000},
        {"mean": 500, "stddev": 400, "max": 200},
        {"mean": 100, "stddev": 50, "min": 80, "max": 130},
        {"distribution": "uniform", "min": 11, "max": 20},
        {"distribution": "lognormal", "mean": 100, "stddev": 1e-200},
        {"distribution": "lognormal", "mean": 100, "stddev": 300},
        {"distribution": "lognormal", "mean": 1000, "stddev": 3000, "min": 50, "max": 1200},
    ],
)
def test_expected_mean_matches_drawn_values(keys: dict[str, object]) -> None:
    lengths = length(**keys)
    values = drawn(lengths)
    # Values are rounded.
    error = 4 * values.std() / math.sqrt(MANY) + 0.1
    assert lengths.mean_within_limits == pytest.approx(values.mean(), abs=error)


@pytest.mark.parametrize(
    "keys",
    [
        {"mean": 100, "stddev": 10},
        {"mean": 500, "stddev": 400, "max": 200},
        {"distribution": "uniform", "min": 11, "max": 20},
        {"distribution": "lognormal", "mean": 1000, "stddev": 3000, "min": 50, "max": 1200},
    ],
)
def test_lengths_spread_no_more_than_known(keys: dict[str, object]) -> None:
    lengths = length(**keys)
    # The deviation of so many values is known to one in a hundred.
    assert drawn(lengths).std() <= 1.02 * lengths.max_deviation


@pytest.mark.parametrize("distribution", ["normal", "lognormal", "uniform"])
def test_first_values_do_not_depend_on_their_number(distribution: str) -> None:
    keys = {"min": 5, "max": 50} if distribution == "uniform" else {"mean": 20, "stddev": 9}
    lengths = length(distribution=distribution, **keys)
    few = draw_lengths(lengths, 10, np.random.default_rng(3))
    assert draw_lengths(lengths, 1000, np.random.default_rng(3))[:10].tolist() == few.tolist()


MIX = {
    "mix": [
        {"weight": 60, "input_tokens": {"mean": 20}, "output_tokens": {"mean": 5}},
        {"weight": 30, "input_tokens": {"mean": 50, "stddev": 5}, "output_tokens": {"mean": 9}},
        {"weight": 10, "input_tokens": {"mean": 3}},
    ]
}


def test_mixture_keeps_shares_and_pairs_of_lengths(counter: LibraryTokenCounter) -> None:
    count = 2_000
    entries = generate(Dataset.model_validate(MIX), count, 1, counter)
    turns = [entry.turns[0] for entry in entries]
    by_output = Counter(turn.prompt.output_tokens for turn in turns)
    for output, share in ((5, 0.6), (9, 0.3), (None, 0.1)):
        assert abs(by_output[output] - share * count) < 4 * math.sqrt(share * (1 - share) * count)
    assert {t.input_tokens for t in turns if t.prompt.output_tokens == 5} == {20}
    assert {t.input_tokens for t in turns if t.prompt.output_tokens is None} == {3}
    longer = np.array([t.input_tokens for t in turns if t.prompt.output_tokens == 9])
    assert abs(longer.mean() - 50) < 4 * 5 / len(longer) ** 0.5
    texts = [turn.prompt.texts[0] for turn in turns]
    assert counter.count_batch(texts) == [turn.input_tokens for turn in turns]


def test_first_draws_do_not_depend_on_the_count() -> None:
    dataset = Dataset.model_validate(MIX)
    assert generate(dataset, 200, 1, None)[:20] == generate(dataset, 20, 1, None)


def test_batch_has_several_texts_of_the_requested_length(counter: LibraryTokenCounter) -> None:
    dataset = Dataset.model_validate({"batch_size": 3, "input_tokens": {"mean": 12}})
    for entry in generate(dataset, 10, 1, counter):
        (turn,) = entry.turns
        assert counter.count_batch(turn.prompt.texts) == [12, 12, 12]
        assert turn.input_tokens == 36


TURNS = {
    "turns": {"number": {"mean": 4, "stddev": 2}, "delay_ms": {"mean": 200, "stddev": 40}},
    "input_tokens": {"mean": 8},
}


def test_conversations_have_the_configured_turns_and_delays() -> None:
    entries = generate(Dataset.model_validate(TURNS), 2_000, 1, None)
    numbers = np.array([len(entry.turns) for entry in entries])
    assert abs(numbers.mean() - 4.05) < 4 * 2 / len(numbers) ** 0.5  # truncated below one
    delays_ms = np.array([turn.delay_ns for e in entries for turn in e.turns]) / 1e6
    assert abs(delays_ms.mean() - 200) < 4 * 40 / len(delays_ms) ** 0.5
    texts = [turn.prompt.texts[0] for entry in entries for turn in entry.turns]
    assert len(set(texts)) == len(texts)


def test_first_conversations_do_not_depend_on_their_number() -> None:
    dataset = Dataset.model_validate(TURNS)
    assert generate(dataset, 100, 1, None)[:10] == generate(dataset, 10, 1, None)


# --- prefixes ------------------------------------------------------------------------------------


def shared(one: list[int], other: list[int]) -> int:
    """Return the number of leading tokens that two prompts share."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def made(
    make: Config, counter: LibraryTokenCounter, kind: str, **prefix: object
) -> list[list[str]]:
    """Return the texts of the messages, or of twelve prompts with counted tokens."""
    dataset = {"entries": 12, "input_tokens": {"mean": 20}, "prefix": prefix}
    found = []
    for entry in synthetic_prompts(make(endpoint={"type": kind}, dataset=dataset), counter):
        (turn,) = entry.turns
        prompt = turn.prompt
        parts = [*filter(None, [prompt.system]), *prompt.texts]
        assert sum(counter.count_batch(parts)) == turn.input_tokens
        found.append(parts)
    return found


def test_each_group_shares_exactly_its_prefix(
    config: Config, any_counter: LibraryTokenCounter
) -> None:
    texts = [t for (t,) in made(config, any_counter, "completions", groups=3, tokens=30)]
    tokens = [any_counter.encode(text) for text in texts]
    assert {len(each) for each in tokens} == {50}
    alike = [shared(a, b) for a, b in combinations(tokens, 2)]
    # Of twelve prompts in three groups of four, 3 x 6 pairs share a group.
    assert sum(count >= 30 for count in alike) == 18
    assert max(alike) < 50
    assert max(count for count in alike if count < 30) < 3


def test_system_prompt_is_a_message_or_text_start(
    config: Config, any_counter: LibraryTokenCounter
) -> None:
    as_messages = made(config, any_counter, "chat", system_tokens=40)
    assert len({system for system, _ in as_messages}) == 1
    assert any_counter.count(as_messages[0][0]) == 40
    assert {any_counter.count(text) for _, text in as_messages} == {20}
    texts = [t for (t,) in made(config, any_counter, "completions", system_tokens=40)]
    assert {any_counter.count(text) for text in texts} == {60}
    tokens = [any_counter.encode(text) for text in texts]
    assert min(shared(a, b) for a, b in combinations(tokens, 2)) >= 40


def test_system_prompt_can_be_text(config: Config, counter: LibraryTokenCounter) -> None:
    found = made(config, counter, "messages", system_prompt="Be brief.", groups=2, tokens=9)
    assert {system for system, _ in found} == {"Be brief."}
    assert {counter.count(text) for _, text in found} == {29}


def test_conversation_context_is_unique_and_follows_shared_text(
    config: Config, any_counter: LibraryTokenCounter
) -> None:
    found = made(config, any_counter, "chat", system_tokens=10, context_tokens=30)
    tokens = [any_counter.encode(text) for _, text in found]
    assert {len(each) for each in tokens} == {50}
    assert max(shared(a, b) for a, b in combinations(tokens, 2)) < 3
    grouped = made(config, any_counter, "chat", groups=1, tokens=25, context_tokens=30)
    tokens = [any_counter.encode(text) for (text,) in grouped]
    assert {len(each) for each in tokens} == {75}
    alike = [shared(a, b) for a, b in combinations(tokens, 2)]
    assert min(alike) >= 25
    assert max(alike) < 28


def test_prefixes_are_used_equally_in_random_order(
    config: Config, counter: LibraryTokenCounter
) -> None:
    texts = [t for (t,) in made(config, counter, "completions", groups=4, tokens=5)]
    beginnings = [tuple(counter.encode(text)[:5]) for text in texts]
    assert sorted(Counter(beginnings).values()) == [3, 3, 3, 3]
    rounds = [beginnings[:4], beginnings[4:8], beginnings[8:]]
    assert len({tuple(each) for each in rounds}) > 1
