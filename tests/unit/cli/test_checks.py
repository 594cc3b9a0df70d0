"""Mistakes that the config models cannot detect."""

from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.storage import uploads
from aiperf_svc.cli.checks import config_problems, local_problems
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load_config import parse_config
from tests.support.small_configs import small_benchmark


def made(**endpoint: Any) -> BenchmarkConfig:
    more: dict[str, Any] = {
        key: endpoint.pop(key)
        for key in ("slo", "dataset", "deployment", "tokenizer", "artifacts")
        if key in endpoint
    }
    return parse_config(small_benchmark(endpoint=endpoint, **more), "")


def test_a_right_config_has_no_problems() -> None:
    config = made(
        tokenizer={"name": "owner/name"},
        headers={"X-Trace": "1", "X-Max-Tokens": "5", "X-Author": "me"},
        slo={"objectives": [{"metric": "request_latency", "max": "1s"}]},
    )
    assert config_problems(config) == []
    assert local_problems(config, {}) == []


@pytest.mark.parametrize(
    ("settings", "key", "text"),
    [
        ({"headers": {"Authorization": "x"}}, "endpoint.headers.Authorization", "--api-key"),
        (
            {"hooks": [{"before": "load", "path": "/login", "body": {"api_key": "x"}}]},
            "endpoint.hooks.0.body.api_key",
            "--api-key",
        ),
        ({"headers": {"x-API-key": "x"}}, "endpoint.headers.x-API-key", "--api-key-header"),
        ({"headers": {"X-Auth-Token": "x"}}, "endpoint.headers.X-Auth-Token", "in plain text"),
        (
            {"headers": {"Ocp-Apim-Subscription-Key": "x"}},
            "endpoint.headers.Ocp-Apim-Subscription-Key",
            "in plain text",
        ),
        (
            {"headers": {"X-Functions-Key": "x"}},
            "endpoint.headers.X-Functions-Key",
            "in plain text",
        ),
        ({"extra_inputs": {"api_key": "x"}}, "endpoint.extra_inputs.api_key", "in plain text"),
        ({"reset_kv_cache": {"path": "/x?key=x"}}, "endpoint.reset_kv_cache", "in plain text"),
        ({"hooks": [{"before": "load", "path": "/x?key=x"}]}, "endpoint.hooks.0.path", "in plain"),
        ({"url": "http://me:pw@h"}, "endpoint.url", "--api-key"),
        ({"url": "http://h/v1/embeddings"}, "", "expected {endpoint.type} embeddings, or a URL"),
        ({"url": "http://h:99999"}, "endpoint.url", "a port from 1 to 65,535"),
        ({"url": "http://h:0"}, "endpoint.url", "a port from 1 to 65,535"),
        ({"url": "http://h:abc"}, "endpoint.url", "a port from 1 to 65,535"),
        ({"url": "http://user:pass@h:99999"}, "endpoint.url", "use --api-key"),
        ({"url": "http://[::1"}, "endpoint.url", "http://[::1]:8000"),
        ({"url": "http://h/a b"}, "endpoint.url", "no spaces"),
        ({"url": "http://exämple"}, "endpoint.url", "xn--"),
        ({"url": "http://h/v1?key=1"}, "endpoint.url", "no ? or #"),
        ({"url": "http://:80"}, "endpoint.url", "names no host"),
        ({"extra_inputs": {"stream": True}}, "endpoint.extra_inputs.stream", "remove it"),
        ({"slo": {"goodput": {"ttft": 1}}}, "slo.goodput.ttft", "is not a metric"),
        (
            {"slo": {"goodput_tiers": {"gold": {"ttft": 1}}}},
            "slo.goodput_tiers.gold.ttft",
            "is not a metric",
        ),
        (
            {"slo": {"objectives": [{"metric": "achieved_rate", "min": 1}]}},
            "slo.objectives.0.metric",
            "no data without load.request_rate",
        ),
        (
            {"slo": {"objectives": [{"metric": "request_latency", "max": "1 apple"}]}},
            "slo.objectives.0.max",
            "expected a duration",
        ),
    ],
)
def test_a_mistake_is_named_by_its_key(settings: dict[str, Any], key: str, text: str) -> None:
    (problem,) = config_problems(made(**settings))
    assert problem.key == key
    assert text in problem.text


