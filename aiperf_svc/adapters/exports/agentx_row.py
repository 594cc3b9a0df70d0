"""Exports a run on an agent trace as a row of InferenceX's AgentX for one node
(SemiAnalysisAI/InferenceX, `utils/agentic/aggregation` of 843c625).

Statistics are over the completed requests, in seconds and tokens. Interactivity is the inverse of a
statistic of the time per output token. End-to-end is a request's latency divided by its output
tokens, so its p90 is that of slow requests. Our `inter_token_latency` is both `itl` and `tpot`,
which are equal in AgentX too. Rates are over the time from the first start to the last end.
Server-side values come from the server's counters under load, and are null without its metrics
page.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.adapters.exports.inferencex_row import energy_of, gpus_of_row, identity_of
from aiperf_svc.config.dataset import AGENT_TRACES
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.domain.metric_catalog import CATALOG, Population
from aiperf_svc.domain.metric_formulas import Columns, Floats
from aiperf_svc.domain.outcomes import ErrorKind, Outcome, Phase

NAME: Final = "inferencex_agentx_row.json"
NEEDED: Final = (
    "hw", "conc", "image", "recipe_fingerprint", "model", "infmax_model_prefix", "framework",
    "precision", "spec_decoding", "disagg", "scenario_type", "is_multinode", "tp", "pp", "dcp_size",
    "pcp_size", "ep", "dp_attention", "kv_offloading", "kv_offload_backend",
    "allocated_cpu_dram_gb", "num_requests_total", "num_requests_successful", "request_accounting",
    "request_metrics", "server_metrics", "kv_cache_pool_tokens",
)  # fmt: skip
"""Keys that AgentX's transformer always writes for one node."""
_PERCENTILES = (50, 75, 90, 95)
_WINDOW_S = 1.0
"""Width of the time windows in which ends of requests are counted."""
_CACHE = (
    "gpu_cache_hit_rate", "cpu_cache_hit_rate", "external_cache_hit_rate", "overall_cache_hit_rate",
    "prefix_cache_hits", "prefix_cache_queries", "external_prefix_cache_hits",
    "external_prefix_cache_queries", "frontend_cache_hit_rate", "router_kv_hit_rate",
    "router_shared_cache_hit_rate", "frontend_cached_tokens", "frontend_input_tokens",
)  # fmt: skip
_KV_CACHE = (
    "gpu_usage_pct", "gpu_total_tokens", "cpu_usage_pct", "cpu_used_tokens", "cpu_total_tokens",
)  # fmt: skip
_KV_OFFLOAD = (
    "bytes_gpu_to_cpu", "bytes_cpu_to_gpu", "time_gpu_to_cpu", "time_cpu_to_gpu",
    "bandwidth_gpu_to_cpu_bytes_per_second", "bandwidth_cpu_to_gpu_bytes_per_second",
)  # fmt: skip


def is_agentic(result: InferenceResult) -> bool:
    """Return whether a run replayed an agent trace."""
    return result.config_view.dataset.kind in AGENT_TRACES


def agentx_row_of(
    result: InferenceResult, setup: Mapping[str, str], columns: Columns, clocks: ClockMap
) -> Json:
    """Return the row of a run with these records, whose times are by the workers' `clocks`. Raises
    ConfigError if the number of session trees is not fixed."""
    row = identity_of(result, setup)
    row["scenario_type"] = "agentic-coding"
    if offloading := setup.get("kv_offloading"):
        row["kv_offloading"] = offloading
        if offloading == "none":
            row["kv_offload_backend"] = None
    if backend := setup.get("kv_offload_backend"):
        row["kv_offload_backend"] = {"name": backend}
    if memory := setup.get("allocated_cpu_dram_gb"):
        row["allocated_cpu_dram_gb"] = int(memory)
    done = _Completed(columns, clocks)
    row["num_requests_successful"] = done.count
    row["request_accounting"] = accounting = _accounting(columns, done.count)
    row["num_requests_total"] = accounting["records_total"]
    row["request_metrics"] = _request_metrics(result, done, gpus_of_row(row))
    row["server_metrics"] = _server_metrics(result, done, setup.get("framework", "none"))
    row["kv_cache_pool_tokens"] = None
    return row | energy_of(result)


