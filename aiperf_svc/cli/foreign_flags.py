"""Flags of other tools that `profile` lacks, with the advice that it prints. The flags of AIPerf
0.13 are complete; `migrate` translates its command lines."""

from typing import Literal, NamedTuple

Kind = Literal["same", "other", "none"]


class Advice(NamedTuple):
    """Advice about a flag."""

    kind: Kind
    """`same`: it has no effect here and can be left out. `other`: another flag does this. `none`:
    there is no counterpart."""
    text: str


TABLE: tuple[tuple[Kind, str, str], ...] = (
    ("same", "HTTP is the only transport", "--transport --transport-type"),
    ("same", "`max_tokens` is sent; use --extra-inputs for `max_completion_tokens`",
     "--use-legacy-max-tokens"),
    ("same", "/health, /v1/models and one request are tried in this order, every half second",
     "--wait-for-model-mode --wait-for-model-interval"),
    ("same", "server_metrics_export is written as JSONL, Parquet, JSON and CSV",
     "--server-metrics-formats"),
    ("same", "each run writes a report.html with plots", "--auto-plot --plot-required"),
    ("same", "all trials have the same seed and the same requests",
     "--set-consistent-seed --parameter-sweep-same-seed"),
    ("same", "confidence intervals are 95%", "--confidence-level"),
    ("same", "local services use sockets in a private folder",
     "--zmq-host --zmq-ipc-path --zmq-dual-bind"),
    ("same", "connection times are metrics of every run", "--show-trace-timing"),
    ("other", "--verbose shows the services' logs", "--log-level --extra-verbose -vv"),
    ("other", "--connections keep-alive or per-request", "--connection-reuse-strategy"),
    ("other", "--error-budget and --slo judge the failures; the run does not end early",
     "--failed-request-threshold"),
    ("other", "--search KEY=FROM..TO with --slo",
     "--search-space --search-metric --search-stat --search-direction --search-max-iterations "
     "--search-initial-points --search-random-seed --search-planner --optuna-sampler "
     "--optuna-acquisition --optuna-terminator --search-percentile-pooling --bo-constraint-mode "
     "--search-style --search-recipe --concurrency-min --concurrency-max --concurrency-steps"),
    ("other", "--slo METRIC:STAT<LIMIT, again for each limit",
     "--search-sla --search-sla-tier --ttft-sla-ms --itl-sla-ms --tpot-sla-ms --e2e-sla-ms "
     "--error-rate-sla --degradation-threshold --degradation-metric-tag --degradation-stat"),
    ("other", "--goodput with experiment.search.holds in a file", "--slo-attainment-fraction"),
    ("other", "--isl A,B,C and --osl A,B,C",
     "--isl-min --isl-max --isl-steps --osl-min --osl-max --osl-steps"),
    ("other", "experiment.zip in a file pairs lists; lists of flags are combined",
     "--sweep-type --isl-osl-pairs"),
    ("other", "experiment.explicit in a file lists trials one by one",
     "--variant --sweep-variant"),
    ("other", "--repetitions; docs/comparing.md explains how many",
     "--convergence-metric --convergence-stat --convergence-threshold --convergence-mode"),
    ("other", "--sweep random_seed=1,2,3", "--vary-seed-per-trial"),
    ("other", "--ui plain", "--no-sweep-table --stats-interval"),
    ("other", "`aiperf-svc status` and the results API of a stack", "--api-port --api-host"),
    ("other", "--artifact-dir and --name; each run has its own folder",
     "--profile-export-prefix --profile-export-file"),
    ("none", "every run writes all of its files", "--export-level --profile-export-level"),
    ("none", "the texts of responses are not kept", "--export-outputs-json"),
    ("none", "each trial has the warmup of the load", "--profile-run-disable-warmup-after-first"),
    ("none", "servers report usage once, at the end of a stream", "--per-chunk-usage"),
    ("same", "the API determines it: JSON, or a form for file uploads",
     "--request-content-type"),
    ("none", "every request contains its images, even if the server has them cached",
     "--uuid-and-strip"),
    ("none", "videos are not supported",
     "--download-video-content --video-batch-size "
     "--batch-size-video --video-duration --video-fps --video-width --video-height "
     "--video-synth-type --video-format --video-codec --video-audio-sample-rate "
     "--video-audio-num-channels --video-audio-codec --video-audio-depth"),
    ("none", "tokenizers are read as data; their code is never executed",
     "--tokenizer-trust-remote-code"),
    ("none", "ShareGPT is the only public dataset",
     "--hf-subset --hf-weka-dataset --dataset-filter"),
    ("same", "when all sessions of a trace have run, they run again", "--allow-dataset-wrap"),
    ("other", "--agentic-warmup-requests", "--agentic-cache-warmup-duration"),
    ("other", "--trace-idle-gap-cap-seconds", "--max-idle-gap-cap-seconds"),
    ("none", "--num-prompts takes the first sessions of a trace", "--trace-session-sample-ratio"),
    ("none", "a run that does not conform is never refused; its results state it",
     "--unsafe-override"),
    ("none", "each turn is sent after the previous response and its delay",
     "--open-loop-replay --open-loop-strict"),
    ("other", "--conversation-turn-delay-ratio 0", "--ignore-trace-delays"),
    ("none", "traces are replayed without synthesis",
     "--synthesis-prefix-len-multiplier "
     "--synthesis-prefix-root-multiplier --synthesis-prompt-len-multiplier "
     "--synthesis-output-len-multiplier "
     "--omit-kv-hints --force-min-tokens"),
    ("other", "--replay-speedup", "--synthesis-speedup-ratio"),
    ("none", "synthetic prompts consist of common words", "--prompt-corpus"),
    ("other", "--system-prompt \"$(cat FILE)\"", "--system-prompt-file"),
    ("other", "dataset.input_tokens in a file: distribution uniform, with min and max",
     "--random-range-ratio --random-corpus-style"),
    ("other", "--otlp URL", "--otel-url"),
    ("none", "MLflow receives finished runs; nothing is streamed",
     "--stream --otel-resource-attributes --gen-ai-provider"),
    ("other", "network_rtt reports the kernel's round-trip time, which latencies include",
     "--network-latency-automatic --network-latency-mean --network-latency-ping-interval"),
    ("other", "--quality-tasks runs tasks of lm-evaluation-harness after the load, --quality-file "
     "questions of your own; quality.lm_eval in a file has the examples before each question",
     "--accuracy-benchmark --accuracy-tasks --accuracy-n-shots --accuracy-enable-cot "
     "--accuracy-no-enable-cot --accuracy-grader --accuracy-system-prompt --accuracy-verbose"),
)  # fmt: skip

