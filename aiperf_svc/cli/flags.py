"""Table of all flags of `profile`. Parser, help, config and docs are made from it.

A flag is another way to write one key of the config, and nothing else. Its value is checked where
the config's is, once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from aiperf_svc.cli import flag_values as values
from aiperf_svc.domain.endpoint_types import EndpointType, names_with


@dataclass(frozen=True)
class Flag:
    """Definition of one flag."""

    names: tuple[str, ...]
    """The first is what messages and docs call it; the others are what it is called elsewhere."""
    key: str
    """Dotted path in the config; empty for flags that are about this program, not the test."""
    text: str
    metavar: str = "N"
    kind: Literal["value", "switch", "off", "list", "again"] = "value"
    """A switch is true or, as `--no-…`, false; `off` only makes its key false; a list has several
    values and may be given several times; `again` has one value each time."""
    read: Callable[[Any], Any] | None = None
    """Converts the text to the key's value. Raises ValueError that says what is expected."""

    @property
    def name(self) -> str:
        """Name in messages."""
        return next(name for name in self.names if name.startswith("--"))

    @property
    def destination(self) -> str:
        """Its name among parsed arguments."""
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def takes_list(self) -> bool:
        """Whether several values, separated by commas, make a trial each: numbers and times do."""
        is_number = self.kind == "value" and self.metavar in ("N", DURATION, PERCENT)
        return is_number and not self.key.startswith("experiment.")


DURATION = "TIME"
PERCENT = "PERCENT"

