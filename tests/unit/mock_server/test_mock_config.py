"""Settings of the mock server: the error for every invalid value names its flag."""

import argparse
from typing import Any

import pytest

from aiperf_svc.mock_server.config import (
    MockServerConfig,
    MockServerConfigError,
    add_arguments,
    args_from_config,
    config_from_args,
)


def _parse(*args: str) -> MockServerConfig:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return config_from_args(parser.parse_args(args))


def test_help_ends_with_the_default() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    texts = {action.dest: action.help for action in parser._actions}
    assert texts["port"] == "Port to listen on; 0 selects a free one. Default: 0."
    assert str(texts["refuse"]).endswith("status 400. Default: none.")
    assert texts["truth"] == "Keep one row per request with its arrival and send times."


def test_default_flags_are_a_plausible_server() -> None:
    assert _parse() == MockServerConfig(ttft="normal:50ms,10ms", itl="10ms")
    assert _parse("--ttft", "0", "--itl", "0") == MockServerConfig()


def test_config_round_trips_through_arguments() -> None:
    config = MockServerConfig(
        host="127.0.0.1,127.0.0.2",
        processes=3,
        ttft="normal:20ms,2ms",
        error_rate=0.25,
        truth=True,
        usage="always",
        api_key="-secret with spaces",
    )
    assert _parse(*args_from_config(config)) == config
    assert _parse(*args_from_config(MockServerConfig())) == MockServerConfig()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"processes": 0}, "--processes: 0: expected a number from 1"),
        ({"port": 70_000}, "--port: 70000"),
        ({"error_rate": 1.5}, "--error-rate: 1.5"),
        ({"error_status": 200}, "--error-status: 200: expected a number from 400 to 599"),
        ({"ttft": "20"}, "--ttft: '20' is not a duration"),
        ({"freeze_for": "exp:2s"}, "--freeze-for: 'exp:2s' is not a duration"),
        (
            {"usage": "sometimes"},
            "--usage: 'sometimes': expected one of requested, always, never",
        ),
        ({"error_rate": 0.6, "cut_rate": 0.6}, "add up to 1.2"),
        ({"port": 65_535, "ports": 2}, "--ports: 2: expected at most 1"),
        ({"tls_key": "/nowhere.pem"}, "--tls-key: '/nowhere.pem': expected --tls-cert"),
        ({"tls_cert": "/nowhere.pem"}, "--tls-cert: '/nowhere.pem': expected an existing PEM"),
        ({"host": "127.0.0.1,"}, "--host: '127.0.0.1,'"),
        ({"slots": 4}, "--slots: 4: expected --ttft or --itl"),
        ({"slots": 4, "ttft": "1ms", "processes": 2}, "--slots: 4: expected --processes 1"),
    ],
)
def test_a_bad_setting_is_refused_by_its_flag(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(MockServerConfigError) as caught:
        MockServerConfig(**settings)
    assert named in str(caught.value)
