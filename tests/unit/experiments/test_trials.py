"""The trials of an experiment and their order."""

from collections import Counter
from typing import Any

import pytest

from aiperf_svc.config.experiment import Experiment
from aiperf_svc.core.experiments.trials import MAX_FOLDER_LENGTH, Trial, plan_trials


def trials(seed: int = 0, **experiment: Any) -> list[dict[str, Any]]:
    """Return the parameters of each trial in execution order."""
    planned = plan_trials(Experiment.model_validate(experiment), seed)
    assert [trial.number for trial in planned] == list(range(1, len(planned) + 1))
    return [trial.parameters for trial in planned]


def test_product_varies_its_first_key_slowest() -> None:
    assert trials(product={"b": [1, 2], "a": ["x", "y"]}) == [
        {"b": 1, "a": "x"},
        {"b": 1, "a": "y"},
        {"b": 2, "a": "x"},
        {"b": 2, "a": "y"},
    ]


def test_product_order_survives_sorted_maps() -> None:
    written = Experiment.model_validate({"product": {"b": [1, 2], "a": [3, 4]}})
    again = Experiment.model_validate_json(written.model_dump_json())
    assert plan_trials(again, 0) == plan_trials(written, 0)


def test_a_zip_walks_its_lists_together() -> None:
    assert trials(zip={"a": [1, 2], "b": [3, 4]}) == [{"a": 1, "b": 3}, {"a": 2, "b": 4}]


def test_the_union_has_no_duplicates() -> None:
    found = trials(
        product={"a": [1, 2]}, zip={"a": [2, 3]}, explicit=[{"a": 3.0}, {"a": 4}, {"a": 4}]
    )
    assert found == [{"a": 1}, {"a": 2}, {"a": 3}, {"a": 4}]


def test_every_trial_has_every_key() -> None:
    found = trials(
        product={"a": [1]}, explicit=[{"b": 5}, {"a": 1, "b": 7}, {}], template={"a": 9, "b": 7}
    )
    assert found == [{"a": 1, "b": 7}, {"a": 9, "b": 5}, {"a": 9, "b": 7}]


def test_interleaved_runs_all_and_then_all_again() -> None:
    planned = plan_trials(
        Experiment.model_validate({"product": {"a": [1, 2]}, "repetitions": 2}), 0
    )
    assert [(t.parameters["a"], t.repetition) for t in planned] == [(1, 1), (2, 1), (1, 2), (2, 2)]


def test_grouped_repeats_each_before_the_next() -> None:
    experiment = {"product": {"a": [1, 2]}, "repetitions": 2, "order": "grouped"}
    planned = plan_trials(Experiment.model_validate(experiment), 0)
    assert [(t.parameters["a"], t.repetition) for t in planned] == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_shuffled_order_follows_the_seed() -> None:
    experiment = Experiment.model_validate(
        {"product": {"a": list(range(20))}, "repetitions": 3, "order": "shuffled"}
    )
    first, again, other = (plan_trials(experiment, seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    counts = Counter((t.parameters["a"], t.repetition) for t in first)
    assert counts == Counter((a, r) for a in range(20) for r in (1, 2, 3))


def test_repetitions_alone_run_the_template() -> None:
    assert trials(repetitions=3) == [{}, {}, {}]


def test_search_has_no_listed_trials() -> None:
    assert trials(search={"parameter": "a", "from": 1, "to": 8}) == []


def test_a_folder_names_number_parameters_and_repetition() -> None:
    parameters = {"load.concurrency": 4, "dataset.input_tokens.mean": 128}
    trial = Trial(3, parameters, 2)
    assert trial.folder == "003-load.concurrency=4,dataset.input_tokens.mean=128-r2"
    assert Trial(1, {}).folder == "001-r1"


@pytest.mark.parametrize("value", ["../../etc", "a b\n", "é" * 300, {"a": [1, 2]}, "x/y" * 200])
def test_folder_is_one_safe_name_of_bounded_length(value: object) -> None:
    folder = Trial(7, {"endpoint.model": value}).folder
    assert len(folder.encode()) <= MAX_FOLDER_LENGTH
    assert "/" not in folder
    assert folder.isprintable()
    assert folder.startswith("007-")


def test_long_parameters_have_distinct_folders() -> None:
    first, second = ({"endpoint.model": "m" * 300 + end} for end in "ab")
    assert Trial(1, first).folder != Trial(1, second).folder


@pytest.mark.parametrize(
    ("parameters", "folder"),
    [
        ({"load.concurrency": None, "load.request_rate": 2.5}, "load.request_rate=2.5"),
        ({"deployment.target.args": ["--ttft", "5ms"]}, "deployment.target.args=--ttft+5ms"),
        ({"endpoint.streaming": True}, "endpoint.streaming=true"),
        ({"load": {"concurrency": 1, "ramp": "2s"}}, "load=concurrency=1+ramp=2s"),
    ],
)
def test_folder_has_values_as_a_user_writes_them(parameters: dict[str, Any], folder: str) -> None:
    assert Trial(4, parameters).folder == f"004-{folder}-r1"
