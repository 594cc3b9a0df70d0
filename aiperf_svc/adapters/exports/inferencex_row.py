"""Exports a run as a row of InferenceX for a fixed length of prompts and outputs on one node
(SemiAnalysisAI/InferenceX, `utils/process_result.py` of 843c625).

Latencies are in seconds. `intvty` is the inverse of a statistic of the time per output token.
`num_gpus`, for the rates, is tp · pp · pcp. Unknown values are left out: InferenceX's ingest skips
a row without a required value.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.server_setup import SWITCHES
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.json_objects import Json

NAME: Final = "inferencex_row.json"
NEEDED: Final = (
    "hw", "conc", "image", "model", "infmax_model_prefix", "framework", "precision",
    "spec_decoding", "disagg", "recipe_fingerprint", "isl", "osl", "is_multinode", "tp", "pp",
    "dcp_size", "pcp_size", "ep", "dp_attention", "tput_per_gpu", "output_tput_per_gpu",
    "input_tput_per_gpu",
)  # fmt: skip
"""Keys that InferenceX's transformer always writes for one node."""
_LATENCIES = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "itl": "inter_chunk_latency",
    "e2el": "request_latency",
}
_STATS = {
    "mean": "avg", "median": "p50", "std": "std", "p75": "p75", "p90": "p90", "p95": "p95",
    "p99": "p99", "p99.9": "p99_9",
}  # fmt: skip
_NAMED = {
    "hw": "hw", "image": "image", "infmax_model_prefix": "model_prefix", "framework": "framework",
    "precision": "precision", "spec_decoding": "spec_decoding",
    "recipe_fingerprint": "recipe_fingerprint", "dp_attention": "dp_attention",
}  # fmt: skip
_SIZES = ("tp", "pp", "dcp_size", "pcp_size", "ep")
_POWER = {
    "joules_per_output_token": "joules_per_output_token",
    "joules_per_total_token": "joules_per_total_token",
    "joules_per_successful_query": "joules_per_request",
    "total_gpu_energy_j": "gpu_joules",
}
_POWER_SCHEMA = 2
"""Version of InferenceX's energy fields, which cover all GPUs."""


def row_of(result: InferenceResult, setup: Mapping[str, str]) -> Json:
    """Return the row. Raises ConfigError if the run's concurrency or lengths are not fixed."""
    row, dataset = identity_of(result, setup), result.config_view.dataset
    row |= {"isl": _fixed("input_tokens", dataset.input_tokens)}
    row |= {"osl": _fixed("output_tokens", dataset.output_tokens)}
    row |= _rates(result, row)
    for name, tag in _LATENCIES.items():
        for theirs, ours in _STATS.items():
            value = result.value(tag, ours)
            if value is not None:
                row[f"{theirs}_{name}"] = value / 1e3
                if name == "tpot" and value > 0:
                    row[f"{theirs}_intvty"] = 1e3 / value
    return row | energy_of(result)


def identity_of(result: InferenceResult, setup: Mapping[str, str]) -> Json:
    """Return the common keys of all rows: model, server and concurrency. Raises ConfigError if the
    run does not have a fixed concurrency."""
    config = result.config_view
    users = config.load.concurrency
    if not users or not config.load.is_closed:
        raise ConfigError(
            "a row of InferenceX has a fixed concurrency; run with load.concurrency (--concurrency)"
        )
    row: Json = {"conc": users, "model": config.endpoint.model}
    row |= {theirs: setup[ours] for theirs, ours in _NAMED.items() if ours in setup}
    row |= {name: setup[name] == "true" for name in sorted(SWITCHES) if name in setup}
    return row | {name: int(setup[name]) for name in _SIZES if name in setup}


def gpus_of_row(row: Mapping[str, Any]) -> int | None:
    """Return the number of GPUs for the rates; None if it is unknown."""
    sizes = [row[name] for name in ("tp", "pp", "pcp_size") if name in row]
    return math.prod(sizes) if len(sizes) == 3 else None


def energy_of(result: InferenceResult) -> dict[str, float]:
    """Return the energy of all GPUs; empty if it is unknown."""
    joules, tokens = result.value("gpu_joules"), result.value("total_isl")
    if joules is None:
        return {}
    found = {theirs: result.value(tag) for theirs, tag in _POWER.items()}
    if tokens:
        found["joules_per_input_token"] = joules / tokens
    known = {name: value for name, value in found.items() if value is not None}
    return known | {"power_valid": 1, "power_metric_schema_version": _POWER_SCHEMA}


def _fixed(key: str, written: Any) -> int:
    mean = written.get("mean") if isinstance(written, Mapping) else None
    if not mean:
        raise ConfigError(
            f"a row of InferenceX has fixed lengths; run with dataset.{key} (--isl, --osl), or "
            "export another format"
        )
    return int(mean)


def _rates(result: InferenceResult, row: Mapping[str, Any]) -> dict[str, float]:
    gpus = gpus_of_row(row)
    total = result.value("total_token_throughput")
    output = result.value("output_token_throughput")
    if gpus is None or total is None or output is None:
        return {}
    return {
        "tput_per_gpu": total / gpus,
        "output_tput_per_gpu": output / gpus,
        "input_tput_per_gpu": (total - output) / gpus,
    }