TARGET = (
    Flag(("--url", "-u"), "endpoint.url",
        "address of the server, http://host:port, also with the path of the API or a part of it; "
        "http:// may be left out; again for more", "URL",
        kind="again", read=values.pages),
    Flag(("--url-strategy",), "endpoint.url_strategy",
        "with several addresses: round_robin (default); least_in_flight, the one with the fewest "
        "requests of a worker in flight; or per_user, the same one for a prompt or conversation "
        "each time that it is sent", "STRATEGY", read=values.word),
    Flag(("--model", "-m", "--model-names"), "endpoint.model",
        "model to ask for; several, separated by commas, take the prompts in turn", "NAME",
        read=values.names),
    Flag(("--model-selection-strategy",), "endpoint.model_selection",
        "with several models: round_robin (default), or random", "STRATEGY",
        read=values.model_selection),
    Flag(("--model-weights",), "endpoint.model_weights",
        "with several models: how often each is asked for, separated by commas: 3,1 (default: all "
        "alike)", "WEIGHTS", read=values.names),
    Flag(("--endpoint-type",), "endpoint.type",
        f"API to speak (default: {EndpointType.CHAT}): {names_with()}", "TYPE",
        read=values.word),
    Flag(("--endpoint", "--custom-endpoint"), "endpoint.path",
        "path of the API, when it is not the usual one", "PATH"),
    Flag(("--connections",), "endpoint.connections",
        "keep-alive (default), or per-request, for a server that closes connections that it said "
        "it would keep", "MODE"),
    Flag(("--endpoint-template",), "endpoint.template",
        "body of each request for --endpoint-type template: Jinja2, or a file that holds it; "
        "variables are text, texts, query, passages, model, max_tokens, stream", "TEMPLATE",
        read=values.template),
    Flag(("--response-field",), "endpoint.response_field",
        "where the output is in a response, as a JMESPath query, for template and raw (default: "
        "the usual places)", "QUERY"),
    Flag(("--output-tokens-field",), "endpoint.output_tokens_field",
        "where the number of output tokens is, likewise", "QUERY"),
    Flag(("--streaming",), "endpoint.streaming",
        "ask for the response token by token; needed for the time to the first token",
        kind="switch"),
    Flag(("--header", "-H"), "endpoint.headers",
        "header of every request, `Name: value`; again for more", "HEADER", "list",
        values.headers),
    Flag(("--api-key-header",), "endpoint.api_key_header",
        "header that carries --api-key: as a bearer token in Authorization (default; x-api-key for "
        "messages), bare in any other, such as api-key", "NAME"),
    Flag(("--extra-inputs",), "endpoint.extra_inputs",
        "member of every request's body, `key:value` or a JSON object; again for more", "INPUT",
        "list", values.extra_inputs),
    Flag(("--request-timeout", "--request-timeout-seconds"), "endpoint.request_timeout",
        "longest time for a request (default: 10m)", DURATION),
    Flag(("--wait-for-server", "--wait-for-model-timeout"), "endpoint.wait_for_server",
        "before the load, wait this long for a server that is still loading its model: /health, "
        "/v1/models, or one request (default: 0)", DURATION),
    Flag(("--proxy",), "endpoint.proxy",
        "HTTP proxy to go through, http://host:port; variables of the environment are not used",
        "URL", read=values.url),
    Flag(("--http2",), "endpoint.http2",
        "send requests over HTTP/2, one at a time on each connection", kind="switch"),
    Flag(("--reset-kv-cache",), "endpoint.reset_kv_cache",
        "before the load, empty the server's prefix cache", kind="switch", read=values.enabled),
    Flag(("--reset-kv-cache-path",), "endpoint.reset_kv_cache.path",
        "path of the request for that (default: /reset_prefix_cache, as vLLM has it; of SGLang "
        "/flush_cache)", "PATH"),
    Flag(("--reset-kv-cache-timeout", "--reset-kv-cache-timeout-seconds"),
        "endpoint.reset_kv_cache.timeout", "longest time for it (default: --request-timeout)",
        DURATION),
    Flag(("--server-profiler",), "endpoint.server_profiler",
        "start the server's profiler before the measurement, and stop it after", kind="switch",
        read=values.enabled),
    Flag(("--server-profiler-start-path",), "endpoint.server_profiler.start_path",
        "path of the request for that (default: /start_profile)", "PATH"),
    Flag(("--server-profiler-stop-path",), "endpoint.server_profiler.stop_path",
        "the same at the end (default: /stop_profile)", "PATH"),
    Flag(("--server-profiler-timeout", "--server-profiler-timeout-seconds"),
        "endpoint.server_profiler.timeout", "longest time for each (default: --request-timeout)",
        DURATION),
    Flag(("--tls-ca-file",), "endpoint.tls.ca_file",
        "PEM file of the authorities to trust for https, instead of the system's", "FILE"),
    Flag(("--tls-verify",), "endpoint.tls.verify",
        "check the server's certificate (default); --no-tls-verify accepts any", kind="switch"),
    Flag(("--tls-server-name",), "endpoint.tls.server_name",
        "name to expect in the certificate, when it is not the URL's host", "NAME"),
)  # fmt: skip