class _Completed:
    """The completed requests of the load."""

    def __init__(self, columns: Columns, clocks: ClockMap) -> None:
        rows = PhaseRows(columns)
        self._clocks = clocks
        self._chunks = rows.chunks(Population.COMPLETED)
        self.count = sum(chunk.rows for chunk in self._chunks)
        self._values: dict[str, Floats] = {}

    def column(self, name: str) -> NDArray[Any]:
        parts = [chunk[name] for chunk in self._chunks]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def times(self, name: str) -> NDArray[np.int64]:
        """Return a column of times by the timing manager's clock."""
        return self._clocks.to_timing(self.column(name), self.column("worker"))

    def values(self, tag: str) -> Floats:
        """Return a metric of all requests, NaN where it is undefined."""
        if tag not in self._values:
            formula = CATALOG[tag].compute
            assert formula is not None
            parts = [formula(chunk) for chunk in self._chunks]
            self._values[tag] = np.concatenate(parts) if parts else np.empty(0)
        return self._values[tag]

    def seconds(self, tag: str) -> Floats:
        """Return the positive times of a metric."""
        found = self.values(tag) / 1e3
        return found[found > 0]

    def tokens(self, tag: str) -> Floats:
        """Return the known counts of a metric."""
        found = self.values(tag)
        return found[~np.isnan(found)]


def _accounting(columns: Columns, completed: int) -> Json:
    outcome, phase = np.asarray(columns["outcome"]), np.asarray(columns["phase"])
    is_sent = outcome != Outcome.UNSENT
    has_failed = is_sent & (outcome != Outcome.COMPLETED)
    kinds = Counter(
        _category(Outcome(each), ErrorKind(kind))
        for each, kind in zip(
            outcome[has_failed].tolist(), np.asarray(columns["error"])[has_failed].tolist(),
            strict=True,
        )
    )  # fmt: skip
    total = int(np.count_nonzero(is_sent))
    return {
        "records_total": total,
        "records_profiled": completed,
        "records_dropped_total": total - completed,
        "records_warmup_dropped": int(np.count_nonzero(is_sent & (phase == Phase.WARMUP))),
        "records_error_dropped": int(np.count_nonzero(has_failed)),
        "error_categories": dict(kinds),
    }


def _category(outcome: Outcome, kind: ErrorKind) -> str:
    return (outcome if kind is ErrorKind.NONE else kind).name.lower()


def _request_metrics(result: InferenceResult, done: _Completed, gpus: int | None) -> Json:
    facts = result.topology.dataset
    return {
        "qps": _qps(done),
        "latency": _latency(done),
        "tokens": _tokens(done),
        "throughput": _throughput(done, gpus),
        "cache": {
            "theoretical_cache_hit_rate": facts.theoretical_prefix_cache_hit if facts else None
        },
    }


def _stats(values: Floats) -> dict[str, float]:
    """Return the mean, interpolated percentiles, and the population's standard deviation."""
    if not len(values):
        return {}
    points = np.percentile(values, _PERCENTILES)
    found = {f"p{each}": float(value) for each, value in zip(_PERCENTILES, points, strict=True)}
    return {"mean": float(values.mean()), **found, "std": float(values.std())}


def _inverse(stats: dict[str, float], values: Floats) -> dict[str, float]:
    """Return the interactivity: the inverse of each statistic, and the inverses' deviation."""
    found = {name: 1 / value for name, value in stats.items() if name != "std" and value > 0}
    return found | ({"std": float((1 / values).std())} if len(values) else {})


