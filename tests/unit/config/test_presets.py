"""A preset creates the trials of an experiment and completes the config."""

from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load_config import load_config, parse_config, save_config
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.workloads.trials import trial_configs

CURVE = {"preset": "mlperf-endpoints", "max_concurrency": 256}


def config(**changes: Any) -> BenchmarkConfig:
    """Return a config with the preset of a curve."""
    data: dict[str, Any] = {"endpoint": {"url": "http://h", "model": "m"}, "experiment": CURVE}
    for name, part in changes.items():
        data[name] = {**data.get(name, {}), **part}
    return parse_config(data, "")


def test_trials_are_the_points_of_the_curve() -> None:
    found = [each.config.inference for each in trial_configs(config())]
    known = [each for each in found if each is not None]
    assert [each.load.concurrency for each in known] == [1, 4, 18, 41, 77, 140, 256]
    for each in known:
        assert each.endpoint.streaming
        assert each.dataset.order == "random"
        assert each.dataset.cache_bust == "first_turn_prefix"
        assert each.dataset.cache_bust_per == "request"
        assert each.load.min_duration == 25 * 60 * 10**9


def test_config_keys_take_precedence() -> None:
    found = config(
        dataset={"order": "shuffled", "cache_bust": "system_suffix"}, load={"requests": 5_000}
    )
    assert found.dataset.order == "shuffled"
    assert found.dataset.cache_bust == "system_suffix"
    assert (found.load.requests, found.load.min_duration) == (5_000, None)


def test_disabled_cache_markers_stay_disabled() -> None:
    found = config(dataset={"cache_bust": "none"})
    assert (found.dataset.cache_bust, found.dataset.cache_bust_per) == ("none", "entry")


def test_traces_keep_their_order() -> None:
    found = config(dataset={"kind": "mooncake_trace", "file": "t.jsonl"})
    assert found.dataset.order == "sequential"


def test_written_config_has_the_same_trials(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    save_config(config(), path)
    assert load_config(path) == config()


@pytest.mark.parametrize(
    ("experiment", "text"),
    [
        ({"max_concurrency": None}, "needs max_concurrency"),
        ({"max_concurrency": True}, "needs max_concurrency"),
        ({"max_concurrency": 32}, "the highest concurrency is 32; expected more than 32"),
        ({"preset": None}, "max_concurrency needs preset mlperf-endpoints"),
        ({"preset": "mlperf"}, "'mlperf': expected mlperf-endpoints"),
        ({"product": {"load.concurrency": [1, 2]}}, "leave out product"),
        ({"explicit": [{"load.concurrency": 2}]}, "leave out explicit"),
        ({"scenario": "offline"}, "leave out scenario"),
    ],
)
def test_contradictions_are_refused(experiment: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        config(experiment=experiment)
