"""The config value that each flag sets."""

import shlex
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.cli.checks import config_problems
from aiperf_svc.cli.flags import FLAGS
from aiperf_svc.config.hooks import ResetKvCache, ServerProfiler
from aiperf_svc.config.load_shapes import Agentic, Bursts, RatePoint, Stage
from aiperf_svc.config.prompts import Length, Shape
from aiperf_svc.config.search import Search
from aiperf_svc.config.slo import Objective
from tests.support.flag_configs import CLOSED, RATES, REPLAY, TRACE, USERS, config, refusal

RAW = "--endpoint-type raw --input-file x.jsonl"
S = 10**9
AGENTS = "--input-file x.jsonl --custom-dataset-type weka_trace"
RANKED = "--endpoint-type hf_tei_rankings"
MLFLOW = "--mlflow-tracking-uri http://m:5000"
WANDB = "--wandb-project bench"
WARM = "--warmup-request-count 5"
PREFILL = "--streaming --prefill-concurrency 2"
REPLAYED, TRACED, BY_USERS = map(shlex.join, (REPLAY, TRACE, USERS))
VALUES: dict[str, tuple[str, Any]] = {
    "--url": ("localhost:8000", "http://localhost:8000"),
    "--model": ("a/b", "a/b"),
    "--endpoint-type": ("completions", "completions"),
    "--endpoint": ("/v2/chat", "/v2/chat"),
    "--connections": ("per-request", "per-request"),
    "--endpoint-template": (
        "--endpoint-type template --endpoint-template nv-embedqa",
        '{"text": {{ texts|tojson }}}',
    ),
    "--response-field": (f"{RAW} --response-field 'data[0].text'", "data[0].text"),
    "--output-tokens-field": (f"{RAW} --output-tokens-field details.tokens", "details.tokens"),
    "--streaming": ("--streaming", True),
    "--header": ("'A: b:c' -H D:e", {"A": "b:c", "D": "e"}),
    "--session-header": ("X-A,X-B", ("X-A", "X-B")),
    "--session-response-header": ("x-s", "x-s"),
    "--parent-session-header": ("X-P", ("X-P",)),
    "--session-body": ("--session-body user --session-body a.b", ("user", "a.b")),
    "--api-key-header": ("api-key", "api-key"),
    "--extra-inputs": (
        """--extra-inputs temperature:0.7 user:me --extra-inputs '{"stop": null}'""",
        {"temperature": 0.7, "user": "me", "stop": None},
    ),
    "--request-timeout": ("90", 90 * 10**9),
    "--wait-for-server": ("10m", 600 * 10**9),
    "--tls-ca-file": ("ca.pem", "ca.pem"),
    "--tls-verify": ("--no-tls-verify", False),
    "--tls-server-name": ("api.test", "api.test"),
    "--concurrency": ("7", 7),
    "--request-rate": ("2.5", 2.5),
    "--arrival-pattern": ("--request-rate 1 --arrival-pattern constant", "constant"),
    "--burstiness": ("--request-rate 1 --arrival-pattern gamma --burstiness 0.5", 0.5),
    "--stages": (
        "5:2s 9:1m",
        (
            Stage.model_validate({"rate": 5, "duration": "2s"}),
            Stage.model_validate({"rate": 9, "duration": "1m"}),
        ),
    ),
    "--rate-series": (
        f"--rate-series {RATES}",
        (
            RatePoint(at=0, rate=10),
            RatePoint.model_validate({"at": "30.5s", "rate": 20}),
            RatePoint.model_validate({"at": "60s", "rate": 0}),
        ),
    ),
    "--fixed-schedule": (REPLAYED, True),
    "--fixed-schedule-auto-offset": (f"{REPLAYED} --no-fixed-schedule-auto-offset", False),
    "--fixed-schedule-start-offset": (
        f"{REPLAYED} --fixed-schedule-start-offset 1500",
        1_500_000_000,
    ),
    "--fixed-schedule-end-offset": (f"{REPLAYED} --fixed-schedule-end-offset 2m", 120 * 10**9),
    "--replay-speedup": (f"{REPLAYED} --replay-speedup 2.5", 2.5),
    "--request-count": ("9", 9),
    "--benchmark-duration": ("--duration 1m", 60 * 10**9),
    "--quality-file": ("q.jsonl", "q.jsonl"),
    "--quality-tasks": ("gsm8k,mmlu", ("gsm8k", "mmlu")),
    "--quality-min-score": ("--quality-file q.jsonl --quality-min-score 90", 0.9),
    "--quality-logprobs": ("--quality-file q.jsonl --quality-logprobs", True),
    "--quality-repeats": ("--quality-file q.jsonl --quality-repeats 3", 3),
    "--steady-state-skip-start": ("10", 0.1),
    "--steady-state-skip-end": ("5%", 0.05),
    "--steady-state-concurrency": ("95", 0.95),
    "--prefill-concurrency": (PREFILL, 2),
    "--prefill-concurrency-ramp-duration": (
        f"{PREFILL} --prefill-concurrency-ramp-duration 30",
        30 * 10**9,
    ),
    "--bursts": ("--bursts 200:5s/1m --duration 5m", Bursts(rate=200, length="5s", every="1m")),  # type: ignore[arg-type]
    "--user-centric-rate": (BY_USERS, 7.5),
    "--num-users": (BY_USERS, 30),
    "--request-cancellation-rate": ("10", 0.1),
    "--request-cancellation-delay": (
        "--request-cancellation-rate 5% --request-cancellation-delay 500ms",
        500_000_000,
    ),
    "--min-duration": ("1m", 60 * 10**9),
    "--grace-period": ("250ms", 250_000_000),
    "--ramp-duration": ("3s", 3 * 10**9),
    "--warmup-request-count": ("5", 5),
    "--num-warmup-sessions": ("6", 6),
    "--warmup-concurrency": (f"{WARM} --warmup-concurrency 2", 2),
    "--warmup-request-rate": (f"{WARM} --warmup-request-rate 4.5", 4.5),
    "--warmup-arrival-pattern": (
        f"{WARM} --warmup-request-rate 4 --warmup-arrival-pattern constant",
        "constant",
    ),
    "--warmup-ramp-duration": (f"{WARM} --warmup-concurrency-ramp-duration 2", 2 * 10**9),
    "--warmup-prefill-concurrency": (f"{WARM} --streaming --warmup-prefill-concurrency 1", 1),
    "--warmup-prefill-concurrency-ramp-duration": (
        f"{WARM} {PREFILL} --warmup-prefill-concurrency-ramp-duration 3",
        3 * 10**9,
    ),
    "--warmup-duration": ("5", 5 * 10**9),
    "--warmup-grace-period": ("--warmup-duration 5 --warmup-grace-period 1s", 10**9),
    "--isl": ("100", 100.0),
    "--isl-stddev": ("10", 10.0),
    "--seq-dist": (
        "'256,128:60;1024|100,512|5:40'",
        (
            Shape(weight=60, input_tokens=Length(mean=256), output_tokens=Length(mean=128)),
            Shape(
                weight=40,
                input_tokens=Length(mean=1024, stddev=100),
                output_tokens=Length(mean=512, stddev=5),
            ),
        ),
    ),
    "--batch-size": ("--endpoint-type embeddings -b 4", 4),
    "--shared-system-prompt-length": ("100", 100),
    "--system-prompt": ("'Be brief.'", "Be brief."),
    "--user-context-prompt-length": ("40", 40),
    "--cache-bust": ("system_prefix", "system_prefix"),
    "--num-prefix-prompts": ("--num-prefix-prompts 5 --prefix-prompt-length 64", 5),
    "--url-strategy": ("-u b:2 --url-strategy least-in-flight", "least_in_flight"),
    "--model-selection-strategy": (
        "-m a,b --model-weights 3,1 --model-selection-strategy weighted",
        "random",
    ),
    "--model-weights": ("-m a,b --model-weights 3,1", (3, 1)),
    "--proxy": ("proxy:3128", "http://proxy:3128"),
    "--http2": ("--http2", True),
    "--reset-kv-cache": ("--reset-kv-cache", ResetKvCache()),
    "--reset-kv-cache-path": (
        "--reset-kv-cache --reset-kv-cache-path /flush_cache",
        "/flush_cache",
    ),
    "--reset-kv-cache-timeout": ("--reset-kv-cache-timeout-seconds 30", 30 * 10**9),
    "--server-profiler": ("--server-profiler", ServerProfiler()),
    "--server-profiler-start-path": ("/on", "/on"),
    "--server-profiler-stop-path": ("/off", "/off"),
    "--server-profiler-timeout": ("1m", 60 * 10**9),
    "--prefix-prompt-length": ("--num-prefix-prompts 5 --prefix-prompt-length 64", 64),
    "--conversation-turn-mean": ("3", 3.0),
    "--conversation-turn-stddev": ("1", 1.0),
    "--conversation-turn-delay-mean": ("--session-turn-delay-mean 500", 500.0),
    "--conversation-turn-delay-stddev": ("50", 50.0),
    "--history": ("--input-file f --custom-dataset-type multi_turn --history recorded", "recorded"),
    "--conversation-turn-delay-ratio": ("--session-delay-ratio 0.5", 0.5),
    "--image-batch-size": ("2", 2),
    "--image-width-mean": ("64", 64.0),
    "--image-width-stddev": ("8", 8.0),
    "--image-height-mean": ("64", 64.0),
    "--image-height-stddev": ("8", 8.0),
    "--audio-batch-size": ("2", 2),
    "--audio-length-mean": ("3", 3.0),
    "--audio-length-stddev": ("0.5", 0.5),
    "--audio-sample-rates": ("44.1 16,8", (44_100, 16_000, 8_000)),
    "--audio-depths": ("16 24", (16, 24)),
    "--audio-format": ("mp3", "mp3"),
    "--audio-folder": ("sounds", "sounds"),
    "--audio-sampling": ("--audio-folder sounds --audio-sampling sequential", "sequential"),
    "--image-format": ("jpeg", "jpeg"),
    "--image-folder": ("pictures", "pictures"),
    "--image-sampling": (
        "--image-source pictures --image-source-sampling shuffle-cycle",
        "shuffled",
    ),
    "--audio-num-channels": ("2", 2),
    "--rankings-passages-mean": (f"{RANKED} --rankings-passages-mean 5", 5.0),
    "--rankings-passages-stddev": (f"{RANKED} --rankings-passages-stddev 1", 1.0),
    "--rankings-passages-prompt-token-mean": (
        f"{RANKED} --rankings-passages-prompt-token-mean 32",
        32.0,
    ),
    "--rankings-passages-prompt-token-stddev": (
        f"{RANKED} --rankings-passages-prompt-token-stddev 8",
        8.0,
    ),
    "--osl": ("50", 50.0),
    "--force-output-length": ("--osl 50 --no-force-output-length", False),
    "--osl-stddev": ("--osl 50 --osl-stddev 5", 5.0),
    "--num-dataset-entries": ("11", 11),
    "--input-file": ("x.jsonl", "x.jsonl"),
    "--custom-dataset-type": (
        "--input-file x.jsonl --custom-dataset-type multi_turn",
        "multi_turn",
    ),
    "--isl-block-size": (f"{TRACED} --isl-block-size 64", 64),
    "--cache-bust-per": ("--cache-bust system_prefix --cache-bust-per request", "request"),
    "--agentic": (f"{AGENTS} --agentic", Agentic()),
    "--trajectory-start-min-ratio": (f"{AGENTS} --trajectory-start-min-ratio 0.1", 0.1),
    "--trajectory-start-max-ratio": (f"{AGENTS} --trajectory-start-max-ratio 0.9", 0.9),
    "--agentic-warmup-requests": (f"{AGENTS} --agentic-warmup-requests 10", 10),
    "--agentic-warmup-grace-period": (f"{AGENTS} --agentic-warmup-grace-period 60", 60 * S),
    "--burst-phase-starts": (f"{AGENTS} --burst-phase-starts", True),
    "--system-idle-gap-cap-seconds": (
        f"{AGENTS} --workers-max 1 --system-idle-gap-cap-seconds 10",
        10 * S,
    ),
    "--trace-idle-gap-cap-seconds": (f"{AGENTS} --trace-idle-gap-cap-seconds 300", 300 * S),
    "--max-context-length": (f"{AGENTS} --max-context-length 64", 64),
    "--use-think-time-only": (f"{AGENTS} --use-think-time-only", True),
    "--inter-turn-delay-cap-seconds": (f"{AGENTS} --inter-turn-delay-cap-seconds 5", 5 * S),
    "--synthesis-max-isl": (f"{TRACED} --synthesis-max-isl 64", 64),
    "--synthesis-max-osl": (f"{TRACED} --synthesis-max-osl 64", 64),
    "--public-dataset": ("sharegpt", "sharegpt"),
    "--dataset-order": ("--dataset-sampling-strategy shuffle", "shuffled"),
    "--tokenizer": ("gpt2", "gpt2"),
    "--tokenizer-revision": ("abc", "abc"),
    "--prompt-token-ids": ("--prompt-token-ids --endpoint-type completions --tokenizer t", True),
    "--use-server-token-count": ("--use-server-token-count", True),
    "--apply-chat-template": ("--tokenizer gpt2 --apply-chat-template", True),
    "--random-seed": ("3", 3),
    "--prompt-variant": ("2", 2),
    "--slo": (
        "'time_to_first_token:p99<500ms' 'request_throughput >= 10'",
        (
            Objective(metric="time_to_first_token", stat="p99", max="500ms"),
            Objective(metric="request_throughput", min="10"),
        ),
    ),
    "--goodput": (
        "'time_to_first_token:500ms request_latency:2s'",
        {"time_to_first_token": "500ms", "request_latency": "2s"},
    ),
    "--goodput-tier": (
        "'gold=time_to_first_token:200ms inter_token_latency:20' "
        "--goodput-tier silver=time_to_first_token:1s",
        {
            "gold": {"time_to_first_token": "200ms", "inter_token_latency": "20"},
            "silver": {"time_to_first_token": "1s"},
        },
    ),
    "--error-budget": ("2%", 0.02),
    "--sweep": (
        "dataset.entries=1,2 endpoint.streaming=true,false",
        ({"dataset.entries": (1, 2)}, {"endpoint.streaming": (True, False)}),
    ),
    "--repetitions": ("--num-profile-runs 3", 3),
    "--trial-order": ("--repetitions 2 --parameter-sweep-mode independent", "grouped"),
    "--parallel": ("--repetitions 2 --parallel auto", "auto"),
    "--cooldown": ("--repetitions 2 --cooldown 2s", 2 * 10**9),
    "--search": (
        "--search load.request_rate=1..64 --slo 'request_latency:p99<1s'",
        Search.model_validate({"parameter": "load.request_rate", "from": 1, "to": 64}),
    ),
    "--scenario": ("--scenario offline --request-count 9", "offline"),
    "--preset": ("--preset mlperf-endpoints --preset-max-concurrency 64", "mlperf-endpoints"),
    "--preset-max-concurrency": ("--preset mlperf-endpoints --preset-max-concurrency 64", 64),
    "--workers-min": ("2", 2),
    "--workers-max": ("3", 3),
    "--record-processors": ("2", 2),
    "--layout": ("per-service", "per-service"),
    "--server-metrics": (
        "replica-1:8000 https://replica-2/stats/metrics",
        ("http://replica-1:8000/metrics", "https://replica-2/stats/metrics"),
    ),
    "--gpu-telemetry": ("node-1:9400/", ("http://node-1:9400/metrics",)),
    "--gpus": ("8", 8),
    "--price-per-gpu-hour": ("2.49", 2.49),
    "--kw-per-gpu": ("1.73", 1.73),
    "--nvml": ("0,1", ("0", "1")),
    "--no-server-metrics": ("--no-server-metrics", False),
    "--no-gpu-telemetry": ("--no-gpu-telemetry", False),
    "--metrics-key-env": (
        "--server-metrics replica-1:8000 --metrics-key-env PAGES_KEY",
        "PAGES_KEY",
    ),
    "--metrics-interval": ("500ms", 500_000_000),
    "--artifact-dir": ("out", "out"),
    "--name": ("night-run", "night-run"),
    "--slice-duration": ("10s", 10 * 10**9),
    "--mlflow-tracking-uri": ("http://m:5000", "http://m:5000"),
    "--mlflow-experiment": (f"{MLFLOW} --mlflow-experiment nightly", "nightly"),
    "--mlflow-run-name": (f"{MLFLOW} --mlflow-run-name 'a run'", "a run"),
    "--mlflow-tag": (
        f"{MLFLOW} --mlflow-tag team:perf --mlflow-tag url:http://x",
        {"team": "perf", "url": "http://x"},
    ),
    "--mlflow-parent-run-id": (f"{MLFLOW} --mlflow-parent-run-id ab12", "ab12"),
    "--mlflow-artifact-glob": (
        f"{MLFLOW} --mlflow-artifact-glob '*.json' '*.parquet'",
        ("*.json", "*.parquet"),
    ),
    "--wandb-project": ("bench", "bench"),
    "--wandb-entity": (f"{WANDB} --wandb-entity team", "team"),
    "--wandb-run-name": (f"{WANDB} --wandb-run-name 'a run'", "a run"),
    "--wandb-tag": (f"{WANDB} --wandb-tag a --wandb-tag b", ("a", "b")),
    "--export-http-trace": ("--export-http-trace", True),
    "--s3-url": ("s3://bucket/runs", "s3://bucket/runs"),
    "--s3-endpoint-url": (
        "--s3-url s3://bucket --s3-endpoint-url http://minio:9000",
        "http://minio:9000",
    ),
    "--s3-region": ("--s3-url s3://bucket --s3-region eu-north-1", "eu-north-1"),
}
"""Arguments of a flag, or a command line that contains it, and its value in the config."""


