"""Table of all flags of `profile`: name, config key, and conversion of the text.

A flag only sets a config key. Its type, help and default come from the key (`key_docs`), and its
value is validated like the config's. The table imports no model, so a command line can be parsed
before the models are loaded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from aiperf_svc.cli import flag_values as values


@dataclass(frozen=True)
class Flag:
    """Definition of one flag."""

    spelling: str
    """All names. Messages and docs use the first long one; the others come from other tools."""
    key: str
    """Dotted path in the config."""
    metavar: str = ""
    """Placeholder of the value in the help; empty for the default of the key's type."""
    kind: Literal["value", "switch", "off", "list", "again"] = "value"
    """A switch is true or, as `--no-…`, false. `off` can only make its key false. A list has
    several values and may be repeated. `again` may be repeated with one value each."""
    read: Callable[[Any], Any] | None = None
    """Converts the text to the key's value. Raises ValueError with the expected value."""
    note: str = ""
    """Addition to the description of the key: the syntax on a command line."""
    text: str = ""
    """Replaces the description of the key."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names; the first one is used in messages."""
        return tuple(self.spelling.split())

    @property
    def name(self) -> str:
        """Name used in messages."""
        return next(name for name in self.names if name.startswith("--"))

    @property
    def destination(self) -> str:
        """Its name in the parsed arguments."""
        return self.name.removeprefix("--").replace("-", "_")


TARGET = (
    Flag("--url -u", "endpoint.url", "URL", kind="again", read=values.pages,
        note="`http://` may be left out. Repeat for several servers."),
    Flag("--url-strategy", "endpoint.url_strategy", "STRATEGY", read=values.word),
    Flag("--model -m --model-names", "endpoint.model", "NAME", read=values.names,
        note="Separate several models with commas; prompts are assigned to them in turn."),
    Flag("--model-selection-strategy", "endpoint.model_selection", "STRATEGY",
        read=values.model_selection),
    Flag("--model-weights", "endpoint.model_weights", "WEIGHTS", read=values.names,
        note="Separate them with commas: 3,1."),
    Flag("--endpoint-type", "endpoint.type", read=values.word),
    Flag("--endpoint --custom-endpoint", "endpoint.path", "PATH"),
    Flag("--connections", "endpoint.connections", "MODE"),
    Flag("--endpoint-template", "endpoint.template", "TEMPLATE", read=values.template,
        note="Or the name of a file that contains it."),
    Flag("--response-field", "endpoint.response_field", "QUERY"),
    Flag("--output-tokens-field", "endpoint.output_tokens_field", "QUERY"),
    Flag("--streaming", "endpoint.streaming", kind="switch"),
    Flag("--header -H", "endpoint.headers", "HEADER", kind="list", read=values.headers,
        note="`Name: value`; repeat for more."),
    Flag("--session-header", "endpoint.session_headers", "NAME", kind="again",
        read=values.all_names, note="Repeat for more, or separate them with commas."),
    Flag("--parent-session-header", "endpoint.parent_session_headers", "NAME", kind="again",
        read=values.all_names, note="Repeat for more, or separate them with commas."),
    Flag("--session-response-header", "endpoint.session_response_header", "NAME"),
    Flag("--session-body", "endpoint.session_body", "NAME", kind="again",
        read=values.all_names, note="Repeat for more, or separate them with commas."),
    Flag("--api-key-header", "endpoint.api_key_header", "NAME"),
    Flag("--extra-inputs", "endpoint.extra_inputs", "INPUT", kind="list", read=values.extra_inputs,
        note="`key:value` or a JSON object; repeat for more."),
    Flag("--request-timeout --request-timeout-seconds", "endpoint.request_timeout"),
    Flag("--wait-for-server --wait-for-model-timeout", "endpoint.wait_for_server"),
    Flag("--proxy", "endpoint.proxy", "URL", read=values.url),
    Flag("--http2", "endpoint.http2", kind="switch"),
    Flag("--reset-kv-cache", "endpoint.reset_kv_cache", kind="switch", read=values.enabled),
    Flag("--reset-kv-cache-path", "endpoint.reset_kv_cache.path", "PATH"),
    Flag("--reset-kv-cache-timeout --reset-kv-cache-timeout-seconds",
        "endpoint.reset_kv_cache.timeout"),
    Flag("--server-profiler", "endpoint.server_profiler", kind="switch", read=values.enabled),
    Flag("--server-profiler-start-path", "endpoint.server_profiler.start_path", "PATH"),
    Flag("--server-profiler-stop-path", "endpoint.server_profiler.stop_path", "PATH"),
    Flag("--server-profiler-timeout --server-profiler-timeout-seconds",
        "endpoint.server_profiler.timeout"),
    Flag("--tls-ca-file", "endpoint.tls.ca_file", "FILE"),
    Flag("--tls-verify", "endpoint.tls.verify", kind="switch"),
    Flag("--tls-server-name", "endpoint.tls.server_name", "NAME"),
)  # fmt: skip

