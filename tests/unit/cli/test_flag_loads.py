"""The table of flags against the config, and what flags become."""

import re
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.cli import flag_docs
from aiperf_svc.cli.arguments import Parser
from aiperf_svc.cli.checks import config_problems
from aiperf_svc.cli.commands import profile
from aiperf_svc.cli.flag_config import Draft, read_draft
from aiperf_svc.cli.flags import FLAGS
from aiperf_svc.cli.runs import DISPLAYS
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.hooks import ResetKvCache, ServerProfiler
from aiperf_svc.config.load_config import parse_config, save_config
from aiperf_svc.config.load_shapes import Bursts, RatePoint, Stage
from aiperf_svc.config.names import all_keys, type_at
from aiperf_svc.config.prompts import Length, Shape
from aiperf_svc.config.search import Search
from aiperf_svc.config.slo import Objective
from aiperf_svc.domain.errors import ConfigError

PROMISED = """
    --url -u --model -m --endpoint-type --streaming --concurrency --request-rate
    --arrival-pattern --burstiness --request-count --benchmark-duration --duration
    --warmup-request-count --warmup-duration --ramp-duration --grace-period --isl --isl-stddev
    --osl --osl-stddev --num-dataset-entries --input-file --custom-dataset-type --public-dataset
    --tokenizer --extra-inputs --header --api-key --random-seed --workers-max --record-processors
    --artifact-dir --json --ui
"""
TARGET = ("--url", "http://h:1", "--model", "m")
CLOSED = (*TARGET, "--concurrency", "2")
RAW = ("--endpoint-type", "raw", "--input-file", "x.jsonl")
RANKED = ("--endpoint-type", "hf_tei_rankings")


def parser() -> Parser:
    made = Parser("profile", profile.DESCRIPTION)
    profile.add_arguments(made)
    return made


def draft(*arguments: str) -> Draft:
    return read_draft(parser().parse(arguments))


def config(*arguments: str) -> BenchmarkConfig:
    return draft(*arguments).parse()