def test_url_with_password_is_refused_without_repeating_it() -> None:
    (problem,) = config_problems(made(url="http://me:hush@h"))
    assert "hush" not in problem.text


@pytest.mark.parametrize(
    ("settings", "key", "text"),
    [
        ({"dataset": {"kind": "single_turn", "file": "/nix"}}, "dataset.file", "no such file"),
        ({"tls": {"ca_file": "/nix.pem"}}, "endpoint.tls.ca_file", "no such file"),
        ({"tokenizer": {"name": "./nix"}}, "tokenizer.name", "no such file"),
        ({"tokenizer": {"name": "tokenizer.json"}}, "tokenizer.name", "no such file"),
        ({"api_key_env": "KEY"}, "endpoint.api_key_env", "'KEY' is not set"),
        (
            {"url": "http://target", "deployment": {"target": {"kind": "vllm"}}},
            "endpoint.url",
            "--url",
        ),
    ],
)
def test_missing_files_and_keys_are_named(settings: dict[str, Any], key: str, text: str) -> None:
    config = made(**settings)
    assert config_problems(config) == []
    (problem,) = local_problems(config, {})
    assert problem.key == key
    assert text in problem.text


def test_existing_file_and_key_are_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("{}\n")
    config = made(api_key_env="KEY", dataset={"kind": "single_turn", "file": str(path)})
    assert local_problems(config, {"KEY": "x"}) == []


def test_an_upload_needs_its_keys_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "bucket_problem", lambda *_: "")
    config = made(artifacts={"s3": {"url": "s3://bucket"}})
    (problem,) = local_problems(config, {"AWS_ACCESS_KEY_ID": "id"})
    assert problem.key == "artifacts.s3"
    assert problem.text.startswith("AWS_SECRET_ACCESS_KEY: not set")
    assert local_problems(config, {"AWS_ACCESS_KEY_ID": "i", "AWS_SECRET_ACCESS_KEY": "k"}) == []


def test_bucket_that_cannot_take_results_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "bucket_problem", lambda *_: "NoSuchBucket")
    config = made(artifacts={"s3": {"url": "s3://bucket", "endpoint_url": "http://minio:9000"}})
    (problem,) = local_problems(config, {"AWS_ACCESS_KEY_ID": "i", "AWS_SECRET_ACCESS_KEY": "k"})
    assert problem.text == "s3://bucket at http://minio:9000 cannot store the results: NoSuchBucket"


@pytest.mark.parametrize(
    ("dataset", "key"),
    [
        ({"images": {"format": "jpeg"}}, "dataset.images.format"),
        ({"images": {"folder": "f", "width": {"mean": 9}}}, "dataset.images.folder"),
        ({"sounds": {"format": "mp3"}}, "dataset.sounds.format"),
        ({"images": {"folder": "f"}, "sounds": {"depths": [8]}}, None),
    ],
)
def test_formats_without_their_library_name_the_package(
    monkeypatch: pytest.MonkeyPatch, dataset: dict[str, Any], key: str | None
) -> None:
    assert local_problems(made(dataset=dataset)) == []
    monkeypatch.setattr("aiperf_svc.cli.checks.find_spec", lambda name: None)
    found = local_problems(made(dataset=dataset))
    assert [problem.key for problem in found] == ([key] if key else [])
    assert all("pip install 'aiperf-svc[media]'" in problem.text for problem in found)


def test_upload_without_its_library_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "aiperf_svc.adapters.storage.uploads.LIBRARY", "a_library_that_is_not_there"
    )
    config = made(artifacts={"s3": {"url": "s3://bucket"}})
    keys = {"AWS_ACCESS_KEY_ID": "i", "AWS_SECRET_ACCESS_KEY": "k"}
    (problem,) = local_problems(config, keys)
    assert "pip install 'aiperf-svc[s3]'" in problem.text