LOAD = (
    Flag("--concurrency", "load.concurrency", note="Default: 1 if no other load is set."),
    Flag("--request-rate", "load.request_rate",
        note="`inf` sends all requests at once; with --concurrency it is a closed loop."),
    Flag("--arrival-pattern --request-rate-mode", "load.arrival.pattern"),
    Flag("--burstiness --arrival-smoothness --vllm-burstiness", "load.arrival.burstiness"),
    Flag("--stages", "load.stages", "STAGE", kind="list", read=values.stages,
        note="`RATE:TIME` each: 10:30s 50:2m."),
    Flag("--rate-series --request-rate-series", "load.rate_series", "FILE", read=values.rate_series,
        note="A CSV file with a line `SECONDS,RATE` for each point, or AIPerf's JSON."),
    Flag("--bursts", "load.bursts", "BURSTS", read=values.bursts,
        note="`RATE:LENGTH/EVERY`, such as 200:5s/1m; each period ends with its burst."),
    Flag("--user-centric-rate", "load.user_centric.rate"),
    Flag("--num-users", "load.user_centric.users"),
    Flag("--fixed-schedule", "load.fixed_schedule", kind="switch"),
    Flag("--fixed-schedule-auto-offset", "load.fixed_schedule_auto_offset", kind="switch"),
    Flag("--fixed-schedule-start-offset", "load.fixed_schedule_start_offset",
        read=values.milliseconds,
        note="A plain number is milliseconds."),
    Flag("--fixed-schedule-end-offset", "load.fixed_schedule_end_offset", read=values.milliseconds,
        note="A plain number is milliseconds."),
    Flag("--replay-speedup", "load.replay_speedup"),
    Flag("--request-count --num-requests", "load.requests"),
    Flag("--benchmark-duration --duration", "load.duration"),
    Flag("--min-duration", "load.min_duration"),
    Flag("--grace-period --benchmark-grace-period", "load.grace_period"),
    Flag("--ramp-duration --concurrency-ramp-duration --request-rate-ramp-duration", "load.ramp"),
    Flag("--quality-file", "quality.file", "FILE"),
    Flag("--quality-tasks", "quality.lm_eval.tasks", "TASK", kind="again", read=values.all_names,
        note="Repeat for more, or separate them with commas."),
    Flag("--quality-min-score", "quality.min_score", read=values.percent,
        note="A plain number is per cent."),
    Flag("--quality-repeats", "quality.repeats"),
    Flag("--quality-logprobs", "quality.logprobs", kind="switch"),
    Flag("--steady-state-skip-start", "load.steady_state.skip_start", read=values.percent,
        note="A plain number is per cent."),
    Flag("--steady-state-skip-end", "load.steady_state.skip_end", read=values.percent,
        note="A plain number is per cent."),
    Flag("--steady-state-concurrency", "load.steady_state.concurrency", read=values.percent,
        note="A plain number is per cent."),
    Flag("--prefill-concurrency", "load.prefill_concurrency"),
    Flag("--prefill-concurrency-ramp-duration", "load.prefill_ramp"),
    Flag("--request-cancellation-rate", "load.cancellation.rate", read=values.percent,
        note="A plain number is per cent."),
    Flag("--request-cancellation-delay", "load.cancellation.delay"),
    Flag("--warmup-request-count --num-warmup-requests", "load.warmup.requests"),
    Flag("--num-warmup-sessions", "load.warmup.conversations"),
    Flag("--warmup-duration", "load.warmup.duration"),
    Flag("--warmup-concurrency", "load.warmup.concurrency"),
    Flag("--warmup-request-rate", "load.warmup.request_rate"),
    Flag("--warmup-arrival-pattern", "load.warmup.arrival.pattern",
        text="Spacing of the warmup's requests: constant, poisson or gamma. Default: that of "
        "the measurement."),
    Flag("--warmup-ramp-duration --warmup-concurrency-ramp-duration "
        "--warmup-request-rate-ramp-duration",
        "load.warmup.ramp"),
    Flag("--warmup-prefill-concurrency", "load.warmup.prefill_concurrency"),
    Flag("--warmup-prefill-concurrency-ramp-duration", "load.warmup.prefill_ramp"),
    Flag("--warmup-grace-period", "load.warmup.grace_period"),
    Flag("--agentic", "load.agentic", kind="switch", read=values.enabled),
    Flag("--trajectory-start-min-ratio", "load.agentic.start.min"),
    Flag("--trajectory-start-max-ratio", "load.agentic.start.max"),
    Flag("--agentic-warmup-requests", "load.agentic.warmup_requests"),
    Flag("--agentic-warmup-grace-period", "load.agentic.warmup_grace"),
    Flag("--burst-phase-starts", "load.agentic.burst", kind="switch"),
    Flag("--system-idle-gap-cap-seconds", "load.agentic.system_idle_cap"),
    Flag("--trace-idle-gap-cap-seconds", "load.agentic.trajectory_idle_cap"),
)  # fmt: skip

