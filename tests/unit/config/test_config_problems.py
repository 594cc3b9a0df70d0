"""Messages for invalid configs: key, value, expected value, and the nearest name."""

from typing import Any

import pytest

from aiperf_svc.config.load_config import parse_config
from aiperf_svc.config.names import all_keys, nearest_key
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.workloads.registry import parse_benchmark
from tests.support.small_configs import small_benchmark


def refusal_of(data: dict[str, Any], **more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(data, "", **more)
    return str(caught.value)


def with_key(key: str, value: object) -> dict[str, Any]:
    """Return a config that is valid except for one key."""
    data = small_benchmark()
    *parents, last = key.split(".")
    part = data
    for name in parents:
        part = part.setdefault(name, {})
    part[last] = value
    return data


ONE_MISTAKE: list[tuple[str, object, str]] = [
    ("artifacts.s3", {"url": "bucket/prefix"},
     "artifacts.s3.url: 'bucket/prefix': expected a bucket and a prefix such as "
     "s3://bucket/prefix, without empty parts, . and .."),
    ("artifacts.s3", {"url": "s3://bucket/a//b"},
     "artifacts.s3.url: 's3://bucket/a//b': expected a bucket and a prefix such as "
     "s3://bucket/prefix, without empty parts, . and .."),
    ("artifacts.s3", {"url": "s3://bucket/a/../b"},
     "artifacts.s3.url: 's3://bucket/a/../b': expected a bucket and a prefix such as "
     "s3://bucket/prefix, without empty parts, . and .."),
    ("artifacts.s3", {"url": "s3://bucket", "endpoint_url": "http://id:key@minio:9000"},
     "artifacts.s3.endpoint_url: 'http://***@minio:9000': expected no name or password: every "
     "copy of the config would contain it"),
    ("telemetry.server_metrics", ["http://user:pa@ss@host/metrics"],
     "telemetry.server_metrics.0: 'http://***@host/metrics': expected no name or password: every "
     "copy of the config would contain it"),
    ("endpoint.proxy", "http://user:pass@proxy:3128",
     "'http://***@proxy:3128': expected no name or password: every copy of the config would "
     "contain it"),
    ("artifacts.s3", {"url": "s3://bucket", "secret_access_key": "k"},
     "artifacts.s3.secret_access_key: unknown key (value 'k'); expected url, endpoint_url, "
     "region, has_session_token or egress_cidrs"),
    ("load.concurency", 10, "unknown key (value 10); did you mean load.concurrency?"),
    ("concurrency", 3, "unknown key (value 3); did you mean load.concurrency?"),
    ("deployment.pods.worker.memry", "1Gi",
     "unknown key (value '1Gi'); did you mean deployment.pods.worker.memory?"),
    ("tokenizer.zzz", 1, "unknown key (value 1); expected name, revision or apply_chat_template"),
    ("endpoint.type", "chatt",
     "'chatt': expected chat, completions, embeddings, responses, messages, "
     "huggingface_generate, cohere_rankings, hf_tei_rankings, nim_rankings, audio_transcription, "
     "image_generation, template or raw; did you mean chat?"),
    ("deployment.layout", "compct",
     "'compct': expected auto, per-service or compact; did you mean compact?"),
    ("load.concurrency", 0, "0: expected a number above 0"),
    ("load.concurrency", 10**9, "1000000000: expected a number of at most 10,000,000"),
    ("load.request_rate", 1e12, "1000000000000.0: expected a number of at most 1,000,000"),
    ("load.concurrency", 1.5, "1.5: expected a whole number"),
    ("load.request_rate", "fast", "'fast': expected a number"),
    ("load.request_rate", float("inf"), "inf: expected a finite number"),
    ("load.concurrency", True, "true: expected a number"),
    ("slo.goodput", {"request_latency": True},
     "slo.goodput.request_latency: true: expected a number"),
    ("endpoint.streaming", "maybe", "'maybe': expected true or false"),
    ("load.duration", "5 parsecs",
     "'5 parsecs': expected a duration such as \"250ms\", \"30s\" or \"5m\""),
    ("endpoint.url", "localhost", "'localhost': expected an address such as http://host:8000"),
    ("endpoint.model", 5, "5: expected text"),
    ("endpoint.model", " ", "' ': expected some text"),
    ("endpoint.headers", {"X-Number": 1}, "endpoint.headers.X-Number: 1: expected text"),
    ("load.arrival", 3, "3: expected keys with values"),
    ("workers", None, "nothing: expected keys with values"),
    ("slo.objectives", 3, "3: expected a list"),
    ("slo.objectives", [{"metric": "x", "max": 1}, {"max": 1}],
     "slo.objectives.1.metric: must be given"),
    ("load.stages", [{"rate": -1, "duration": "5s"}],
     "load.stages.0.rate: -1: expected a number of at least 0"),
    ("load.stages", [], "[]: expected a longer list"),
    ("slo.objectives", [{"metric": "x", "max": [1]}],
     "slo.objectives.0.max: [1]: expected a number or text"),
    ("load.arrival", {"burstiness": 2}, "burstiness 2 needs pattern gamma, not poisson"),
    ("load", {"concurrency": 1, "ramp": "10s", "duration": "5s"},
     "ramp 10s is longer than duration 5s"),
    ("workers", {"min": 5, "max": 2}, "max 2 is below min 5"),
    ("load", {"requests": 5}, "a load needs concurrency (closed loop) or request_rate (open loop)"),
    ("load", {"concurrency": 5},
     "a load needs requests, duration or min_duration, or the run would never end"),
    ("load", {"concurrency": 5, "requests": 5, "min_duration": "5s"},
     "requests and min_duration both end the load; set one of them"),
    ("load", {"concurrency": 5, "requests": 5, "arrival": {"pattern": "constant"}},
     "arrival.pattern needs request_rate: a closed loop has no arrivals"),
    ("dataset", {"kind": "multi_turn"}, "kind multi_turn needs file"),
    ("dataset", {"kind": "single_turn", "file": "x", "public": "sharegpt"},
     "public sharegpt needs kind sharegpt, not single_turn"),
    ("endpoint", {"url": "http://h", "model": "m", "type": "embeddings", "streaming": True},
     "endpoint.streaming: the embeddings API does not stream"),
    ("dataset.passages", {"number": {"mean": 3}},
     "dataset.passages needs endpoint.type cohere_rankings, hf_tei_rankings or nim_rankings, not "
     "chat"),
    ("dataset.input_tokens", {"distribution": "uniform", "min": 5},
     "distribution uniform needs min and max"),
    ("dataset.input_tokens", {"distribution": "uniform", "min": 5, "max": 7, "mean": 8},
     "distribution uniform is given by min and max; leave out mean and stddev"),
    ("dataset.input_tokens", {"mean": 5, "min": 9, "max": 7}, "min 9 is above max 7"),
    ("dataset.prefix", {"groups": 5}, "groups and tokens need each other"),
    ("dataset.prefix", {"system_prompt": "x", "system_tokens": 5},
     "system_prompt is the text itself; leave out system_tokens"),
    ("dataset", {"mix": [{"weight": 1, "input_tokens": {"mean": 5}}], "output_tokens": {"mean": 5}},
     "mix has lengths of its own; leave out input_tokens and output_tokens"),
    ("dataset.batch_size", 2,
     "dataset.batch_size needs endpoint.type completions or embeddings, not chat"),
    ("dataset", {"kind": "single_turn", "file": "x", "images": {"number": 1}},
     "images needs kind synthetic, not single_turn"),
    ("dataset", {"kind": "single_turn", "file": "x", "prefix": {"system_tokens": 5}},
     "prefix needs kind synthetic, not single_turn"),
    ("endpoint.template", "{}", "endpoint: template needs type template, not chat"),
    ("endpoint.response_field", "a",
     "endpoint: response_field needs type template or raw, not chat"),
    ("endpoint.request_timeout", 0,
     '0: expected a duration above zero, such as "250ms", "30s" or "5m"'),
    ("endpoint.path", "/v1/a b", "'/v1/a b': expected a path that begins with / and has no spaces"),
    ("name", "a/b",
     "'a/b': expected at most 80 letters, digits, dots, underscores and hyphens, with a letter "
     "or digit at both ends"),
    ("deployment.namespace", {"name": "Mine"},
     "deployment.namespace.name: 'Mine': expected a name for Kubernetes: lowercase letters, digits "
     "and inner hyphens"),
    ("endpoint.headers", {"Bad Name": "x"},
     "endpoint.headers.Bad Name: 'Bad Name': expected the name of a header"),
    ("endpoint.headers", {"X-Trace": "a\r\nX-Other: b"},
     "endpoint.headers.X-Trace: 'a\\r\\nX-Other: b': expected one line of text"),
    ("artifacts.dir", "", "'': expected some text"),
    ("telemetry.interval", "50ms",
     "telemetry: interval 50ms is below 100ms: reading would load the server"),
    ("deployment.ttl", "5s",
     "deployment: ttl 5s is below 10s: the stack would delete itself while it starts"),
    ("endpoint.urls", ["http://a:1", "http://a:1"],
     "endpoint: urls: 'http://a:1' is given twice; give each address once"),
    ("endpoint.headers", {"X-Key": {"secure": "v1:abc"}},
     "endpoint.headers.X-Key: a secret must not be in this config; name its variable in "
     "endpoint.api_key_env and keep the value under aiperf:targetApiKey"),
]  # fmt: skip
"""Key, wrong value, and the message. The message omits the key unless it names another one."""


@pytest.mark.parametrize(("key", "wrong", "message"), ONE_MISTAKE)
def test_one_mistake_is_one_line(key: str, wrong: object, message: str) -> None:
    is_whole = message.startswith(key.partition(".")[0])
    assert refusal_of(with_key(key, wrong)) == (message if is_whole else f"{key}: {message}")


def test_long_value_is_cut() -> None:
    message = refusal_of(with_key("load.concurrency", "x" * 1000))
    assert len(message) < 150


def test_missing_required_keys_are_named() -> None:
    assert refusal_of({}) == "2 problems\n  endpoint: must be given\n  load: must be given"


def test_all_mistakes_are_listed_under_the_source() -> None:
    data = with_key("load.concurency", 10)
    data["endpoint"] = {"url": "ftp://h", "type": "chta"}
    with pytest.raises(ConfigError) as caught:
        parse_config(data, "my.yaml")
    title, *lines = str(caught.value).splitlines()
    assert title == "my.yaml: 4 problems"
    assert {line.split(":")[0].strip() for line in lines} == {
        "endpoint.url",
        "endpoint.type",
        "endpoint.model",
        "load.concurency",
    }


def test_problems_use_flag_names_for_keys() -> None:
    names = {"load.concurrency": "--concurrency", "slo.objectives": "--slo"}
    assert refusal_of(with_key("load.concurrency", 0), names=names).startswith("--concurrency: 0: ")
    message = refusal_of(with_key("slo.objectives", [{"metric": "m"}]), names=names)
    assert message == "--slo (slo.objectives.0): an objective needs max or min"


def test_misplaced_key_is_named_with_its_places() -> None:
    workload = {"kind": "mpi-pingpong", "repetitions": 3}
    with pytest.raises(ConfigError) as caught:
        parse_benchmark({"workload": workload}, "")
    assert str(caught.value) == (
        "workload.repetitions: unknown key (value 3); "
        "did you mean repetitions (beside workload) or experiment.repetitions?"
    )


def test_suggestion_prefers_the_key_with_fewest_parents() -> None:
    assert nearest_key(["endpoint", "duration"]) == "load.duration"


def test_every_key_is_found_from_a_typo() -> None:
    for key in all_keys():
        parents, _, name = key.rpartition(".")
        slip = f"{name}x"
        path = [*parents.split("."), slip] if parents else [slip]
        assert nearest_key(path) == key


@pytest.mark.parametrize("wrong", [object, [], {"a": 1}, "?", -1], ids=repr)
def test_no_message_has_pydantic_terms(wrong: object) -> None:
    for key in (key for key in all_keys() if key.startswith("load.")):
        message = refusal_of(with_key(key, wrong))
        assert "Input should" not in message
        assert "pydantic" not in message
        title, *listed = message.splitlines()
        assert all(line.strip().startswith("load") for line in listed or [title])


@pytest.mark.parametrize(
    ("part", "kind", "message"),
    [
        ("images", "completions", "needs endpoint.type chat, responses or messages, not"),
        ("sounds", "messages", "needs endpoint.type chat or audio_transcription, not"),
    ],
)
def test_pictures_and_sounds_need_a_supporting_api(part: str, kind: str, message: str) -> None:
    data = with_key("endpoint.type", kind) | {"dataset": {part: {"number": 1}}}
    assert refusal_of(data) == f"dataset.{part} {message} {kind}"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"endpoint": {"url": "http://h", "model": "m", "proxy": "http://p:1", "http2": True}},
            "endpoint: http2 passes proxy to https URLs only, in a tunnel; leave out one of them",
        ),
        (
            {
                "endpoint": {"url": "http://h", "model": "m", "http2": True},
                "deployment": {"target": {"kind": "vllm"}},
            },
            "endpoint.http2: deployment.target.kind vllm supports HTTP/1.1 only; leave it out",
        ),
    ],
)
def test_http2_is_refused_where_unsupported(keys: dict[str, Any], message: str) -> None:
    assert message in refusal_of({"load": {"concurrency": 1, "requests": 1}} | keys)