LOAD = (
    Flag(("--concurrency",), "load.concurrency",
        "closed loop: this many users, each sending when its last response has ended (default: 1, "
        "without another load); with --request-rate, the most requests at a time"),
    Flag(("--request-rate",), "load.request_rate",
        "open loop: requests, or conversations, a second, whatever the server does; inf: all "
        "requests at once, or with --concurrency the same as without a rate"),
    Flag(("--arrival-pattern", "--request-rate-mode"), "load.arrival.pattern",
        "spacing in open loop: constant, poisson (default) or gamma", "PATTERN"),
    Flag(("--burstiness", "--arrival-smoothness", "--vllm-burstiness"), "load.arrival.burstiness",
        "shape of gamma: 1 is Poisson, below 1 burstier, above 1 more regular"),
    Flag(("--stages",), "load.stages",
        "open loop: one rate after the other, `RATE:TIME` each: 10:30s 50:2m", "STAGE", "list",
        values.stages),
    Flag(("--rate-series", "--request-rate-series"), "load.rate_series",
        "open loop: a rate that changes linearly between the points of this CSV file with a line "
        "`SECONDS,RATE` for each, or of AIPerf's JSON", "FILE", read=values.rate_series),
    Flag(("--bursts",), "load.bursts",
        "open loop: a higher rate again and again, `RATE:LENGTH/EVERY`: 200:5s/1m; each period "
        "ends with its burst, and has --request-rate before it, or nothing", "BURSTS",
        read=values.bursts),
    Flag(("--user-centric-rate",), "load.user_centric.rate",
        "open loop: requests a second of --num-users users, each of whom takes a turn of a "
        "conversation every users / rate seconds"),
    Flag(("--num-users",), "load.user_centric.users", "users of --user-centric-rate"),
    Flag(("--fixed-schedule",), "load.fixed_schedule",
        "open loop: send each row of a trace at its own time, until the last row", kind="switch"),
    Flag(("--fixed-schedule-auto-offset",), "load.fixed_schedule_auto_offset",
        "send the first row at once (default without a start offset); "
        "--no-fixed-schedule-auto-offset sends it at its own time after the trace's time zero",
        kind="switch"),
    Flag(("--fixed-schedule-start-offset",), "load.fixed_schedule_start_offset",
        "start at this time of the trace; a plain number is milliseconds", "OFFSET",
        read=values.milliseconds),
    Flag(("--fixed-schedule-end-offset",), "load.fixed_schedule_end_offset",
        "leave out rows after this time of the trace; a plain number is milliseconds", "OFFSET",
        read=values.milliseconds),
    Flag(("--replay-speedup",), "load.replay_speedup",
        "replay the trace so many times as fast (default: 1)"),
    Flag(("--request-count", "--num-requests"), "load.requests",
        "stop after this many requests"),
    Flag(("--benchmark-duration", "--duration"), "load.duration",
        "stop after this time; with --request-count, whichever comes first", DURATION),
    Flag(("--grace-period", "--benchmark-grace-period"), "load.grace_period",
        "how long requests in flight may go on after that time (default: 30s); inf: as long as "
        "--request-timeout lets them", DURATION),
    Flag(("--ramp-duration", "--concurrency-ramp-duration", "--request-rate-ramp-duration"),
        "load.ramp", "grow concurrency or rate from zero over this time", DURATION),
    Flag(("--prefill-concurrency",), "load.prefill_concurrency",
        "most requests that wait for their first token at a time (default: no limit)"),
    Flag(("--prefill-concurrency-ramp-duration",), "load.prefill_ramp",
        "grow --prefill-concurrency from one over this time", DURATION),
    Flag(("--request-cancellation-rate",), "load.cancellation.rate",
        "per cent of the requests whose clients leave: they close the connection after the delay, "
        "if the response has not ended by then", PERCENT, read=values.percent),
    Flag(("--request-cancellation-delay",), "load.cancellation.delay",
        "time from the moment at which such a request is sent whole (default: 0s)", DURATION),
    Flag(("--warmup-request-count", "--num-warmup-requests"), "load.warmup.requests",
        "requests before the measurement, left out of the results"),
    Flag(("--num-warmup-sessions",), "load.warmup.conversations",
        "the same as a number of conversations"),
    Flag(("--warmup-duration",), "load.warmup.duration", "the same, by time", DURATION),
    Flag(("--warmup-concurrency",), "load.warmup.concurrency",
        "--concurrency of the warmup (default: the same)"),
    Flag(("--warmup-request-rate",), "load.warmup.request_rate",
        "--request-rate of the warmup, which is then an open loop (default: the same)"),
    Flag(("--warmup-arrival-pattern",), "load.warmup.arrival.pattern",
        "its spacing: constant, poisson or gamma (default: the same)", "PATTERN"),
    Flag(("--warmup-ramp-duration", "--warmup-concurrency-ramp-duration",
          "--warmup-request-rate-ramp-duration"),
        "load.warmup.ramp", "its ramp (default: none)", DURATION),
    Flag(("--warmup-prefill-concurrency",), "load.warmup.prefill_concurrency",
        "--prefill-concurrency of the warmup (default: the same)"),
    Flag(("--warmup-prefill-concurrency-ramp-duration",), "load.warmup.prefill_ramp",
        "the ramp of that (default: none)", DURATION),
    Flag(("--warmup-grace-period",), "load.warmup.grace_period",
        "the warmup's own grace period (default: 30s)", DURATION),
)  # fmt: skip