DATASET = (
    Flag("--isl --synthetic-input-tokens-mean --prompt-input-tokens-mean "
        "--rankings-query-prompt-token-mean",
        "dataset.input_tokens.mean"),
    Flag("--isl-stddev --synthetic-input-tokens-stddev --prompt-input-tokens-stddev "
        "--rankings-query-prompt-token-stddev",
        "dataset.input_tokens.stddev"),
    Flag("--seq-dist --sequence-distribution", "dataset.mix", "MIX", read=values.mix,
        note="`ISL,OSL:WEIGHT;ISL,OSL:WEIGHT`, each length with an optional `|STDDEV`."),
    Flag("--batch-size --prompt-batch-size --batch-size-text -b", "dataset.batch_size"),
    Flag("--shared-system-prompt-length", "dataset.prefix.system_tokens"),
    Flag("--system-prompt", "dataset.prefix.system_prompt", "TEXT"),
    Flag("--user-context-prompt-length", "dataset.prefix.context_tokens"),
    Flag("--cache-bust", "dataset.cache_bust", "PLACE", read=values.word),
    Flag("--cache-bust-per", "dataset.cache_bust_per", "WHAT"),
    Flag("--num-prefix-prompts --prefix-prompt-pool-size --prompt-prefix-pool-size",
        "dataset.prefix.groups"),
    Flag("--prefix-prompt-length --prompt-prefix-length", "dataset.prefix.tokens"),
    Flag("--conversation-turn-mean --session-turns-mean", "dataset.turns.number.mean"),
    Flag("--conversation-turn-stddev --session-turns-stddev", "dataset.turns.number.stddev"),
    Flag("--conversation-turn-delay-mean --session-turn-delay-mean", "dataset.turns.delay_ms.mean"),
    Flag("--conversation-turn-delay-stddev --session-turn-delay-stddev",
        "dataset.turns.delay_ms.stddev"),
    Flag("--history", "dataset.history", "RESPONSES"),
    Flag("--conversation-turn-delay-ratio --session-delay-ratio", "dataset.delay_factor"),
    Flag("--image-batch-size --batch-size-image", "dataset.images.number"),
    Flag("--image-format", "dataset.images.format"),
    Flag("--image-folder --image-source", "dataset.images.folder", "DIR", read=values.image_source),
    Flag("--image-sampling --image-source-sampling", "dataset.images.sampling", "ORDER",
        read=values.file_sampling),
    Flag("--image-width-mean", "dataset.images.width.mean"),
    Flag("--image-width-stddev", "dataset.images.width.stddev"),
    Flag("--image-height-mean", "dataset.images.height.mean"),
    Flag("--image-height-stddev", "dataset.images.height.stddev"),
    Flag("--audio-batch-size --batch-size-audio", "dataset.sounds.number"),
    Flag("--audio-format", "dataset.sounds.format"),
    Flag("--audio-folder", "dataset.sounds.folder", "DIR"),
    Flag("--audio-sampling", "dataset.sounds.sampling", "ORDER"),
    Flag("--audio-length-mean", "dataset.sounds.seconds.mean"),
    Flag("--audio-length-stddev", "dataset.sounds.seconds.stddev"),
    Flag("--audio-sample-rates", "dataset.sounds.sample_rates", "RATE", kind="list",
        read=values.sample_rates,
        note="A number below 1,000 is kHz."),
    Flag("--audio-depths", "dataset.sounds.depths", "BITS", kind="list", read=values.whole_numbers),
    Flag("--audio-num-channels", "dataset.sounds.channels"),
    Flag("--rankings-passages-mean", "dataset.passages.number.mean"),
    Flag("--rankings-passages-stddev", "dataset.passages.number.stddev"),
    Flag("--rankings-passages-prompt-token-mean", "dataset.passages.tokens.mean"),
    Flag("--rankings-passages-prompt-token-stddev", "dataset.passages.tokens.stddev"),
    Flag("--osl --output-tokens-mean --prompt-output-tokens-mean", "dataset.output_tokens.mean"),
    Flag("--force-output-length", "endpoint.force_output_length", kind="switch"),
    Flag("--osl-stddev --output-tokens-stddev --prompt-output-tokens-stddev",
        "dataset.output_tokens.stddev"),
    Flag("--num-dataset-entries --num-prompts --num-conversations --conversation-num "
        "--num-sessions", "dataset.entries"),
    Flag("--input-file", "dataset.file", "FILE"),
    Flag("--custom-dataset-type", "dataset.kind", read=values.word,
        note="Default with --input-file: single_turn."),
    Flag("--isl-block-size --prompt-input-tokens-block-size --synthetic-input-tokens-block-size",
        "dataset.block_size"),
    Flag("--max-context-length", "dataset.max_context_tokens"),
    Flag("--use-think-time-only", "dataset.think_time_only", kind="switch"),
    Flag("--inter-turn-delay-cap-seconds", "dataset.max_delay"),
    Flag("--synthesis-max-isl", "dataset.max_input_tokens"),
    Flag("--synthesis-max-osl", "dataset.max_output_tokens"),
    Flag("--public-dataset", "dataset.public", "NAME"),
    Flag("--dataset-order --dataset-sampling-strategy", "dataset.order", read=values.dataset_order),
    Flag("--tokenizer", "tokenizer.name", "NAME"),
    Flag("--tokenizer-revision", "tokenizer.revision", "NAME"),
    Flag("--apply-chat-template", "tokenizer.apply_chat_template", kind="switch"),
    Flag("--prompt-token-ids", "endpoint.prompt_token_ids", kind="switch"),
    Flag("--use-server-token-count", "endpoint.use_server_token_count", kind="switch"),
    Flag("--random-seed", "random_seed"),
    Flag("--prompt-variant", "dataset.variant"),
)  # fmt: skip