def _latency(done: _Completed) -> Json:
    itl = done.seconds("inter_token_latency")
    ratio = done.values("request_latency") / 1e3 / done.values("output_sequence_length")
    ratio = ratio[np.isfinite(ratio) & (ratio > 0)]
    of_itl = _stats(itl)
    return {
        "ttft": _stats(done.seconds("time_to_first_token")),
        "e2el": _stats(done.seconds("request_latency")),
        "itl": of_itl,
        "tpot": of_itl,
        "intvty": _inverse(of_itl, itl),
        "e2e_norm_intvty": _inverse(_stats(ratio), ratio),
        # Metrics that exist only in InferenceX's fork of AIPerf.
        "full_response_itl": {},
        "full_response_intvty": {},
    }


def _qps(done: _Completed) -> Json:
    ends = np.sort(done.times("end_wall_ns")) / 1e9
    if len(ends) < 2 or ends[-1] <= ends[0]:
        return {}
    parts = int((ends[-1] - ends[0]) / _WINDOW_S)
    edges = ends[0] + _WINDOW_S * np.arange(parts + 1)
    counts = np.diff(np.searchsorted(ends, edges)) / _WINDOW_S
    stats = _stats(counts) or {"mean": len(ends) / float(ends[-1] - ends[0])}
    return {"window_seconds": _WINDOW_S, "samples": len(counts), **stats}


def _tokens(done: _Completed) -> Json:
    requested = done.column("requested_tokens")
    return {
        "input": _stats(done.tokens("input_sequence_length")),
        "output_actual": _stats(done.tokens("output_sequence_length")),
        "output_expected": _stats(requested[requested > 0].astype(float)),
    }


def _throughput(done: _Completed, gpus: int | None) -> Json:
    if not done.count:
        return {}
    length_s = float(done.times("end_wall_ns").max() - done.times("start_wall_ns").min()) / 1e9
    if length_s <= 0:
        return {}
    input_rate, output_rate = (
        float(done.tokens(f"{kind}_sequence_length").sum()) / length_s
        for kind in ("input", "output")
    )
    rates = {"input": input_rate, "output": output_rate, "total": input_rate + output_rate}
    return {
        **{name: {"tokens_per_second": rate} for name, rate in rates.items()},
        "duration_seconds": length_s,
        "per_gpu": {f"{name}_tput_tps": rate / gpus for name, rate in rates.items()}
        if gpus
        else {},
    }


def _server_metrics(result: InferenceResult, done: _Completed, framework: str) -> Json:
    """Return the server's own metrics. Without counters, token totals are those of the requests.
    Only vLLM reports hits in the GPU's cache separately."""
    metrics = result.system.metrics if result.system is not None else {}
    found = {name: value for name, value in metrics.items() if name.startswith("server_")}
    totals = {
        name: int(found.get(f"server_{counter}", math.fsum(done.tokens(f"{kind}_sequence_length"))))
        for name, counter, kind in (
            ("prompt_total", "prompt_tokens", "input"),
            ("generation_total", "generation_tokens", "output"),
        )
    }
    cache: dict[str, Any] = {"overall_cache_hit_rate": found.get("server_prefix_hit_rate")}
    if framework == "vllm":
        hits, queries = found.get("server_prefix_hits"), found.get("server_prefix_queries")
        cache |= {"prefix_cache_hits": hits, "prefix_cache_queries": queries}
        cache["external_prefix_cache_hits"] = found.get("server_external_prefix_hits")
        cache["gpu_cache_hit_rate"] = hits / queries if queries and hits is not None else None
    usage = {"gpu_usage_pct": found.get("server_kv_cache_usage")}
    unknown = dict.fromkeys(("gpu_cache_hit", "cpu_or_external_cache_hit", "computed"))
    return {
        "present": bool(found),
        "adapter": framework if found else "none",
        "metric_count": len(found),
        "cache": {**dict.fromkeys(_CACHE), "cached_tokens_by_source": {}, **cache},
        "kv_cache": {**dict.fromkeys(_KV_CACHE), **usage},
        "kv_offload": dict.fromkeys(_KV_OFFLOAD),
        "tokens": {
            **totals,
            "requests_completed": done.count,
            "prompt_by_source": {**unknown, "raw": {}},
        },
        "sources": [],
    }
