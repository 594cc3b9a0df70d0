"""Flags combined with a config file, and their combined trials."""

from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load_config import parse_config, save_config
from tests.support.flag_configs import CLOSED, TARGET, config, draft, load_of, refusal
from tests.support.small_configs import small_benchmark


def permutations(made: BenchmarkConfig) -> list[dict[str, Any]]:
    assert made.experiment is not None
    return made.experiment.permutations()


def test_numbers_and_times_with_commas_are_trials() -> None:
    made = config(*TARGET, "--concurrency", "1,2", "--isl", "128, 2048", "--duration", "5s")
    assert permutations(made) == [
        {"load.concurrency": users, "dataset.input_tokens.mean": tokens}
        for users in (1, 2)
        for tokens in (128, 2048)
    ]
    shares = config(*CLOSED, "--request-cancellation-rate", "0,2.5", "--concurrency", "1")
    assert permutations(shares) == [{"load.cancellation.rate": share} for share in ("0%", "2.5%")]
    durations = config(*CLOSED, "--benchmark-duration", "5s,1m")
    assert permutations(durations) == [{"load.duration": "5s"}, {"load.duration": "1m"}]


def test_a_text_with_commas_is_one_text() -> None:
    assert config(*CLOSED, "--artifact-dir", "a,b").artifacts.dir == "a,b"


def test_trials_of_a_varied_load_last_equally_long() -> None:
    made = draft(*TARGET, "--request-rate", "10,20")
    assert load_of(made).duration == 10 * 10**9
    assert made.notices == ["neither --request-count nor --benchmark-duration: 10 s for each trial"]
    assert draft(*TARGET, "--concurrency", "1,2", "--request-count", "5,9").notices == []


def test_values_of_a_sweep_may_be_lists() -> None:
    sweep = "deployment.target.args=[[--ttft, 5ms], [--ttft, 9ms]]"
    made = config(*CLOSED, "--sweep", "deployment.target.kind=mock", sweep)
    assert [each["deployment.target.args"] for each in permutations(made)] == [
        ["--ttft", "5ms"],
        ["--ttft", "9ms"],
    ]


def test_flags_change_the_trials_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    first = config(*TARGET, "--concurrency", "1,2", "--random-seed", "5,6", "--duration", "5s")
    save_config(first, path)
    flags = ("--config", str(path))
    assert config(*flags) == first
    keys = ("load.concurrency", "random_seed")
    other = permutations(config(*flags, "--concurrency", "8,9"))
    assert [[each[key] for key in keys] for each in other] == [[8, 5], [8, 6], [9, 5], [9, 6]]
    fixed = config(*flags, "--concurrency", "8")
    assert fixed.load.concurrency == 8
    assert permutations(fixed) == [{"random_seed": 5}, {"random_seed": 6}]
    assert config(*flags, "--concurrency", "8", "--random-seed", "1").experiment is None


def test_flag_for_key_set_by_trials_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "endpoint: {url: 'http://h', model: m}\nload: {requests: 9}\n"
        "experiment: {explicit: [{load.concurrency: 1}, {load.concurrency: 2}]}\n"
    )
    for value in ("3", "3,4"):
        message = refusal("--config", str(path), "--concurrency", value)
        assert message.endswith(
            "--concurrency: the experiment of the file sets it for each trial; change it there"
        )


@pytest.mark.parametrize("flags", [("--concurrency", "1,2"), ("--concurrency", "5")])
def test_invalid_experiment_in_a_file_is_refused(flags: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    start = "endpoint: {url: 'http://h', model: m}\nload: {requests: 9}\nexperiment: "
    for written in ("3", "{search: {parameters: 3}, zip: [[1]], product: {1: [2]}, template: 4}"):
        path.write_text(start + written)
        assert f"{path}: " in refusal("--config", str(path), *flags)


def test_input_file_is_single_turn_by_default() -> None:
    assert config(*CLOSED, "--input-file", "x").dataset.kind == "single_turn"
    made = config(*CLOSED, "--input-file", "x", "--custom-dataset-type", "sharegpt")
    assert made.dataset.kind == "sharegpt"
    assert config(*CLOSED, "--public-dataset", "sharegpt").dataset.kind == "sharegpt"


def test_spread_of_lengths_is_around_the_usual_mean() -> None:
    lengths = config(*CLOSED, "--isl-stddev", "10").dataset.input_tokens
    assert (lengths.mean, lengths.stddev) == (550.0, 10.0)


def test_flags_override_a_file_key_by_key(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    base = parse_config(
        small_benchmark(endpoint={"headers": {"A": "1"}}, load={"concurrency": 5, "requests": 50}),
        "",
    )
    save_config(base, path)
    made = config("--config", str(path), "--concurrency", "6", "--header", "B:2", "--no-streaming")
    assert made.load.concurrency == 6
    assert made.load.requests == 50
    assert made.endpoint.headers == {"A": "1", "B": "2"}
    assert config("--config", str(path)) == base
    assert config("--config", str(path), "--input-file", "x").dataset.kind == "single_turn"


def test_mistakes_are_named_by_key_or_flag(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("endpoint: {url: 'http://h', model: m}\nload: {requests: 0}\n")
    assert refusal("--config", str(path), "--concurrency", "x").splitlines() == [
        f"{path}: 2 problems",
        "  --concurrency: 'x': expected a whole number",
        "  load.requests: 0: expected a number above 0",
    ]


def test_file_without_keys_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("endpoint: 3\nload: {concurrency: 1, requests: 1}\n")
    message = refusal("--config", str(path), "--model", "m")
    assert message == f"{path}: endpoint: 3: expected keys with values"