DATASET = (
    Flag(("--isl", "--synthetic-input-tokens-mean", "--prompt-input-tokens-mean",
          "--rankings-query-prompt-token-mean"),
        "dataset.input_tokens.mean",
        "tokens of a synthetic prompt, or of the query of a ranking (default: 550)"),
    Flag(("--isl-stddev", "--synthetic-input-tokens-stddev", "--prompt-input-tokens-stddev",
          "--rankings-query-prompt-token-stddev"),
        "dataset.input_tokens.stddev", "standard deviation of that (default: 0)"),
    Flag(("--seq-dist", "--sequence-distribution"), "dataset.mix",
        "mixture of lengths, `ISL,OSL:WEIGHT;ISL,OSL:WEIGHT`, each with an optional `|STDDEV`",
        "MIX", read=values.mix),
    Flag(("--batch-size", "--prompt-batch-size", "--batch-size-text", "-b"), "dataset.batch_size",
        "texts of a request, for embeddings and completions (default: 1)"),
    Flag(("--shared-system-prompt-length",), "dataset.prefix.system_tokens",
        "tokens of a system prompt that all requests share (default: none)"),
    Flag(("--system-prompt",), "dataset.prefix.system_prompt",
        "text of that system prompt", "TEXT"),
    Flag(("--user-context-prompt-length",), "dataset.prefix.context_tokens",
        "tokens after these with which each conversation begins, shared by its own turns only"),
    Flag(("--cache-bust",), "dataset.cache_bust",
        "put a marker that no other prompt has into each: system_prefix, system_suffix, "
        "first_turn_prefix or first_turn_suffix (default: none)", "WHERE", read=values.word),
    Flag(("--num-prefix-prompts", "--prefix-prompt-pool-size", "--prompt-prefix-pool-size"),
        "dataset.prefix.groups",
        "different prefixes, each shared by as many requests as any other (default: none)"),
    Flag(("--prefix-prompt-length", "--prompt-prefix-length"), "dataset.prefix.tokens",
        "tokens of each of these prefixes"),
    Flag(("--conversation-turn-mean", "--session-turns-mean"), "dataset.turns.number.mean",
        "turns of a synthetic conversation (default: 1)"),
    Flag(("--conversation-turn-stddev", "--session-turns-stddev"), "dataset.turns.number.stddev",
        "standard deviation of that (default: 0)"),
    Flag(("--conversation-turn-delay-mean", "--session-turn-delay-mean"),
        "dataset.turns.delay_ms.mean",
        "milliseconds between a response and the next turn (default: 0)"),
    Flag(("--conversation-turn-delay-stddev", "--session-turn-delay-stddev"),
        "dataset.turns.delay_ms.stddev", "standard deviation of that (default: 0)"),
    Flag(("--conversation-turn-delay-ratio", "--session-delay-ratio"), "dataset.delay_factor",
        "multiply all delays between turns, those of a file too (default: 1)"),
    Flag(("--image-batch-size", "--batch-size-image"), "dataset.images.number",
        "pictures of a synthetic request (default: 0; 1 with another flag of them)"),
    Flag(("--image-format",), "dataset.images.format",
        "png (default), jpeg, or random: one of both for each picture", "FORMAT"),
    Flag(("--image-folder", "--image-source"), "dataset.images.folder",
        "send the pictures of this folder instead of noise; as they are, or scaled to "
        "--image-width-mean and --image-height-mean", "DIR", read=values.image_source),
    Flag(("--image-sampling", "--image-source-sampling"), "dataset.images.sampling",
        "how they are chosen: random (default), shuffled, or sequential", "ORDER",
        read=values.file_sampling),
    Flag(("--image-width-mean",), "dataset.images.width.mean", "pixels (default: 512)"),
    Flag(("--image-width-stddev",), "dataset.images.width.stddev", "standard deviation of that"),
    Flag(("--image-height-mean",), "dataset.images.height.mean", "pixels (default: 512)"),
    Flag(("--image-height-stddev",), "dataset.images.height.stddev", "standard deviation of that"),
    Flag(("--audio-batch-size", "--batch-size-audio"), "dataset.sounds.number",
        "sounds of a synthetic request (default: 0; 1 with another flag of them)"),
    Flag(("--audio-format",), "dataset.sounds.format", "wav (default) or mp3", "FORMAT"),
    Flag(("--audio-folder",), "dataset.sounds.folder",
        "send the sounds of this folder, as they are, instead of noise", "DIR"),
    Flag(("--audio-sampling",), "dataset.sounds.sampling",
        "how they are chosen: random (default), shuffled, or sequential", "ORDER"),
    Flag(("--audio-length-mean",), "dataset.sounds.seconds.mean", "seconds (default: 10)"),
    Flag(("--audio-length-stddev",), "dataset.sounds.seconds.stddev",
        "standard deviation of that"),
    Flag(("--audio-sample-rates",), "dataset.sounds.sample_rates",
        "samples a second; a number below 1,000 is kHz (default: 16); of several, one is drawn for "
        "each sound", "RATE", "list", values.sample_rates),
    Flag(("--audio-depths",), "dataset.sounds.depths",
        "bits of a sample of a WAV: 8, 16 (default), 24 or 32; of several, one is drawn likewise",
        "BITS", "list", values.whole_numbers),
    Flag(("--audio-num-channels",), "dataset.sounds.channels", "1 (default) or 2"),
    Flag(("--rankings-passages-mean",), "dataset.passages.number.mean",
        "passages of a ranking (default: 1)"),
    Flag(("--rankings-passages-stddev",), "dataset.passages.number.stddev",
        "standard deviation of that (default: 0)"),
    Flag(("--rankings-passages-prompt-token-mean",), "dataset.passages.tokens.mean",
        "tokens of a passage (default: 550)"),
    Flag(("--rankings-passages-prompt-token-stddev",), "dataset.passages.tokens.stddev",
        "standard deviation of that (default: 0)"),
    Flag(("--osl", "--output-tokens-mean", "--prompt-output-tokens-mean"),
        "dataset.output_tokens.mean", "tokens to ask for as the response (default: no limit)"),
    Flag(("--force-output-length",), "endpoint.force_output_length",
        "with --osl, also send `ignore_eos` and `min_tokens`, which make the response that long "
        "(default: yes, unless the server refuses them)", kind="switch"),
    Flag(("--osl-stddev", "--output-tokens-stddev", "--prompt-output-tokens-stddev"),
        "dataset.output_tokens.stddev", "standard deviation of that (default: 0)"),
    Flag(("--num-dataset-entries", "--num-prompts", "--num-conversations", "--conversation-num",
          "--num-sessions"), "dataset.entries",
        "distinct prompts (default: 1,000 synthetic ones, or --request-count if less; 100 of a "
        "random pool, or all of a file)"),
    Flag(("--input-file",), "dataset.file", "take the prompts from this file", "FILE"),
    Flag(("--custom-dataset-type",), "dataset.kind",
        "what the file holds: single_turn (default), multi_turn, random_pool (also a folder of "
        "files; lines are drawn with replacement), sharegpt, mooncake_trace, "
        "bailian_trace, burst_gpt_trace or azure_trace", "TYPE", read=values.word),
    Flag(("--isl-block-size", "--prompt-input-tokens-block-size",
          "--synthetic-input-tokens-block-size"), "dataset.block_size",
        "tokens for each hash id of a trace (default: 512, of a bailian_trace 16)"),
    Flag(("--synthesis-max-isl",), "dataset.max_input_tokens",
        "leave out the rows of a trace with prompts of more tokens"),
    Flag(("--synthesis-max-osl",), "dataset.max_output_tokens",
        "ask for at most so many tokens where a row of a trace has more"),
    Flag(("--public-dataset",), "dataset.public",
        "take the prompts from a public dataset: sharegpt", "NAME"),
    Flag(("--dataset-order", "--dataset-sampling-strategy"), "dataset.order",
        "sequential (default); shuffled: each prompt once before any comes again; or random: each "
        "is drawn with replacement", "ORDER", read=values.dataset_order),
    Flag(("--tokenizer",), "tokenizer.name",
        "tokenizer.json, a folder with one, or a hub name: counts tokens exactly", "NAME"),
    Flag(("--tokenizer-revision",), "tokenizer.revision", "revision on the hub (default: main)",
        "NAME"),
    Flag(("--apply-chat-template",), "tokenizer.apply_chat_template",
        "count input tokens inside the tokenizer's chat template; --isl is then the length there",
        kind="switch"),
    Flag(("--use-server-token-count",), "endpoint.use_server_token_count",
        "take input and output tokens from the server's usage, also with --tokenizer",
        kind="switch"),
    Flag(("--random-seed",), "random_seed",
        "decides prompts and arrivals: the same seed, the same requests (default: 0)"),
    Flag(("--prompt-variant",), "dataset.variant",
        "other words, noise and markers in prompts of the same lengths, which no server has in a "
        "cache (default: 1; of a trial, its number)"),
)  # fmt: skip