def refusal(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        config(*arguments)
    return str(caught.value)


def test_every_promised_flag_is_there() -> None:
    known = {name for action in parser()._actions for name in action.option_strings}
    assert set(PROMISED.split()) <= known


def test_every_flag_writes_a_key_of_the_config_and_no_two_the_same() -> None:
    keys = [flag.key for flag in FLAGS]
    assert set(keys) <= set(all_keys())
    assert len(keys) == len(set(keys))
    names = [name for flag in FLAGS for name in flag.names]
    assert len(names) == len(set(names))


def _is_of_a_length(key: str) -> bool:
    """Whether a key is one of those of a distribution that have no flags."""
    is_length = any(part in key for part in ("_tokens.", ".number.", ".tokens.", "dataset.images."))
    return is_length and key.endswith((".distribution", ".min", ".max"))


def test_every_key_of_target_load_and_dataset_has_a_flag_or_a_reason() -> None:
    """A new key of the config needs a flag, or a line here."""
    only_in_files = {
        "endpoint.api_key_env",  # --api-key
        "endpoint.urls",  # --url again
        "endpoint.models",  # --model A,B
        "endpoint.hooks",
        "endpoint.proxy_auth_env",
        "endpoint.connect_timeout",
        "endpoint.request_usage",
        "endpoint.tls",
        "endpoint.tls.ca",  # --tls-ca-file
        "endpoint.source_addresses",
        "load.samples_per_query",  # --scenario multi-stream
        "dataset.url",
        "dataset.max_download",
        "dataset.sha256",
        # Parts of --stages and --rate-series.
        "load.stages.rate",
        "load.stages.duration",
        "load.rate_series.at",
        "load.rate_series.rate",
        # Parts of --bursts.
        "load.bursts.rate",
        "load.bursts.length",
        "load.bursts.every",
        "load.warmup.arrival.burstiness",
    }
    only_in_files |= {key for key in all_keys() if _is_of_a_length(key)}
    parts = {
        "load.arrival", "load.cancellation", "load.user_centric", "load.warmup",
        "load.warmup.arrival",
        "dataset.input_tokens", "dataset.output_tokens",
        "dataset.passages", "dataset.passages.number", "dataset.passages.tokens",
        "dataset.prefix", "dataset.turns", "dataset.turns.number", "dataset.turns.delay_ms",
        "dataset.images", "dataset.images.width", "dataset.images.height",
        "dataset.sounds", "dataset.sounds.seconds",
    }  # fmt: skip
    flagged = {flag.key for flag in FLAGS}
    wanted = {
        key for key in all_keys() if key.startswith(("endpoint.", "load.", "dataset."))
    } - parts
    assert wanted - flagged == only_in_files


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_help_lists_every_choice(flag: Any) -> None:
    annotation = str(type_at(flag.key.split(".")))
    literal = re.search(r"Literal\[(.*?)\]", annotation)
    for choice in re.findall(r"'(.*?)'", literal[1]) if literal else ():
        if choice != "auto":
            assert choice in flag.text


MLFLOW = ("--mlflow-tracking-uri", "http://m:5000")
WANDB = ("--wandb-project", "bench")
RATES = Path(__file__).parents[2] / "data" / "rate_series.csv"
TRACE = ("--input-file", "trace.jsonl", "--custom-dataset-type", "mooncake_trace")
REPLAY = ("--fixed-schedule", *TRACE)
WARM = ("--warmup-request-count", "5")
PREFILL = ("--streaming", "--prefill-concurrency", "2")
USERS = ("--user-centric-rate", "7.5", "--num-users", "30", "--conversation-turn-mean", "4")
USERS += ("--duration", "5m")
VALUES: dict[str, tuple[tuple[str, ...], Any]] = {
    "--url": (("--url", "localhost:8000"), "http://localhost:8000"),
    "--model": (("--model", "a/b"), "a/b"),
    "--endpoint-type": (("--endpoint-type", "completions"), "completions"),
    "--endpoint": (("--endpoint", "/v2/chat"), "/v2/chat"),
    "--connections": (("--connections", "per-request"), "per-request"),
    "--endpoint-template": (
        ("--endpoint-type", "template", "--endpoint-template", "nv-embedqa"),
        '{"text": {{ texts|tojson }}}',
    ),
    "--response-field": (
        (*RAW, "--response-field", "data[0].text"),
        "data[0].text",
    ),
    "--output-tokens-field": ((*RAW, "--output-tokens-field", "details.tokens"), "details.tokens"),
    "--streaming": (("--streaming",), True),
    "--header": (("--header", "A: b:c", "-H", "D:e"), {"A": "b:c", "D": "e"}),
    "--api-key-header": (("--api-key-header", "api-key"), "api-key"),
    "--extra-inputs": (
        ("--extra-inputs", "temperature:0.7", "user:me", "--extra-inputs", '{"stop": null}'),
        {"temperature": 0.7, "user": "me", "stop": None},
    ),
    "--request-timeout": (("--request-timeout", "90"), 90 * 10**9),
    "--wait-for-server": (("--wait-for-server", "10m"), 600 * 10**9),
    "--tls-ca-file": (("--tls-ca-file", "ca.pem"), "ca.pem"),
    "--tls-verify": (("--no-tls-verify",), False),
    "--tls-server-name": (("--tls-server-name", "api.test"), "api.test"),
    "--concurrency": (("--concurrency", "7"), 7),
    "--request-rate": (("--request-rate", "2.5"), 2.5),
    "--arrival-pattern": (("--request-rate", "1", "--arrival-pattern", "constant"), "constant"),
    "--burstiness": (
        ("--request-rate", "1", "--arrival-pattern", "gamma", "--burstiness", "0.5"),
        0.5,
    ),
    "--stages": (
        ("--stages", "5:2s", "9:1m"),
        (Stage(rate=5, duration="2s"), Stage(rate=9, duration="1m")),
    ),
    "--rate-series": (
        ("--rate-series", str(RATES)),
        (
            RatePoint(at=0, rate=10),
            RatePoint(at="30.5s", rate=20),
            RatePoint(at="60s", rate=0),
        ),
    ),
    "--fixed-schedule": ((*REPLAY,), True),
    "--fixed-schedule-auto-offset": ((*REPLAY, "--no-fixed-schedule-auto-offset"), False),
    "--fixed-schedule-start-offset": (
        (*REPLAY, "--fixed-schedule-start-offset", "1500"),
        1_500_000_000,
    ),
    "--fixed-schedule-end-offset": ((*REPLAY, "--fixed-schedule-end-offset", "2m"), 120 * 10**9),
    "--replay-speedup": ((*REPLAY, "--replay-speedup", "2.5"), 2.5),
    "--request-count": (("--request-count", "9"), 9),
    "--benchmark-duration": (("--duration", "1m"), 60 * 10**9),
    "--prefill-concurrency": (PREFILL, 2),
    "--prefill-concurrency-ramp-duration": (
        (*PREFILL, "--prefill-concurrency-ramp-duration", "30"),
        30 * 10**9,
    ),
    "--bursts": (
        ("--bursts", "200:5s/1m", "--duration", "5m"),
        Bursts(rate=200, length="5s", every="1m"),  # type: ignore[arg-type]
    ),
    "--user-centric-rate": (USERS, 7.5),
    "--num-users": (USERS, 30),
    "--request-cancellation-rate": (["--request-cancellation-rate", "10"], 0.1),
    "--request-cancellation-delay": (
        ["--request-cancellation-rate", "5%", "--request-cancellation-delay", "500ms"],
        500_000_000,
    ),
    "--grace-period": (("--grace-period", "250ms"), 250_000_000),
    "--ramp-duration": (("--ramp-duration", "3s"), 3 * 10**9),
    "--warmup-request-count": (("--warmup-request-count", "5"), 5),
    "--num-warmup-sessions": (("--num-warmup-sessions", "6"), 6),
    "--warmup-concurrency": ((*WARM, "--warmup-concurrency", "2"), 2),
    "--warmup-request-rate": ((*WARM, "--warmup-request-rate", "4.5"), 4.5),
    "--warmup-arrival-pattern": (
        (*WARM, "--warmup-request-rate", "4", "--warmup-arrival-pattern", "constant"),
        "constant",
    ),
    "--warmup-ramp-duration": ((*WARM, "--warmup-concurrency-ramp-duration", "2"), 2 * 10**9),
    "--warmup-prefill-concurrency": (
        (*WARM, "--streaming", "--warmup-prefill-concurrency", "1"),
        1,
    ),
    "--warmup-prefill-concurrency-ramp-duration": (
        (*WARM, *PREFILL, "--warmup-prefill-concurrency-ramp-duration", "3"),
        3 * 10**9,
    ),
    "--warmup-duration": (("--warmup-duration", "5"), 5 * 10**9),
    "--warmup-grace-period": (
        ("--warmup-duration", "5", "--warmup-grace-period", "1s"),
        10**9,
    ),
    "--isl": (("--isl", "100"), 100.0),
    "--isl-stddev": (("--isl-stddev", "10"), 10.0),
    "--seq-dist": (
        ("--seq-dist", "256,128:60;1024|100,512|5:40"),
        (
            Shape(weight=60, input_tokens=Length(mean=256), output_tokens=Length(mean=128)),
            Shape(
                weight=40,
                input_tokens=Length(mean=1024, stddev=100),
                output_tokens=Length(mean=512, stddev=5),
            ),
        ),
    ),
    "--batch-size": (("--endpoint-type", "embeddings", "-b", "4"), 4),
    "--shared-system-prompt-length": (("--shared-system-prompt-length", "100"), 100),
    "--system-prompt": (("--system-prompt", "Be brief."), "Be brief."),
    "--user-context-prompt-length": (("--user-context-prompt-length", "40"), 40),
    "--cache-bust": (("--cache-bust", "system_prefix"), "system_prefix"),
    "--num-prefix-prompts": (
        ("--num-prefix-prompts", "5", "--prefix-prompt-length", "64"),
        5,
    ),
    "--url-strategy": (("-u", "b:2", "--url-strategy", "least-in-flight"), "least_in_flight"),
    "--model-selection-strategy": (
        ("-m", "a,b", "--model-weights", "3,1", "--model-selection-strategy", "weighted"),
        "random",
    ),
    "--model-weights": (("-m", "a,b", "--model-weights", "3,1"), (3, 1)),
    "--proxy": (("--proxy", "proxy:3128"), "http://proxy:3128"),
    "--http2": (("--http2",), True),
    "--reset-kv-cache": (("--reset-kv-cache",), ResetKvCache()),
    "--reset-kv-cache-path": (
        ("--reset-kv-cache", "--reset-kv-cache-path", "/flush_cache"),
        "/flush_cache",
    ),
    "--reset-kv-cache-timeout": (("--reset-kv-cache-timeout-seconds", "30"), 30 * 10**9),
    "--server-profiler": (("--server-profiler",), ServerProfiler()),
    "--server-profiler-start-path": (("--server-profiler-start-path", "/on"), "/on"),
    "--server-profiler-stop-path": (("--server-profiler-stop-path", "/off"), "/off"),
    "--server-profiler-timeout": (("--server-profiler-timeout", "1m"), 60 * 10**9),
    "--prefix-prompt-length": (
        ("--num-prefix-prompts", "5", "--prefix-prompt-length", "64"),
        64,
    ),
    "--conversation-turn-mean": (("--conversation-turn-mean", "3"), 3.0),
    "--conversation-turn-stddev": (("--conversation-turn-stddev", "1"), 1.0),
    "--conversation-turn-delay-mean": (("--session-turn-delay-mean", "500"), 500.0),
    "--conversation-turn-delay-stddev": (("--conversation-turn-delay-stddev", "50"), 50.0),
    "--conversation-turn-delay-ratio": (("--session-delay-ratio", "0.5"), 0.5),
    "--image-batch-size": (("--image-batch-size", "2"), 2),
    "--image-width-mean": (("--image-width-mean", "64"), 64.0),
    "--image-width-stddev": (("--image-width-stddev", "8"), 8.0),
    "--image-height-mean": (("--image-height-mean", "64"), 64.0),
    "--image-height-stddev": (("--image-height-stddev", "8"), 8.0),
    "--audio-batch-size": (("--audio-batch-size", "2"), 2),
    "--audio-length-mean": (("--audio-length-mean", "3"), 3.0),
    "--audio-length-stddev": (("--audio-length-stddev", "0.5"), 0.5),
    "--audio-sample-rates": (("--audio-sample-rates", "44.1", "16,8"), (44_100, 16_000, 8_000)),
    "--audio-depths": (("--audio-depths", "16", "24"), (16, 24)),
    "--audio-format": (("--audio-format", "mp3"), "mp3"),
    "--audio-folder": (("--audio-folder", "sounds"), "sounds"),
    "--audio-sampling": (
        ("--audio-folder", "sounds", "--audio-sampling", "sequential"),
        "sequential",
    ),
    "--image-format": (("--image-format", "jpeg"), "jpeg"),
    "--image-folder": (("--image-folder", "pictures"), "pictures"),
    "--image-sampling": (
        ("--image-source", "pictures", "--image-source-sampling", "shuffle-cycle"),
        "shuffled",
    ),
    "--audio-num-channels": (("--audio-num-channels", "2"), 2),
    "--rankings-passages-mean": ((*RANKED, "--rankings-passages-mean", "5"), 5.0),
    "--rankings-passages-stddev": ((*RANKED, "--rankings-passages-stddev", "1"), 1.0),
    "--rankings-passages-prompt-token-mean": (
        (*RANKED, "--rankings-passages-prompt-token-mean", "32"),
        32.0,
    ),
    "--rankings-passages-prompt-token-stddev": (
        (*RANKED, "--rankings-passages-prompt-token-stddev", "8"),
        8.0,
    ),
    "--osl": (("--osl", "50"), 50.0),
    "--force-output-length": (("--osl", "50", "--no-force-output-length"), False),
    "--osl-stddev": (("--osl", "50", "--osl-stddev", "5"), 5.0),
    "--num-dataset-entries": (("--num-dataset-entries", "11"), 11),
    "--input-file": (("--input-file", "x.jsonl"), "x.jsonl"),
    "--custom-dataset-type": (
        ("--input-file", "x.jsonl", "--custom-dataset-type", "multi_turn"),
        "multi_turn",
    ),
    "--isl-block-size": (
        (*TRACE, "--isl-block-size", "64"),
        64,
    ),
    "--synthesis-max-isl": ((*TRACE, "--synthesis-max-isl", "64"), 64),
    "--synthesis-max-osl": ((*TRACE, "--synthesis-max-osl", "64"), 64),
    "--public-dataset": (("--public-dataset", "sharegpt"), "sharegpt"),
    "--dataset-order": (("--dataset-sampling-strategy", "shuffle"), "shuffled"),
    "--tokenizer": (("--tokenizer", "gpt2"), "gpt2"),
    "--tokenizer-revision": (("--tokenizer-revision", "abc"), "abc"),
    "--apply-chat-template": (("--tokenizer", "gpt2", "--apply-chat-template"), True),
    "--random-seed": (("--random-seed", "3"), 3),
    "--slo": (
        ("--slo", "time_to_first_token:p99<500ms", "request_throughput >= 10"),
        (
            Objective(metric="time_to_first_token", stat="p99", max="500ms"),
            Objective(metric="request_throughput", min="10"),
        ),
    ),
    "--goodput": (
        ("--goodput", "time_to_first_token:500ms request_latency:2s"),
        {"time_to_first_token": "500ms", "request_latency": "2s"},
    ),
    "--goodput-tier": (
        (
            *("--goodput-tier", "gold=time_to_first_token:200ms inter_token_latency:20"),
            *("--goodput-tier", "silver=time_to_first_token:1s"),
        ),
        {
            "gold": {"time_to_first_token": "200ms", "inter_token_latency": "20"},
            "silver": {"time_to_first_token": "1s"},
        },
    ),
    "--error-budget": (("--error-budget", "2%"), 0.02),
    "--sweep": (
        ("--sweep", "dataset.entries=1,2", "endpoint.streaming=true,false"),
        ({"dataset.entries": (1, 2)}, {"endpoint.streaming": (True, False)}),
    ),
    "--repetitions": (("--num-profile-runs", "3"), 3),
    "--trial-order": (
        ("--repetitions", "2", "--parameter-sweep-mode", "independent"),
        "grouped",
    ),
    "--parallel": (("--repetitions", "2", "--parallel", "auto"), "auto"),
    "--cooldown": (("--repetitions", "2", "--cooldown", "2s"), 2 * 10**9),
    "--search": (
        ("--search", "load.request_rate=1..64", "--slo", "request_latency:p99<1s"),
        Search.model_validate({"parameter": "load.request_rate", "from": 1, "to": 64}),
    ),
    "--scenario": (("--scenario", "offline", "--request-count", "9"), "offline"),
    "--workers-min": (("--workers-min", "2"), 2),
    "--workers-max": (("--workers-max", "3"), 3),
    "--record-processors": (("--record-processors", "2"), 2),
    "--layout": (("--layout", "per-service"), "per-service"),
    "--server-metrics": (
        ("--server-metrics", "replica-1:8000", "https://replica-2/stats/metrics"),
        ("http://replica-1:8000/metrics", "https://replica-2/stats/metrics"),
    ),
    "--gpu-telemetry": (
        ("--gpu-telemetry", "node-1:9400/"),
        ("http://node-1:9400/metrics",),
    ),
    "--no-server-metrics": (("--no-server-metrics",), False),
    "--no-gpu-telemetry": (("--no-gpu-telemetry",), False),
    "--metrics-interval": (("--metrics-interval", "500ms"), 500_000_000),
    "--artifact-dir": (("--artifact-dir", "out"), "out"),
    "--name": (("--name", "night-run"), "night-run"),
    "--slice-duration": (("--slice-duration", "10s"), 10 * 10**9),
    "--mlflow-tracking-uri": (("--mlflow-tracking-uri", "http://m:5000"), "http://m:5000"),
    "--mlflow-experiment": ((*MLFLOW, "--mlflow-experiment", "nightly"), "nightly"),
    "--mlflow-run-name": ((*MLFLOW, "--mlflow-run-name", "a run"), "a run"),
    "--mlflow-tag": (
        (*MLFLOW, "--mlflow-tag", "team:perf", "--mlflow-tag", "url:http://x"),
        {"team": "perf", "url": "http://x"},
    ),
    "--mlflow-parent-run-id": ((*MLFLOW, "--mlflow-parent-run-id", "ab12"), "ab12"),
    "--mlflow-artifact-glob": (
        (*MLFLOW, "--mlflow-artifact-glob", "*.json", "*.parquet"),
        ("*.json", "*.parquet"),
    ),
    "--wandb-project": (("--wandb-project", "bench"), "bench"),
    "--wandb-entity": ((*WANDB, "--wandb-entity", "team"), "team"),
    "--wandb-run-name": ((*WANDB, "--wandb-run-name", "a run"), "a run"),
    "--wandb-tag": ((*WANDB, "--wandb-tag", "a", "--wandb-tag", "b"), ("a", "b")),
    "--export-http-trace": (("--export-http-trace",), True),
    "--s3-url": (("--s3-url", "s3://bucket/runs"), "s3://bucket/runs"),
    "--s3-endpoint-url": (
        ("--s3-url", "s3://bucket", "--s3-endpoint-url", "http://minio:9000"),
        "http://minio:9000",
    ),
    "--s3-region": (("--s3-url", "s3://bucket", "--s3-region", "eu-north-1"), "eu-north-1"),
}


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_what_a_flag_says_is_in_the_config(flag: Any) -> None:
    arguments, expected = VALUES[flag.name]
    # The last of a flag given twice wins, so the target's may be there already. Addresses add up.
    given = CLOSED[2:] if flag.key == "endpoint.url" else CLOSED
    assert attrgetter(flag.key)(config(*given, *arguments)) == expected


def test_an_address_that_is_given_again_is_asked_in_turn() -> None:
    endpoint = config(*CLOSED, "-u", "b:2", "--url", "http://c:3/x").endpoint
    assert (endpoint.url, endpoint.urls) == ("http://h:1", ("http://b:2", "http://c:3/x"))
    assert endpoint.all_urls == ("http://h:1", "http://b:2", "http://c:3/x")
    assert "one of the addresses is given twice" in refusal(*CLOSED, "-u", "h:1")
    assert "expected a port from 1 to 65,535" in refusal_of_checks(*CLOSED, "-u", "h:99999")


def refusal_of_checks(*arguments: str) -> str:
    return "\n".join(problem.text for problem in config_problems(config(*arguments)))


def test_a_template_of_aiperf_is_among_the_extra_inputs(tmp_path: Path) -> None:
    file = tmp_path / "body.json"
    file.write_text('{"q": {{ text|tojson }}}')
    given = ("--endpoint-type", "template", "--extra-inputs", f"payload_template:{file}")
    endpoint = config(*CLOSED, *given, "response_field:a.b", "temperature:0").endpoint
    assert endpoint.template == file.read_text()
    assert endpoint.response_field == "a.b"
    assert endpoint.extra_inputs == {"temperature": 0}
    text = 'payload_template:{"q": {{ text|tojson }}}'
    inline = config(*CLOSED, "--endpoint-type", "template", "--extra-inputs", text)
    assert inline.endpoint.template == '{"q": {{ text|tojson }}}'


@pytest.mark.parametrize("text", ["256,128", "256:60", "a,b:1", "256,128:60;", "1|,2:3"])
def test_a_mixture_that_is_none_is_refused(text: str) -> None:
    assert "expected `ISL,OSL:WEIGHT`" in refusal(*CLOSED, "--seq-dist", text)


def test_a_size_of_pictures_asks_for_one() -> None:
    dataset = config(*CLOSED, "--image-width-mean", "64", "--audio-length-mean", "3").dataset
    assert (dataset.images.number, dataset.sounds.number) == (1, 1)


def test_noise_is_a_source_of_pictures_and_those_of_aiperf_are_not_here() -> None:
    images = config(*CLOSED, "--image-source", "noise", "--image-width-mean", "64").dataset.images
    assert (images.folder, images.number) == (None, 1)
    assert "give a folder" in refusal(*CLOSED, "--image-source", "assets")


def test_a_synthetic_request_of_a_transcription_is_one_sound() -> None:
    wanted = (*CLOSED, "--endpoint-type", "audio_transcription")
    assert config(*wanted).dataset.sounds.number == 1
    assert config(*wanted, "--audio-length-mean", "3").dataset.sounds.seconds.mean == 3
    assert config(*wanted, "--input-file", "a.jsonl").dataset.sounds.number == 0
    assert "is one sound; set 1" in refusal(*wanted, "--audio-batch-size", "2")
    assert "is for texts" in refusal(*wanted, "--isl", "100")


def test_a_template_that_is_no_file_is_refused() -> None:
    text = refusal(*CLOSED, "--endpoint-type", "template", "--endpoint-template", "nowhere.json")
    assert "--endpoint-template: 'nowhere.json': neither a template" in text


def test_without_an_end_a_closed_loop_sends_ten_requests_for_each_user() -> None:
    made = draft(*CLOSED)
    assert made.parse().load.requests == 20
    assert made.notices == [
        "neither --request-count nor --benchmark-duration: 20 requests (10 for each of 2 users)"
    ]


@pytest.mark.parametrize(
    "flags",
    [REPLAY, ("--stages", "5:2s"), ("--rate-series", str(RATES))],
    ids=lambda flags: flags[0],
)
def test_a_load_with_times_of_its_own_ends_with_them(flags: tuple[str, ...]) -> None:
    made = draft(*TARGET, *flags)
    load = made.parse().load
    assert (load.requests, load.duration, made.notices) == (None, None, [])


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("0,1\n5", "{file}:2: '5': expected SECONDS,RATE such as 60,12.5"),
        ("0,1\n5,x", "{file}:2: '5,x': expected SECONDS,RATE such as 60,12.5"),
        ("1,1\n5,2", "expected points in the order of their times, the first at 0s"),
        ("0,1\n5,2\n4,2", "expected points in the order of their times, the first at 0s"),
        ("0,0\n5,0", "every rate is 0; nothing would be sent"),
    ],
)
def test_a_bad_file_of_rates_is_refused_in_one_line(
    tmp_path: Path, content: str, line: str
) -> None:
    file = tmp_path / "rates.csv"
    file.write_text(content)
    with pytest.raises(ConfigError) as raised:
        draft(*TARGET, "--rate-series", str(file)).parse()
    assert str(raised.value) == f"--rate-series: {line.format(file=file)}"


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            (*REPLAY, "--request-rate", "5"),
            "--request-rate and --fixed-schedule both say when requests are sent; give one of them",
        ),
        (
            (*REPLAY, "--ramp-duration", "5"),
            "--ramp-duration and --fixed-schedule both say when requests are sent; give one of "
            "them",
        ),
        (
            (*REPLAY, "--fixed-schedule-auto-offset", "--fixed-schedule-start-offset", "0"),
            "--fixed-schedule-auto-offset and --fixed-schedule-start-offset both say when the "
            "schedule starts; give one of them",
        ),
        (
            (*REPLAY, "--fixed-schedule-start-offset", "9", "--fixed-schedule-end-offset", "8"),
            "--fixed-schedule-end-offset 8ms is before --fixed-schedule-start-offset 9ms",
        ),
        (
            (*REPLAY, "--fixed-schedule-end-offset", "-8"),
            '--fixed-schedule-end-offset: \'-8ms\': expected a duration such as "250ms", "30s" or '
            '"5m"',
        ),
        (
            (*REPLAY, "--warmup-request-count", "5", "--warmup-ramp-duration", "2s"),
            "--warmup-ramp-duration needs --warmup-request-rate: without one the warmup follows "
            "--fixed-schedule too",
        ),
        ((*REPLAY, "--replay-speedup", "0"), "--replay-speedup: '0': expected a number above 0"),
        (
            ("--concurrency", "1", "--replay-speedup", "2"),
            "--replay-speedup needs --fixed-schedule",
        ),
        (
            ("--stages", "5:2s", "--request-rate", "9"),
            "--request-rate and --stages both say when requests are sent; give one of them",
        ),
        (("--stages", "5"), "--stages: '5': expected RATE:TIME such as 10:30s"),
        (
            ("--fixed-schedule",),
            "--fixed-schedule needs the times of a trace, and --custom-dataset-type is synthetic; "
            "expected mooncake_trace, bailian_trace, burst_gpt_trace, azure_trace",
        ),
        (
            (*REPLAY, "--dataset-order", "shuffled"),
            "--dataset-order shuffled: --fixed-schedule sends the rows in the order of their "
            "times; leave it out",
        ),
    ],
)
def test_flags_that_contradict_a_replay_are_refused_in_one_line(
    flags: tuple[str, ...], line: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        draft(*TARGET, *flags).parse()
    assert str(raised.value) == line


def test_without_an_end_an_open_loop_sends_ten_seconds_worth() -> None:
    made = draft(*TARGET, "--request-rate", "2.55")
    assert made.parse().load.requests == 26
    assert "(10 s at 2.55 a second)" in made.notices[0]


@pytest.mark.parametrize("end", [("--request-count", "3"), ("--benchmark-duration", "3s")])
def test_with_an_end_nothing_is_added(end: tuple[str, str]) -> None:
    made = draft(*CLOSED, *end)
    load = made.parse().load
    assert (load.requests, load.duration) in ((3, None), (None, 3 * 10**9))
    assert made.notices == []


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


def test_without_an_end_trials_of_a_varied_load_last_equally_long() -> None:
    made = draft(*TARGET, "--request-rate", "10,20")
    assert made.parse().load.duration == 10 * 10**9
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


def test_a_flag_for_a_key_that_a_file_sets_for_each_trial_is_refused(tmp_path: Path) -> None:
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
def test_an_experiment_of_a_file_that_is_none_is_refused_whatever_flags_say(
    flags: tuple[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "c.yaml"
    start = "endpoint: {url: 'http://h', model: m}\nload: {requests: 9}\nexperiment: "
    for written in ("3", "{search: {parameters: 3}, zip: [[1]], product: {1: [2]}, template: 4}"):
        path.write_text(start + written)
        assert f"{path}: " in refusal("--config", str(path), *flags)


def test_a_file_is_single_turn_unless_its_kind_is_said() -> None:
    assert config(*CLOSED, "--input-file", "x").dataset.kind == "single_turn"
    made = config(*CLOSED, "--input-file", "x", "--custom-dataset-type", "sharegpt")
    assert made.dataset.kind == "sharegpt"
    assert config(*CLOSED, "--public-dataset", "sharegpt").dataset.kind == "sharegpt"


def test_a_spread_of_lengths_is_around_the_usual_mean() -> None:
    lengths = config(*CLOSED, "--isl-stddev", "10").dataset.input_tokens
    assert (lengths.mean, lengths.stddev) == (550.0, 10.0)


def test_flags_override_a_file_key_by_key(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    base = parse_config(
        {
            "endpoint": {"url": "http://h", "model": "m", "headers": {"A": "1"}},
            "load": {"concurrency": 5, "requests": 50},
        },
        "",
    )
    save_config(base, path)
    made = config("--config", str(path), "--concurrency", "6", "--header", "B:2", "--no-streaming")
    assert made.load.concurrency == 6
    assert made.load.requests == 50
    assert made.endpoint.headers == {"A": "1", "B": "2"}
    assert config("--config", str(path)) == base
    assert config("--config", str(path), "--input-file", "x").dataset.kind == "single_turn"


def test_a_mistake_in_a_file_is_named_by_key_and_one_in_a_flag_by_flag(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("endpoint: {url: 'http://h', model: m}\nload: {requests: 0}\n")
    assert refusal("--config", str(path), "--concurrency", "x").splitlines() == [
        f"{path}: 2 problems",
        "  --concurrency: 'x': expected a whole number",
        "  load.requests: 0: expected a number above 0",
    ]


def test_a_file_with_something_else_than_keys_is_refused_whatever_flags_say(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("endpoint: 3\nload: {concurrency: 1, requests: 1}\n")
    message = refusal("--config", str(path), "--model", "m")
    assert message == f"{path}: endpoint: 3: expected keys with values"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--header", "no colon"), "--header: 'no colon': expected `Name: value`"),
        (
            ("--extra-inputs", "x"),
            "--extra-inputs: 'x': expected `key:value` or a JSON object",
        ),
        (("--extra-inputs", "{x"), "--extra-inputs: '{x': not valid JSON"),
        (
            ("--slo", "time_to_first_token"),
            "--slo: 'time_to_first_token': expected a limit such as time_to_first_token:p99<500ms",
        ),
        (
            ("--slo", "time_to_first_token:p98<1"),
            "--slo (slo.objectives.0.stat): 'p98': expected avg, min, max, p50, p75, p90, p95 or "
            "p99; did you mean p99?",
        ),
        (
            ("--goodput", "x"),
            "--goodput: 'x': expected a limit such as time_to_first_token:500ms",
        ),
        (("--osl-stddev", "3"), "--osl: must be given"),
        (("--burstiness", "2"), "--burstiness 2 needs --arrival-pattern gamma, not poisson"),
        (("--streaming", "--endpoint-type", "embeddings"), "the embeddings API does not stream"),
        (("--concurency", "3"), "--concurency is not a flag; did you mean --concurrency?"),
        (("--concurrency",), "--concurrency: needs a value; see aiperf-svc profile --help"),
        (("extra",), "'extra' belongs to no flag"),
        (("--concurrency", "1,,2"), "--concurrency: '1,,2': expected values with commas between"),
        (("--concurrency", "0,1"), "--concurrency: 0: expected a number above 0"),
        (
            ("--sweep", "load.concurency=1,2"),
            "--sweep: load.concurency: no key of the config; did you mean load.concurrency?",
        ),
        (("--sweep", "load.concurrency"), "--sweep: 'load.concurrency': expected KEY=VALUES"),
        (("--search", "load.concurrency=1"), "--search: 'load.concurrency=1': expected KEY=FROM"),
        (("--search", "random_seed=9..1"), "--search: from 9 is not below to 1"),
        (("--search", "load.concurency=1..9"), "--search: load.concurency: no key of the config"),
        (
            ("--sweep", "load.concurrency=1,2"),
            "--sweep: load.concurrency is also given by --concurrency; leave out one of them",
        ),
        (
            ("--search", "load.concurrency=1..9"),
            "--search: load.concurrency is also given by --concurrency; leave out one of them",
        ),
        (("--scenario", "serve"), "--scenario: 'serve': expected server, interactive"),
        (("--repetitions", "0"), "--repetitions: '0': expected a number above 0"),
    ],
)
def test_a_wrong_flag_is_refused_by_its_name(arguments: tuple[str, ...], message: str) -> None:
    assert message in refusal(*CLOSED, *arguments)


def test_all_mistakes_of_flags_are_told_at_once() -> None:
    message = refusal("--url", "ftp://h", "--concurrency", "0", "--slo", "?", "--name", "No Name")
    assert message.startswith("5 problems\n")
    for name in ("--url", "--model", "--concurrency", "--slo", "--name"):
        assert f"\n  {name}: " in message


def test_aiperfs_words_for_displays_are_known() -> None:
    assert DISPLAYS["dashboard"] == "rich"
    assert DISPLAYS["simple"] == "plain"


def test_the_documented_flags_are_the_tables(
    assert_printed: Callable[[Path, str, str], None],
) -> None:
    path = Path(__file__).parents[3] / "docs" / "flags.md"
    mark = "<!-- Everything below is printed from aiperf_svc/cli/flags.py. -->\n"
    assert_printed(path, mark, flag_docs.tables())


@pytest.mark.parametrize("wrap", ['{{"points": {}}}', "{}"])
def test_a_rate_series_may_be_aiperfs_json(tmp_path: Path, wrap: str) -> None:
    file = tmp_path / "rates.json"
    file.write_text(wrap.format('[{"time_s": 0, "qps": 5}, {"time_s": 2.5, "qps": 20.5}]'))
    made = config(*TARGET, "--rate-series", str(file)).load.rate_series
    assert made == (RatePoint(at=0, rate=5), RatePoint(at="2.5s", rate=20.5))  # type: ignore[arg-type]
    file.write_text('[{"seconds": 1}]')
    assert 'expected [{"time_s": 0, "qps": 10}, ...]' in refusal(
        *TARGET, "--rate-series", str(file)
    )