ADVICE = {name: Advice(kind, text) for kind, text, names in TABLE for name in names.split()}
"""Advice by flag."""


def advice_for(flag: str) -> Advice | None:
    """Return the advice about a flag of AIPerf, or None. `--no-X` is treated as `--X`."""
    return ADVICE.get(flag) or ADVICE.get(flag.replace("--no-", "--", 1))


class Counterpart(NamedTuple):
    """The counterpart of a flag of another tool."""

    tool: str
    text: str


VLLM, GUIDELLM, GENAI = "vLLM bench", "GuideLLM", "genai-bench"
OTHERS: tuple[tuple[str, str, str], ...] = (
    (VLLM, "--url", "--base-url --host --port"),
    (VLLM, "--endpoint-type", "--backend"),
    (VLLM, "--isl", "--random-input-len --input-len --sonnet-input-len"),
    (VLLM, "--osl",
     "--random-output-len --output-len --sonnet-output-len --sharegpt-output-len "
     "--custom-output-len --hf-output-len --prefix-repetition-output-len"),
    (VLLM, "--num-prefix-prompts 1 --prefix-prompt-length",
     "--random-prefix-len --sonnet-prefix-len"),
    (VLLM, "--prefix-prompt-length", "--prefix-repetition-prefix-len"),
    (VLLM, "--isl", "--prefix-repetition-suffix-len"),
    (VLLM, "--num-prefix-prompts", "--prefix-repetition-num-prefixes"),
    (VLLM, "--batch-size", "--random-batch-size"),
    (VLLM, "--concurrency", "--max-concurrency"),
    (VLLM, "--random-seed", "--seed"),
    (VLLM, "--input-file or --public-dataset", "--dataset-name"),
    (VLLM, "--input-file with --custom-dataset-type", "--dataset-path"),
    (VLLM, "--warmup-request-count", "--num-warmups"),
    (VLLM, "--wait-for-server", "--ready-check-timeout-sec"),
    (VLLM, "--artifact-dir and --name; every run writes its files",
     "--result-dir --result-filename --save-result --save-detailed --append-result --metadata"),
    (VLLM, "every metric has its percentiles",
     "--percentile-metrics --metric-percentiles"),
    (VLLM, "with --osl, `ignore_eos` is sent", "--ignore-eos"),
    (VLLM, "--extra-inputs NAME:VALUE",
     "--extra-body --temperature --top-p --top-k --min-p --frequency-penalty --presence-penalty "
     "--repetition-penalty --logprobs --use-beam-search"),
    (VLLM, "--model NAME, the name that the server uses", "--served-model-name --lora-modules"),
    (VLLM, "--ramp-duration", "--ramp-up-strategy --ramp-up-start-rps --ramp-up-end-rps"),
    (VLLM, "--ui none", "--disable-tqdm"),
    (VLLM, "tokenizers are read as data", "--trust-remote-code --tokenizer-mode"),
    (VLLM, "--no-tls-verify", "--insecure"),
    (VLLM, "--dataset-order", "--disable-shuffle"),
    (GUIDELLM, "--url", "--target"),
    (GUIDELLM, "--osl", "--max-tokens"),
    (GUIDELLM, "--concurrency or --request-rate; docs/from-guidellm.md has each",
     "--profile --rate-type"),
    (GUIDELLM, "--request-rate or --concurrency", "--rate"),
    (GUIDELLM, "--benchmark-duration", "--max-seconds"),
    (GUIDELLM, "--request-count", "--max-requests"),
    (GUIDELLM, "--tokenizer", "--processor"),
    (GUIDELLM, "--isl and --osl, or --input-file", "--data"),
    (GUIDELLM, "--num-prompts", "--data-samples"),
    (GUIDELLM, "--dataset-order", "--data-sampler"),
    (GUIDELLM, "--endpoint-type", "--request-type --request-format --backend-type"),
    (GUIDELLM, "--header, --extra-inputs and --api-key",
     "--backend-args --backend-kwargs"),
    (GUIDELLM, "--artifact-dir", "--output --output-path --outputs"),
    (GUIDELLM, "--warmup-duration or --warmup-request-count", "--warmup --warmup-percent"),
    (GUIDELLM, "--ramp-duration", "--rampup"),
    (GUIDELLM, "--error-budget", "--max-errors --max-error-rate"),
    (GUIDELLM, "--search with --slo", "--detect-saturation"),
    (GUIDELLM, "--name", "--label"),
    (GUIDELLM, "--ui none or --ui plain",
     "--disable-console --disable-console-interactive --disable-progress"),
    (GENAI, "--url", "--api-base"),
    (GENAI, "--model", "--api-model-name"),
    (GENAI, "--endpoint-type", "--task --api-backend"),
    (GENAI, "--tokenizer", "--model-tokenizer"),
    (GENAI, "--api-key", "--model-api-key"),
    (GENAI, "--isl and --osl, or --seq-dist", "--traffic-scenario"),
    (GENAI, "--concurrency", "--num-concurrency"),
    (GENAI, "--benchmark-duration, which takes 2m", "--max-time-per-run"),
    (GENAI, "--request-count", "--max-requests-per-run"),
    (GENAI, "--extra-inputs", "--additional-request-params"),
    (GENAI, "--name", "--experiment-folder-name"),
    (GENAI, "--artifact-dir", "--experiment-base-dir"),
    (GENAI, "--workers-max", "--num-workers"),
    (GENAI, "--ramp-duration", "--spawn-rate"),
    (GENAI, "--warmup-duration", "--warmup-ratio"),
    (GENAI, "requests sent within the duration count", "--cooldown-ratio"),
    (GENAI, "--num-prefix-prompts 1 --prefix-prompt-length", "--prefix-len"),
    (GENAI, "--input-file with --custom-dataset-type", "--dataset-config"),
    (GENAI, "--s3-url", "--upload-results --storage-bucket --storage-prefix"),
)  # fmt: skip
"""Flags of other tools, by tool and counterpart. A flag of several tools is listed once."""

COUNTERPARTS = {
    name: Counterpart(tool, text) for tool, text, names in OTHERS for name in names.split()
}
"""Counterpart by flag."""
