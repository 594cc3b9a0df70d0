"""Makes the results of a benchmark of a server from its summary, with the config as AIPerf names
it."""

import msgspec

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.endpoint import Endpoint
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.summary import Summary, inference_result


def result_of(summary: Summary) -> InferenceResult:
    """Return the results that leave the process of the records manager."""
    config = msgspec.json.encode(input_config(summary.context.config))
    return inference_result(summary, aiperf_config=msgspec.Raw(config))


def input_config(config: BenchmarkConfig) -> dict[str, object]:
    """Return the config with AIPerf's names, for tools that read load and model from it."""
    load, data = config.load, config.dataset
    phase: dict[str, object] = {"name": "profiling", "kind": "profiling"}
    phase["type"] = load.arrival.pattern if load.is_open_loop else "concurrency"
    if load.fixed_schedule:
        phase["type"] = "fixed_schedule"
        phase["replay_speedup"] = load.replay_speedup
    if load.user_centric is not None:
        phase |= {"type": "user_centric", "users": load.user_centric.users}
    optional = {
        "requests": load.requests,
        "duration": load.duration / 1e9 if load.duration else None,
        "concurrency": load.concurrency,
        "prefill_concurrency": load.prefill_concurrency,
        "rate": load.user_centric.rate if load.user_centric else load.request_rate,
    }
    phase |= {name: value for name, value in optional.items() if value is not None}
    dataset: dict[str, object] = {"name": "main", "type": data.kind.value}
    dataset |= {"entries": data.entries} if data.entries else {}
    dataset["random_seed"] = config.random_seed
    lengths = {"isl": {"mean": data.input_tokens.mean, "stddev": data.input_tokens.stddev}}
    if data.output_tokens:
        lengths["osl"] = {"mean": data.output_tokens.mean, "stddev": data.output_tokens.stddev}
    dataset["prompts"] = lengths
    return {
        "models": _models(config.endpoint),
        "endpoint": {
            "urls": list(config.endpoint.all_urls),
            "type": config.endpoint.type.value,
            "streaming": config.endpoint.streaming,
        },
        "datasets": [dataset],
        "phases": [phase],
        "artifacts": {"dir": config.artifacts.dir},
        "tokenizer": {"name": config.tokenizer.name},
    }


def _models(endpoint: Endpoint) -> dict[str, object]:
    weights = endpoint.model_weights
    strategy = "weighted" if weights and endpoint.model_selection == "random" else None
    items: list[dict[str, object]] = [{"name": name} for name in endpoint.all_models]
    for item, weight in zip(items, weights, strict=False):
        item["weight"] = weight
    if len(items) == 1:
        return {"items": items}
    return {"strategy": strategy or endpoint.model_selection, "items": items}