LIMITS = (
    Flag(("--slo",), "slo.objectives",
        "limit that must hold, else exit code 4, or 9 if it cannot be judged: "
        "`time_to_first_token:p99<500ms`; again for more",
        "LIMIT", "list", values.objectives),
    Flag(("--goodput",), "slo.goodput",
        "what makes a request good: `time_to_first_token:500ms`; again for more", "LIMIT", "list",
        values.goodput),
    Flag(("--goodput-tier",), "slo.goodput_tiers",
        "another set of such limits with a goodput of its own, `NAME=metric:limit metric:limit`; "
        "again for more", "TIER", "list", values.goodput_tiers),
    Flag(("--error-budget",), "slo.error_budget",
        "share of requests that may fail, be cut off or stay unsent before limits on latencies "
        "count as missed (default: 1%)", "SHARE"),
)  # fmt: skip

PROCESSES = (
    Flag(("--workers-min",), "workers.min", "fewest processes that send requests"),
    Flag(("--workers-max", "--max-workers"), "workers.max", "most processes that send requests"),
    Flag(("--record-processors", "--record-processor-service-count"), "workers.record_processors",
        "processes that read the responses (default: a quarter of the workers)"),
    Flag(("--layout",), "deployment.layout",
        "per-service, or compact: the five single services in one process (default: compact)",
        "LAYOUT"),
)  # fmt: skip