def test_value_of_each_flag_is_in_the_config() -> None:
    assert VALUES.keys() == {flag.name for flag in FLAGS}
    for flag in FLAGS:
        words, expected = VALUES[flag.name]
        arguments = shlex.split(words if words.startswith("-") else f"{flag.name} {words}")
        # The last of a repeated flag wins, so the target may be set already. Addresses add up.
        common = CLOSED[2:] if flag.key == "endpoint.url" else CLOSED
        assert attrgetter(flag.key)(config(*common, *arguments)) == expected, flag.name


def test_repeated_url_flag_uses_addresses_in_turn() -> None:
    endpoint = config(*CLOSED, "-u", "b:2", "--url", "http://c:3/x").endpoint
    assert (endpoint.url, endpoint.urls) == ("http://h:1", ("http://b:2", "http://c:3/x"))
    assert endpoint.all_urls == ("http://h:1", "http://b:2", "http://c:3/x")
    assert "'http://h:1' is given twice" in refusal(*CLOSED, "-u", "h:1")
    assert "expected a port from 1 to 65,535" in refusal_of_checks(*CLOSED, "-u", "h:99999")


def refusal_of_checks(*arguments: str) -> str:
    return "\n".join(problem.text for problem in config_problems(config(*arguments)))


def test_template_of_aiperf_is_among_the_extra_inputs(tmp_path: Path) -> None:
    file = tmp_path / "body.json"
    file.write_text('{"q": {{ text|tojson }}}')
    flags = ("--endpoint-type", "template", "--extra-inputs", f"payload_template:{file}")
    endpoint = config(*CLOSED, *flags, "response_field:a.b", "temperature:0").endpoint
    assert endpoint.template == file.read_text()
    assert endpoint.response_field == "a.b"
    assert endpoint.extra_inputs == {"temperature": 0}
    text = 'payload_template:{"q": {{ text|tojson }}}'
    inline = config(*CLOSED, "--endpoint-type", "template", "--extra-inputs", text)
    assert inline.endpoint.template == '{"q": {{ text|tojson }}}'