LIMITS = (
    Flag("--slo", "slo.objectives", "LIMIT", kind="list", read=values.objectives,
        note="`time_to_first_token:p99<500ms`; repeat for more."),
    Flag("--goodput", "slo.goodput", "LIMIT", kind="list", read=values.goodput,
        note="`time_to_first_token:500ms`; repeat for more."),
    Flag("--goodput-tier", "slo.goodput_tiers", "TIER", kind="list", read=values.goodput_tiers,
        note="`NAME=metric:limit metric:limit`; repeat for more."),
    Flag("--error-budget", "slo.error_budget"),
)  # fmt: skip

PROCESSES = (
    Flag("--workers-min", "workers.min"),
    Flag("--workers-max --max-workers", "workers.max"),
    Flag("--record-processors --record-processor-service-count", "workers.record_processors"),
    Flag("--layout", "deployment.layout"),
)  # fmt: skip

EXPERIMENT = (
    Flag("--sweep", "experiment.product", "KEY=VALUES", kind="list", read=values.sweeps,
        note="`KEY=A,B,C`, such as load.concurrency=1,2,4; repeat for more."),
    Flag("--repetitions --num-profile-runs", "experiment.repetitions"),
    Flag("--trial-order --parameter-sweep-mode", "experiment.order", read=values.trial_order),
    Flag("--cooldown --profile-run-cooldown-seconds --parameter-sweep-cooldown-seconds",
        "experiment.cooldown"),
    Flag("--parallel", "experiment.parallel"),
    Flag("--search", "experiment.search", "KEY=RANGE", read=values.search, note="`KEY=FROM..TO`."),
    Flag("--scenario", "experiment.scenario", "NAME"),
    Flag("--preset", "experiment.preset", "NAME"),
    Flag("--preset-max-concurrency", "experiment.max_concurrency", "N"),
)  # fmt: skip