EXPERIMENT = (
    Flag(("--sweep",), "experiment.product",
        "a trial for each value of a key of the config, `KEY=A,B,C`; several sweeps make every "
        "combination", "KEY=VALUES", "list", values.sweeps),
    Flag(("--repetitions", "--num-profile-runs"), "experiment.repetitions",
        "how often each trial is run (default: 1)"),
    Flag(("--trial-order", "--parameter-sweep-mode"), "experiment.order",
        "interleaved (default): all trials, then all again; grouped: each trial's repetitions one "
        "after the other; shuffled by --random-seed", "ORDER", read=values.trial_order),
    Flag(("--cooldown", "--profile-run-cooldown-seconds", "--parameter-sweep-cooldown-seconds"),
        "experiment.cooldown", "time between two trials (default: 0s)", DURATION),
    Flag(("--parallel",), "experiment.parallel",
        "on a cluster, so many stacks at the same time for trials that need pods of their own, or "
        "auto: as many as there is room for (default: 1, one stack for all)", "NUMBER"),
    Flag(("--search",), "experiment.search",
        "look for the highest value of a key at which every --slo holds, `KEY=FROM..TO`",
        "KEY=RANGE", read=values.search),
    Flag(("--scenario",), "experiment.scenario",
        "load and metric in the manner of MLPerf: server, interactive, offline, single-stream or "
        "multi-stream", "NAME"),
)  # fmt: skip

