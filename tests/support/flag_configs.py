"""Configs from flags of `profile`, and error messages of rejected flags."""

from pathlib import Path

import pytest

from aiperf_svc.cli.arguments import Parser
from aiperf_svc.cli.flag_config import Draft, read_draft
from aiperf_svc.cli.main import load_parser
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load import Load
from aiperf_svc.domain.errors import ConfigError

TARGET = ("--url", "http://h:1", "--model", "m")
CLOSED = (*TARGET, "--concurrency", "2")
RATES = Path(__file__).parents[1] / "data" / "rate_series.csv"
TRACE = ("--input-file", "trace.jsonl", "--custom-dataset-type", "mooncake_trace")
REPLAY = ("--fixed-schedule", *TRACE)
USERS = (
    *("--user-centric-rate", "7.5", "--num-users", "30"),
    *("--conversation-turn-mean", "4", "--duration", "5m"),
)


def parser() -> Parser:
    return load_parser("profile")


def draft(*arguments: str) -> Draft:
    return read_draft(parser().parse(arguments))


def config(*arguments: str) -> BenchmarkConfig:
    return draft(*arguments).parse()  # type: ignore[return-value]


def load_of(made: Draft) -> Load:
    """Return the load of a draft for an inference server."""
    parsed = made.parse().inference
    assert parsed is not None
    return parsed.load


def refusal(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        config(*arguments)
    return str(caught.value)
