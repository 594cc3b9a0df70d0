"""Which of several models a prompt uses."""

import numpy as np
import pytest
from pydantic import ValidationError

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.load.model_choice import model_numbers
from tests.support import fake_run

ENTRIES = np.arange(60_000)


def config(*models: str, seed: int = 0, **endpoint: object) -> BenchmarkConfig:
    keys = {"model": models[0], "models": models[1:], **endpoint}
    made = fake_run.config(concurrency=1, requests=1, endpoint=keys)
    return made.model_copy(update={"random_seed": seed})


def test_models_take_turns_by_their_weights() -> None:
    assert model_numbers(config("a", "b", "c"), np.arange(7)).tolist() == [0, 1, 2, 0, 1, 2, 0]
    found = model_numbers(config("a", "b", "c", model_weights=[5, 1, 1]), np.arange(14)).tolist()
    assert found == [0, 0, 1, 0, 2, 0, 0] * 2, "spread as evenly as the weights allow"


def test_number_does_not_depend_on_those_before_it() -> None:
    for selection in ("round_robin", "random"):
        made = config("a", "b", model_weights=[3, 2], model_selection=selection, seed=9)
        whole = model_numbers(made, ENTRIES)
        assert (model_numbers(made, ENTRIES[777:]) == whole[777:]).all()


def test_random_models_have_the_shares_of_their_weights() -> None:
    made = config("a", "b", "c", model_weights=[6, 3, 1], model_selection="random", seed=3)
    numbers = model_numbers(made, ENTRIES)
    expected = np.array([0.6, 0.3, 0.1]) * len(ENTRIES)
    counts = np.bincount(numbers, minlength=3)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 13.8, "p = 0.001 at two degrees of freedom"
    # Pairs of neighbours, as frequent as with independent draws.
    pairs = np.bincount(numbers[:-1] * 3 + numbers[1:], minlength=9)
    shares = np.outer(expected, expected).ravel() / len(ENTRIES)
    assert float(((pairs - shares) ** 2 / shares).sum()) < 26.1, "p = 0.001 at eight degrees"
    other = config("a", "b", "c", model_weights=[6, 3, 1], model_selection="random", seed=4)
    assert (model_numbers(other, ENTRIES) != numbers).any()


def test_several_urls_in_turn_each_get_every_model() -> None:
    made = config("a", "b", urls=["http://b:1", "http://c:1", "http://d:1"])
    urls = np.arange(48) % 4
    pairs = set(zip(urls.tolist(), model_numbers(made, np.arange(48)).tolist(), strict=True))
    assert len(pairs) == 8


@pytest.mark.parametrize(
    ("endpoint", "problem"),
    [
        ({"models": ["a"], "model": "a"}, "'a' is given twice"),
        ({"models": ["b"], "model_weights": [1]}, "expected one for each of 2 models, not 1"),
        ({"models": ["b"], "model_weights": [1, 0]}, "greater than 0"),
    ],
)
def test_models_that_do_not_fit_are_refused(endpoint: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        fake_run.config(concurrency=1, requests=1, endpoint=endpoint)