TELEMETRY = (
    Flag(("--server-metrics",), "telemetry.server_metrics",
        "read this Prometheus page of a server while the run goes, beside the target's own "
        "/metrics; again for more", "URL", "list", values.pages),
    Flag(("--gpu-telemetry",), "telemetry.gpu_telemetry",
        "read this page of a DCGM exporter; again for more", "URL", "list", values.pages),
    Flag(("--metrics-key-env",), "telemetry.key_env",
        "environment variable with what the servers of these pages ask for: a token, or "
        "USER:PASSWORD", "NAME"),
    Flag(("--no-server-metrics",), "telemetry.target",
        "do not read the target's own /metrics, which is read where it is there", kind="off"),
    Flag(("--no-gpu-telemetry",), "telemetry.find_gpus",
        "on a cluster, do not look for the exporters of the target's GPUs", kind="off"),
    Flag(("--metrics-interval",), "telemetry.interval",
        "time between two reads of a page (default: 1s)", DURATION),
)  # fmt: skip

RESULTS = (
    Flag(("--artifact-dir", "--output-artifact-dir", "--output-dir"), "artifacts.dir",
        "folder for the results (default: artifacts)", "DIR"),
    Flag(("--name",), "name", "what the results are called (default: benchmark)", "NAME"),
    Flag(("--slice-duration",), "artifacts.slice_duration",
        "also write the results by slices of this length, as AIPerf's time slices", DURATION),
    Flag(("--export-http-trace",), "artifacts.http_trace",
        "keep when each read of a response came, as `trace_data` in profile_export.jsonl",
        kind="switch"),
    Flag(("--mlflow-tracking-uri",), "artifacts.mlflow.tracking_uri",
        "file the finished run in this MLflow tracking server, http://host:5000; keys are read "
        "from MLFLOW_TRACKING_TOKEN", "URI"),
    Flag(("--mlflow-experiment",), "artifacts.mlflow.experiment",
        "experiment that it is filed in (default: aiperf)", "NAME"),
    Flag(("--mlflow-run-name",), "artifacts.mlflow.run_name",
        "name of the run there (default: that of its folder)", "NAME"),
    Flag(("--mlflow-tag",), "artifacts.mlflow.tags",
        "tag of the run there, `key:value`; again for more", "TAG", "list", values.tags),
    Flag(("--mlflow-parent-run-id",), "artifacts.mlflow.parent_run_id",
        "run under which it is shown", "ID"),
    Flag(("--mlflow-artifact-glob",), "artifacts.mlflow.files",
        "files that are sent with it (default: those that are small); again for more", "PATTERN",
        "list"),
    Flag(("--wandb-project",), "artifacts.wandb.project",
        "file the finished run in this project of Weights & Biases; the key is read from "
        "WANDB_API_KEY", "NAME"),
    Flag(("--wandb-entity",), "artifacts.wandb.entity",
        "team or user (default: that of the key)", "NAME"),
    Flag(("--wandb-run-name",), "artifacts.wandb.run_name",
        "name of the run there (default: that of its folder)", "NAME"),
    Flag(("--wandb-tag",), "artifacts.wandb.tags", "tag of the run there; again for more", "TAG",
        "list"),
    Flag(("--s3-url",), "artifacts.s3.url",
        "upload the results to this bucket too, s3://bucket/prefix; the keys are read from "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", "URL"),
    Flag(("--s3-endpoint-url",), "artifacts.s3.endpoint_url",
        "address of a store that is not Amazon's", "URL"),
    Flag(("--s3-region",), "artifacts.s3.region", "its region (default: us-east-1)", "NAME"),
)  # fmt: skip

GROUPS = {
    "server": TARGET,
    "load": LOAD,
    "prompts": DATASET,
    "limits": LIMITS,
    "trials": EXPERIMENT,
    "processes": PROCESSES,
    "telemetry": TELEMETRY,
    "results": RESULTS,
}

FLAGS = tuple(flag for group in GROUPS.values() for flag in group)
