"""Exports a run as Benchmark Report 0.2.1 of llm-d (llm-d-benchmark,
`llmdbenchmark/analysis/benchmark_report/schema_v0_2_1.py`).

Times are in seconds, as in llm-d's own converters. Unknown values are left out, because the schema
does not allow null. A stack with unknown GPUs or parallelism is a component of kind `generic`,
because kind `inference_engine` would state 1.
"""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.provenance import Provenance
from aiperf_svc.core.results.server_setup import NUMBERS
from aiperf_svc.domain.json_objects import Json

NAME: Final = "llm_d_benchmark_report.json"
VERSION: Final = "0.2.1"
TOOL: Final = "aiperf-svc"
_STATS = {
    "mean": "avg", "stddev": "std", "min": "min", "p1": "p1", "p5": "p5", "p10": "p10",
    "p25": "p25", "p50": "p50", "p75": "p75", "p90": "p90", "p95": "p95", "p99": "p99",
    "p99p9": "p99_9", "max": "max",
}  # fmt: skip
"""llm-d's names of statistics, and ours."""
_LATENCIES = {
    "time_to_first_token": ("time_to_first_token", "s"),
    "time_per_output_token": ("inter_token_latency", "s/token"),
    "inter_token_latency": ("inter_chunk_latency", "s/token"),
    "request_latency": ("request_latency", "s"),
}
"""Our `inter_token_latency` is (request latency − time to first token) / (tokens − 1) of a request.
llm-d calls this time per output token; its inter-token latency is measured between arriving
tokens."""
_RATES = {
    f"{what}_token_rate": (f"{what}_token_throughput", "tokens/s")
    for what in ("input", "output", "total")
} | {"request_rate": ("request_throughput", "queries/s")}
_ENGINE_FACTS = ("gpu_model", "gpus", "replicas", "tp", "dp", "ep", "pp")


def report_of(
    result: InferenceResult, provenance: Provenance | None, setup: Mapping[str, str]
) -> Json:
    """Return the report. `setup` contains the known facts about the server."""
    scenario: Json = {"stack": [_component(result, provenance, setup)]}
    if (load := _load(result)) is not None:
        scenario["load"] = load
    results: Json = {"request_performance": {"aggregate": _aggregate(result)}}
    if _has_conversations(result):
        results["session_performance"] = {"sessions": _sessions(result)}
    return {
        "version": VERSION,
        "run": {
            "uid": result.run_id,
            "time": {
                "start": _iso(result.start_wall_ns),
                "end": _iso(result.end_wall_ns),
                "duration": f"PT{(result.end_wall_ns - result.start_wall_ns) / 1e9:.3f}S",
            },
            "description": result.name,
        },
        "scenario": scenario,
        "results": results,
    }


def _has_conversations(result: InferenceResult) -> bool:
    dataset = result.topology.dataset
    return dataset is not None and dataset.turns > dataset.entries


def _sessions(result: InferenceResult) -> Json:
    """Return the conversations or session trees of a run, which are its credits."""
    accounts, number = result.accounts, _numbers(result)
    return {
        "total": accounts.issued - accounts.unsent,
        "succeeded": accounts.completed,
        "failed": accounts.errored + accounts.lost,
        "total_events": sum(number.values()),
        "total_events_completed": number[""],
        "total_events_cancelled": number["cancelled_"],
    }


def _numbers(result: InferenceResult) -> dict[str, int]:
    """Return the numbers of completed and of other requests, by the prefixes of their metrics."""
    # A run without cancelled, abandoned or lost requests does not have these metrics.
    return {
        name: int(result.value(f"{name}request_count") or 0)
        for name in ("", "error_", "cancelled_", "abandoned_", "lost_")
    }


def _aggregate(result: InferenceResult) -> Json:
    number = _numbers(result)
    requests: Json = {
        "total": sum(number.values()),
        "failures": number["error_"],
        "incomplete": number["cancelled_"] + number["abandoned_"] + number["lost_"],
    }
    lengths = {"input_length": "input_sequence_length", "output_length": "output_sequence_length"}
    requests |= _statistics(result, {name: (tag, "count") for name, tag in lengths.items()})
    return {
        "requests": requests,
        "latency": _statistics(result, _LATENCIES),
        "throughput": _statistics(result, _RATES),
    }


