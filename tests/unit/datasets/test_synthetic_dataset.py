"""Synthetic prompts: exact lengths, no shared prefixes, and reproducible with a seed."""

import hashlib
from collections.abc import Sequence

import numpy as np
import pytest

from aiperf_svc.adapters.datasets.tokenizers import LibraryTokenCounter
from aiperf_svc.config.dataset import Dataset
from aiperf_svc.config.prompts import Length, Passages
from aiperf_svc.core.datasets.base import PromptConversation, Purpose, generator
from aiperf_svc.core.datasets.synthetic import draw_lengths, generate, with_passages
from aiperf_svc.core.datasets.words import WORDS
from aiperf_svc.domain.errors import DatasetError


def texts(
    mean: float, count: int, *, stddev: float = 0, seed: int = 0, counter: object = None
) -> list[str]:
    dataset = Dataset(input_tokens=Length(mean=mean, stddev=stddev))
    entries = generate(dataset, count, seed, counter)  # type: ignore[arg-type]
    return [entry.turns[0].prompt.texts[0] for entry in entries]


def test_drawn_lengths_have_the_configured_mean_and_deviation() -> None:
    drawn = draw_lengths(Length(mean=500, stddev=50), 20_000, np.random.default_rng(1))
    # Four standard errors of the mean and of the standard deviation.
    assert abs(drawn.mean() - 500) < 4 * 50 / 20_000**0.5
    assert abs(drawn.std() - 50) < 4 * 50 / 40_000**0.5


def test_drawn_lengths_are_never_below_one() -> None:
    drawn = draw_lengths(Length(mean=1, stddev=10), 1000, np.random.default_rng(1))
    assert drawn.min() == 1


def test_zero_deviation_makes_all_lengths_the_mean() -> None:
    assert set(draw_lengths(Length(mean=7), 5, np.random.default_rng(1)).tolist()) == {7}


@pytest.mark.parametrize("mean", [1, 2, 3, 17, 300])
def test_prompts_have_exactly_the_wanted_tokens(
    any_counter: LibraryTokenCounter, mean: int
) -> None:
    made = texts(mean, 30, counter=any_counter)
    assert any_counter.count_batch(made) == [mean] * 30


def test_input_tokens_equal_the_texts_tokens(counter: LibraryTokenCounter) -> None:
    entries = generate(Dataset(input_tokens=Length(mean=60, stddev=30)), 100, 3, counter)
    counts = [counter.count(entry.turns[0].prompt.texts[0]) for entry in entries]
    assert [entry.turns[0].input_tokens for entry in entries] == counts
    assert len(set(counts)) > 20


def test_words_replace_tokens_without_a_tokenizer() -> None:
    (entry,) = generate(Dataset(input_tokens=Length(mean=40)), 1, 0, None)
    assert len(entry.turns[0].prompt.texts[0].split()) == 40
    assert entry.turns[0].input_tokens == -1


def test_first_three_words_of_prompts_are_unique() -> None:
    made = texts(5, 3 * len(WORDS))
    assert len({tuple(text.split()[:3]) for text in made}) == len(made)
    assert len({text.split()[0] for text in made[: len(WORDS)]}) == len(WORDS)


def test_prompts_depend_on_the_seed() -> None:
    assert texts(50, 20, seed=1) == texts(50, 20, seed=1)
    assert texts(50, 20, seed=1) != texts(50, 20, seed=2)


def test_first_entries_do_not_depend_on_count() -> None:
    assert texts(50, 30, stddev=10)[:20] == texts(50, 20, stddev=10)


def test_seed_means_the_same_prompts_in_every_release() -> None:
    made = texts(50, 20, stddev=10, seed=42)
    digest = hashlib.sha256("\n".join(made).encode()).hexdigest()
    assert digest == "53c7258a54a38c836ec281a92431c233b815fa00c4e1b86d56683a168e8f11aa"


def test_each_purpose_has_its_own_random_numbers() -> None:
    first = {int(generator(0, purpose).integers(2**62)) for purpose in Purpose}
    assert len(first) == len(Purpose)


class EvenCounter:
    """A tokenizer for which no text has an odd number of tokens."""

    name = "even"

    def count(self, text: str) -> int:
        return 2 * len(text.split())

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        return [self.count(text) for text in texts]

    def encode(self, text: str) -> list[int]:
        return [0] * self.count(text)

    def decode(self, ids: Sequence[int]) -> str:
        return "a " * (len(ids) // 2)


def test_unreachable_length_is_an_error_that_names_it() -> None:
    assert len(texts(8, 1, counter=EvenCounter())[0].split()) == 4
    with pytest.raises(DatasetError, match=r"'even' could not make .* exactly 7 tokens"):
        texts(7, 1, counter=EvenCounter())


def test_an_absurd_length_is_refused() -> None:
    with pytest.raises(DatasetError, match=r"dataset\.input_tokens"):
        texts(1e9, 1)


def test_the_words_are_distinct_lower_case_and_enough() -> None:
    assert len(set(WORDS)) == len(WORDS) > 1000
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)


RANKED = Passages(number=Length(mean=5, stddev=2), tokens=Length(mean=9, stddev=3))


def ranked(
    count: int, counter: LibraryTokenCounter | None = None, *, passages: Passages = RANKED
) -> list[PromptConversation]:
    entries = generate(Dataset(input_tokens=Length(mean=4)), count, 1, counter)
    return with_passages(entries, passages, 1, counter)


def test_passages_have_exact_tokens_and_distinct_beginnings(counter: LibraryTokenCounter) -> None:
    entries = ranked(40, counter)
    prompts = [entry.turns[0].prompt for entry in entries]
    for entry in entries:
        prompt = entry.turns[0].prompt
        counted = counter.count_batch([*prompt.texts, *prompt.passages])
        assert entry.turns[0].input_tokens == sum(counted)
    passages = [text for prompt in prompts for text in prompt.passages]
    counts = np.array(counter.count_batch(passages))
    # Four standard errors of each mean.
    assert abs(len(passages) / 40 - 5) < 4 * 2 / 40**0.5
    assert abs(counts.mean() - 9) < 4 * 3 / len(passages) ** 0.5
    assert len({text.split()[0] for text in passages}) == len(passages)


def test_first_rankings_do_not_depend_on_their_number() -> None:
    assert ranked(50)[:5] == ranked(5)


def test_an_absurd_number_of_passages_is_refused() -> None:
    with pytest.raises(DatasetError, match=r"dataset\.passages\.number: 20,000 passages"):
        ranked(1, passages=Passages(number=Length(mean=20_000)))
