"""The names of trials' folders."""

import pytest

from aiperf_svc.core.experiments.trials import LONGEST_FOLDER, Trial


def test_a_folder_names_number_parameters_and_repetition() -> None:
    parameters = {"load.concurrency": 4, "dataset.input_tokens.mean": 128}
    trial = Trial(3, parameters, 2)
    assert trial.folder == "003-load.concurrency=4,dataset.input_tokens.mean=128-r2"
    assert Trial(1, {}).folder == "001-r1"


@pytest.mark.parametrize("value", ["../../etc", "a b\n", "é" * 300, {"a": [1, 2]}, "x/y" * 200])
def test_a_folder_is_one_safe_name_of_bounded_length(value: object) -> None:
    folder = Trial(7, {"endpoint.model": value}).folder
    assert len(folder.encode()) <= LONGEST_FOLDER
    assert "/" not in folder
    assert folder.isprintable()
    assert folder.startswith("007-")


def test_long_parameters_that_differ_only_at_their_end_have_folders_that_differ() -> None:
    first, second = ({"endpoint.model": "m" * 300 + end} for end in "ab")
    assert Trial(1, first).folder != Trial(1, second).folder