def _statistics(result: InferenceResult, names: Mapping[str, tuple[str, str]]) -> dict[str, Json]:
    """Return the statistics of the metrics that the run has."""
    found = {}
    for name, (tag, units) in names.items():
        if result.value(tag) is not None:
            scale = 1e-3 if units in ("s", "s/token") else 1.0
            values = {theirs: result.value(tag, ours) for theirs, ours in _STATS.items()}
            found[name] = {
                "units": units,
                **{key: value * scale for key, value in values.items() if value is not None},
            }
    return found


def _component(
    result: InferenceResult, provenance: Provenance | None, setup: Mapping[str, str]
) -> Json:
    target = dict(provenance.target) if provenance is not None else {}
    standardized: Json = {
        "tool": setup.get("framework", "unknown"),
        "tool_version": setup.get("engine_version", "unknown"),
    }
    if all(name in setup for name in _ENGINE_FACTS):
        number = {name: int(setup[name]) for name in _ENGINE_FACTS if name in NUMBERS}
        standardized |= {
            "kind": "inference_engine",
            "role": "replica",
            "replicas": number["replicas"],
            "model": {"name": result.config_view.endpoint.model},
            "accelerator": {
                "model": setup["gpu_model"],
                "count": number["gpus"],
                "parallelism": {name: number[name] for name in ("tp", "dp", "ep", "pp")},
            },
        }
    else:
        standardized |= {"kind": "generic", "model": {"name": result.config_view.endpoint.model}}
        standardized |= {name: value for name, value in setup.items() if name != "engine_version"}
    return {
        "metadata": {"label": "target", "cfg_id": _checksum([target, dict(setup)])},
        "standardized": standardized,
        "native": {"config": target},
    }


def _load(result: InferenceResult) -> Json | None:
    """Return the load; None if the length of its prompts is unknown."""
    view = result.config_view
    dataset, load = view.dataset, view.load
    lengths = _length(result, "input_sequence_length", dataset.input_tokens)
    if lengths is None:
        return None
    is_synthetic = dataset.kind == "synthetic"
    standardized: Json = {
        "tool": TOOL,
        "tool_version": result.version,
        "source": "random" if is_synthetic else "sampled",
        "input_seq_len": lengths,
    }
    if result.topology.workers:
        standardized["parallelism"] = result.topology.workers
    if view.endpoint.force_output_length:
        enforced = _length(result, "requested_osl", dataset.output_tokens)
        if enforced is not None:
            standardized["output_seq_len"] = enforced
    if _has_conversations(result):
        standardized["multi_turn"] = {"enabled": True}
    if isinstance(load.request_rate, int | float) and load.request_rate > 0:
        standardized["rate_qps"] = load.request_rate
    if load.concurrency:
        standardized["concurrency"] = load.concurrency
    return {
        "metadata": {"cfg_id": _checksum(result.config)},
        "standardized": standardized,
        "native": {"args": {"command": result.cli_command}, "config": result.config},
    }


def _length(result: InferenceResult, tag: str, written: Any) -> Json | None:
    """Return the measured lengths, with the config's distribution if llm-d has it too."""
    mean, std = result.value(tag), result.value(tag, "std")
    if mean is None:
        return None
    low, high = result.value(tag, "min"), result.value(tag, "max")
    found: Json = {"distribution": "other", "value": mean}
    if low is not None and low == high:
        found["distribution"] = "fixed"
    elif isinstance(written, Mapping) and written.get("distribution") == "normal":
        found |= {
            "distribution": "gaussian",
            "value": written["mean"],
            "std_dev": written["stddev"],
        }
    elif isinstance(written, Mapping) and written.get("distribution") == "uniform":
        found["distribution"] = "uniform"
    elif std is not None:
        found["std_dev"] = std
    if low is not None and high is not None:
        found |= {"min": int(low), "max": int(high)}
    return found


def _checksum(content: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def _iso(wall_ns: int) -> str:
    return datetime.fromtimestamp(wall_ns / 1e9, UTC).isoformat(timespec="milliseconds")
