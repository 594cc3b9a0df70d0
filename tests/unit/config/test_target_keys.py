"""A config with several targets contains the keys of each."""

import pytest

from aiperf_svc.config.load_config import parse_config, target_configs
from aiperf_svc.domain.errors import ConfigError

LOAD = {"concurrency": 1, "requests": 1}


def targets(*endpoints: dict[str, object]) -> list[dict[str, object]]:
    return [{"name": f"t{n}", "endpoint": each} for n, each in enumerate(endpoints)]


def test_keys_set_by_each_target_are_optional() -> None:
    benchmark = targets({"url": "http://a", "model": "x"}, {"url": "http://b", "model": "y"})
    config = parse_config({"load": LOAD, "targets": benchmark}, "")
    made = [each.config.endpoint for each in target_configs(config)]
    assert [(each.url, each.model) for each in made] == [("http://a", "x"), ("http://b", "y")]


def test_a_target_has_no_key_of_another() -> None:
    benchmark = targets({"url": "http://a", "headers": {"A": "1"}}, {"url": "http://b"})
    config = parse_config({"endpoint": {"model": "m"}, "load": LOAD, "targets": benchmark}, "")
    first, second = (each.config.endpoint for each in target_configs(config))
    assert (first.headers, second.headers) == ({"A": "1"}, {})


def test_key_missing_in_one_target_is_required() -> None:
    benchmark = targets({"url": "http://a"}, {"model": "n"})
    with pytest.raises(ConfigError, match=r"endpoint\.url: must be given"):
        parse_config({"endpoint": {"model": "m"}, "load": LOAD, "targets": benchmark}, "")