TELEMETRY = (
    Flag("--server-metrics", "telemetry.server_metrics", "URL", kind="list", read=values.pages,
        note="Repeat for more."),
    Flag("--gpu-telemetry", "telemetry.gpu_telemetry", "URL", kind="list", read=values.gpu_pages,
        note="Repeat for more."),
    Flag("--nvml", "telemetry.nvml", "GPUS", read=values.names, note="`--nvml 0,1`."),
    Flag("--metrics-key-env", "telemetry.key_env", "NAME"),
    Flag("--no-server-metrics", "telemetry.target", kind="off",
        text="Do not read `/metrics` on the target's own host."),
    Flag("--no-gpu-telemetry", "telemetry.find_gpus", kind="off",
        text="On a cluster, do not look for the DCGM exporters of the target's GPUs."),
    Flag("--metrics-interval", "telemetry.interval"),
    Flag("--gpus", "economics.gpus"),
    Flag("--price-per-gpu-hour", "economics.price_per_gpu_hour", "DOLLARS"),
    Flag("--kw-per-gpu", "economics.kw_per_gpu", "KW"),
)  # fmt: skip

RESULTS = (
    Flag("--artifact-dir --output-artifact-dir --output-dir", "artifacts.dir", "DIR"),
    Flag("--name", "name", "NAME"),
    Flag("--slice-duration", "artifacts.slice_duration"),
    Flag("--export-http-trace", "artifacts.http_trace", kind="switch"),
    Flag("--mlflow-tracking-uri", "artifacts.mlflow.tracking_uri", "URI"),
    Flag("--mlflow-experiment", "artifacts.mlflow.experiment", "NAME"),
    Flag("--mlflow-run-name", "artifacts.mlflow.run_name", "NAME"),
    Flag("--mlflow-tag", "artifacts.mlflow.tags", "TAG", kind="list", read=values.tags,
        note="`key:value`; repeat for more."),
    Flag("--mlflow-parent-run-id", "artifacts.mlflow.parent_run_id", "ID"),
    Flag("--mlflow-artifact-glob", "artifacts.mlflow.files", "PATTERN", kind="list",
        note="Repeat for more."),
    Flag("--wandb-project", "artifacts.wandb.project", "NAME"),
    Flag("--wandb-entity", "artifacts.wandb.entity", "NAME"),
    Flag("--wandb-run-name", "artifacts.wandb.run_name", "NAME"),
    Flag("--wandb-tag", "artifacts.wandb.tags", "TAG", kind="list", note="Repeat for more."),
    Flag("--s3-url", "artifacts.s3.url", "URL"),
    Flag("--s3-endpoint-url", "artifacts.s3.endpoint_url", "URL"),
    Flag("--s3-region", "artifacts.s3.region", "NAME"),
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