@pytest.mark.parametrize("text", ["256,128", "256:60", "a,b:1", "256,128:60;", "1|,2:3"])
def test_invalid_mixture_is_refused(text: str) -> None:
    assert "expected `ISL,OSL:WEIGHT`" in refusal(*CLOSED, "--seq-dist", text)


def test_media_size_implies_one_media_item() -> None:
    dataset = config(*CLOSED, "--image-width-mean", "64", "--audio-length-mean", "3").dataset
    assert (dataset.images.number, dataset.sounds.number) == (1, 1)


def test_noise_images_are_accepted_and_assets_refused() -> None:
    images = config(*CLOSED, "--image-source", "noise", "--image-width-mean", "64").dataset.images
    assert (images.folder, images.number) == (None, 1)
    assert "expected a folder" in refusal(*CLOSED, "--image-source", "assets")


def test_synthetic_request_of_a_transcription_is_one_sound() -> None:
    wanted = (*CLOSED, "--endpoint-type", "audio_transcription")
    assert config(*wanted).dataset.sounds.number == 1
    assert config(*wanted, "--audio-length-mean", "3").dataset.sounds.seconds.mean == 3
    assert config(*wanted, "--input-file", "a.jsonl").dataset.sounds.number == 0
    assert "is one sound; set 1" in refusal(*wanted, "--audio-batch-size", "2")
    assert "is for texts" in refusal(*wanted, "--isl", "100")


TURNS = "--input-file a.jsonl --custom-dataset-type multi_turn"
TREES = "--input-file a.jsonl --custom-dataset-type weka_trace"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (f"{TURNS} --image-batch-size 2", "--image-batch-size needs --custom-dataset-type"),
        (f"{TURNS} --session-turns-mean 2", "--session-turns-mean needs --custom-dataset-type"),
        (f"{TREES} --request-cancellation-rate 5", "--request-cancellation-rate is for"),
        ("--seq-dist 9,9:100 --isl 4", "--seq-dist has lengths of its own; leave out --isl and --"),
    ],
)
def test_sections_of_keys_are_named_by_flags(flags: str, expected: str) -> None:
    assert refusal(*CLOSED, *flags.split()).startswith(expected)


def test_missing_template_file_is_refused() -> None:
    text = refusal(*CLOSED, "--endpoint-type", "template", "--endpoint-template", "nowhere.json")
    assert "--endpoint-template: 'nowhere.json': neither a template" in text
