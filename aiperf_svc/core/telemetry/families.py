"""Common names for the metric families of known servers and GPU exporters.

Names are those of the servers' own pages, without `_total`, which only some versions add.
"""

from collections.abc import Sequence
from enum import StrEnum
from math import isinf
from typing import NamedTuple

import msgspec

from aiperf_svc.core.telemetry.page import Series


class Kind(StrEnum):
    """How the values of a portable family are interpreted."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Portable(msgspec.Struct, frozen=True):
    """A quantity reported by several servers."""

    name: str
    kind: Kind
    unit: str
    title: str
    families: tuple[str, ...]
    of_routers: tuple[str, ...] = ()
    """Families of components in front of the servers. They are counted if no server's page has the
    quantity, since they cover the same requests."""
    is_worst: bool = False
    """True if the maximum over several servers counts; False: their sum."""
    scale: float = 1.0
    engine_type: str = ""
    """`prefill` or `decode`, if servers of both kinds count the same request: the kind that counts.
    SGLang has the label `engine_type` for this."""


class GpuField(msgspec.Struct, frozen=True):
    name: str
    """Name in AIPerf's `telemetry_data`."""
    family: str
    unit: str
    kind: Kind = Kind.GAUGE
    scale: float = 1.0
    """Factor from the exporter's unit to ours."""
    is_plotted: bool = True
    """False for constants and bit masks, which are not plotted."""

    @property
    def title(self) -> str:
        words = self.name.removeprefix("gpu_").replace("_", " ")
        return f"GPU {words}"


class GpuExporter(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of GPU exporter: the meaning of its series, and how its pods are found."""

    fields: tuple[GpuField, ...]
    no_values: frozenset[float] = frozenset()
    """Numbers that represent a missing value."""
    host: str
    """Label with the name of the GPU's node. The next ones are labels too."""
    uuid: str
    index: str
    model: str
    partition: str = ""
    """Label of a partition, for which power and energy are those of the whole GPU."""
    namespace: str = "namespace"
    """Label with the namespace of the pod that uses the GPU."""
    pod: str = "pod"
    pod_labels: dict[str, tuple[str, ...]]
    """Labels of the exporter's own pods, with their values in common installations."""
    port: int
    """Default port, if the exporter's container declares none."""


class Engine(NamedTuple):
    """A kind of server or router, recognised by its metrics."""

    name: str
    prefix: str
    """Prefix of its metrics."""
    path: str = ""
    """Path where it describes itself; empty if there is none."""


ENGINES = (
    Engine("vLLM", "vllm:", "/version"),
    Engine("SGLang", "sglang:", "/server_info"),
    Engine("llama.cpp", "llamacpp:", "/props"),
    Engine("TensorRT-LLM", "trtllm_", "/version"),
    Engine("TGI", "tgi_", "/info"),
    Engine("Triton", "nv_inference_", "/v2"),
    Engine("Dynamo", "dynamo_"),
    Engine("llm-d router", "llm_d_epp_"),
    Engine("SGLang router", "smg_"),
)
"""The known servers and routers. Each is only queried at its own path."""

SUPERSEDED = {
    "vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc",
    "vllm:gpu_prefix_cache_queries": "vllm:prefix_cache_queries",
    "vllm:gpu_prefix_cache_hits": "vllm:prefix_cache_hits",
    "vllm:time_per_output_token_seconds": "vllm:inter_token_latency_seconds",
    "sglang:time_per_output_token_seconds": "sglang:inter_token_latency_seconds",
    "inference_objective_running_requests": "llm_d_epp_request_running",
    "inference_objective_input_tokens_sum": "llm_d_epp_request_input_tokens_sum",
    "inference_objective_output_tokens_sum": "llm_d_epp_request_output_tokens_sum",
}
"""Older names of families. If a server version has both names, the older one is
ignored."""

PORTABLE = (
    Portable(
        "running",
        Kind.GAUGE,
        "requests",
        "Running on the server",
        (
            "vllm:num_requests_running",
            "sglang:num_running_reqs",
            "tgi_batch_current_size",
            "llamacpp:requests_processing",
            "trtllm_num_requests_running",
        ),
        of_routers=(
            "dynamo_frontend_inflight_requests",
            "llm_d_epp_request_running",
            "inference_objective_running_requests",
            "smg_worker_requests_active",
        ),
    ),
    Portable(
        "waiting",
        Kind.GAUGE,
        "requests",
        "Waiting on the server",
        (
            "vllm:num_requests_waiting",
            "sglang:num_queue_reqs",
            "tgi_queue_size",
            "nv_inference_pending_request_count",
            "llamacpp:requests_deferred",
            "trtllm_num_requests_waiting",
        ),
    ),
    Portable(
        "kv_usage",
        Kind.GAUGE,
        "ratio",
        "KV cache in use",
        (
            "vllm:kv_cache_usage_perc",
            "vllm:gpu_cache_usage_perc",
            "sglang:token_usage",
            "llamacpp:kv_cache_usage_ratio",
            "trtllm_kv_cache_utilization",
        ),
        of_routers=("dynamo_component_kvstats_gpu_cache_usage_percent",),
        is_worst=True,
    ),
    Portable(
        "prefix_hit_rate",
        Kind.GAUGE,
        "ratio",
        "Prefix cache hit rate",
        (
            "sglang:cache_hit_rate",
            "trtllm_kv_cache_hit_rate",
        ),
        of_routers=("dynamo_component_kvstats_gpu_prefix_cache_hit_rate",),
        is_worst=True,
    ),
    Portable(
        "preemptions",
        Kind.COUNTER,
        "",
        "Preemptions",
        ("vllm:num_preemptions", "sglang:num_retracted_requests"),
    ),
    Portable(
        "prefix_queries",
        Kind.COUNTER,
        "tokens",
        "Prefix cache queries",
        (
            "vllm:prefix_cache_queries",
            "vllm:gpu_prefix_cache_queries",
            "sglang:prompt_tokens",
            "trtllm_prompt_tokens",
            # llama.cpp counts computed tokens separately from cached ones.
            "llamacpp:prompt_tokens",
            "llamacpp:prompt_tokens_cached",
        ),
        engine_type="prefill",
    ),
    Portable(
        "prefix_hits",
        Kind.COUNTER,
        "tokens",
        "Prefix cache hits",
        (
            "vllm:prefix_cache_hits",
            "vllm:gpu_prefix_cache_hits",
            "sglang:cached_tokens",
            "trtllm_prompt_cached_tokens",
            "llamacpp:prompt_tokens_cached",
        ),
        engine_type="prefill",
    ),
    Portable(
        "external_prefix_hits",
        Kind.COUNTER,
        "tokens",
        "Prefix cache hits outside of the GPU",
        # Tokens that are not in vLLM's own cache are looked up in a connector's.
        ("vllm:external_prefix_cache_hits",),
    ),
    Portable(
        "prompt_tokens",
        Kind.COUNTER,
        "tokens",
        "Prompt tokens",
        (
            "vllm:prompt_tokens",
            "sglang:prompt_tokens",
            "trtllm_prompt_tokens",
            "tgi_request_input_length_sum",
            "llamacpp:prompt_tokens",
            "llamacpp:prompt_tokens_cached",
        ),
        of_routers=(
            "dynamo_frontend_input_sequence_tokens_sum",
            "llm_d_epp_request_input_tokens_sum",
            "inference_objective_input_tokens_sum",
        ),
        engine_type="prefill",
    ),
    Portable(
        "generation_tokens",
        Kind.COUNTER,
        "tokens",
        "Generated tokens",
        (
            "vllm:generation_tokens",
            "sglang:generation_tokens",
            "tgi_request_generated_tokens_sum",
            "llamacpp:tokens_predicted",
            "trtllm_generation_tokens",
        ),
        of_routers=(
            "dynamo_frontend_output_sequence_tokens_sum",
            "llm_d_epp_request_output_tokens_sum",
            "inference_objective_output_tokens_sum",
        ),
        engine_type="decode",
    ),
    Portable(
        "spec_steps",
        Kind.COUNTER,
        "steps",
        "Speculation steps",
        (
            "vllm:spec_decode_num_drafts",
            "sglang:spec_verify_calls",
            "llamacpp:spec_decode_num_drafts",
        ),
    ),
    Portable(
        "spec_drafted",
        Kind.COUNTER,
        "tokens",
        "Drafted tokens",
        tuple(f"{each}spec_decode_num_draft_tokens" for each in ("vllm:", "llamacpp:", "trtllm_")),
    ),
    Portable(
        "spec_accepted",
        Kind.COUNTER,
        "tokens",
        "Accepted draft tokens",
        tuple(
            f"{each}spec_decode_num_accepted_tokens" for each in ("vllm:", "llamacpp:", "trtllm_")
        ),
    ),
    Portable(
        "spec_length_gauge",
        Kind.GAUGE,
        "tokens",
        "Acceptance length by the server's gauge",
        ("sglang:spec_accept_length", "trtllm_spec_decode_acceptance_length"),
        is_worst=True,
    ),
    Portable(
        "queue_seconds",
        Kind.COUNTER,
        "s",
        "Time in the server's queue",
        ("nv_inference_queue_duration_us",),
        scale=1e-6,
    ),
    Portable(
        "time_to_first_token",
        Kind.HISTOGRAM,
        "s",
        "TTFT on the server",
        (
            "vllm:time_to_first_token_seconds",
            "sglang:time_to_first_token_seconds",
            "trtllm_time_to_first_token_seconds",
        ),
        of_routers=(
            "dynamo_frontend_time_to_first_token_seconds",
            "llm_d_epp_request_ttft_seconds",
        ),
    ),
    Portable(
        "inter_token_latency",
        Kind.HISTOGRAM,
        "s",
        "Inter-token latency on the server",
        (
            "vllm:inter_token_latency_seconds",
            "vllm:time_per_output_token_seconds",
            "sglang:inter_token_latency_seconds",
            "sglang:time_per_output_token_seconds",
            "trtllm_time_per_output_token_seconds",
        ),
        of_routers=(
            "dynamo_frontend_inter_token_latency_seconds",
            "llm_d_epp_request_streaming_itl_seconds",
        ),
    ),
    Portable(
        "queue_time",
        Kind.HISTOGRAM,
        "s",
        "Time in the server's queue",
        (
            "vllm:request_queue_time_seconds",
            "sglang:queue_time_seconds",
            "tgi_request_queue_duration",
            "trtllm_request_queue_time_seconds",
        ),
    ),
)
"""The portable quantities, in the order of the report."""

DCGM = GpuExporter(
    fields=(
        GpuField("gpu_power_usage", "DCGM_FI_DEV_POWER_USAGE", "W"),
        GpuField(
            "energy_consumption", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "MJ", Kind.COUNTER, 1e-9
        ),
        GpuField("gpu_power_limit", "DCGM_FI_DEV_POWER_MGMT_LIMIT", "W", is_plotted=False),
        GpuField("gpu_utilization", "DCGM_FI_DEV_GPU_UTIL", "%"),
        GpuField("mem_utilization", "DCGM_FI_DEV_MEM_COPY_UTIL", "%"),
        GpuField("gpu_memory_used", "DCGM_FI_DEV_FB_USED", "GB", scale=1.048576e-3),
        GpuField("gpu_memory_free", "DCGM_FI_DEV_FB_FREE", "GB", scale=1.048576e-3),
        GpuField("gpu_temperature", "DCGM_FI_DEV_GPU_TEMP", "°C"),
        GpuField("sm_clock_frequency", "DCGM_FI_DEV_SM_CLOCK", "MHz"),
        GpuField("max_sm_clock_frequency", "DCGM_FI_DEV_MAX_SM_CLOCK", "MHz", is_plotted=False),
        GpuField("clocks_event_reasons", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "", is_plotted=False),
        GpuField(
            "clocks_event_reasons", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "", is_plotted=False
        ),
        GpuField("sm_utilization", "DCGM_FI_PROF_SM_ACTIVE", "ratio"),
        GpuField("tensor_utilization", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "ratio"),
        GpuField("dram_utilization", "DCGM_FI_PROF_DRAM_ACTIVE", "ratio"),
        GpuField("xid_errors", "DCGM_FI_DEV_XID_ERRORS", ""),
        GpuField("power_violation", "DCGM_FI_DEV_POWER_VIOLATION", "µs", Kind.COUNTER, 1e-3),
        GpuField("thermal_violation", "DCGM_FI_DEV_THERMAL_VIOLATION", "µs", Kind.COUNTER, 1e-3),
    ),
    no_values=frozenset(
        float(blank + reason) for blank in (2**31 - 16, 2**47, 2**63 - 16) for reason in range(4)
    ),
    host="Hostname",
    uuid="UUID",
    index="gpu",
    model="modelName",
    partition="GPU_I_ID",
    pod_labels={
        "app.kubernetes.io/name": ("dcgm-exporter", "gke-managed-dcgm-exporter"),
        "app": ("nvidia-dcgm-exporter", "dcgm-exporter"),
    },
    port=9400,
)
"""NVIDIA's exporter, with the labels of its chart, of GKE and of the GPU operator.

Violations are times in which the clock was held down, in nanoseconds, although the help texts of
older exporters say microseconds. Older exporters write DCGM's special values for blank, not found,
not supported and not permitted: 32-bit integers, 64-bit integers and floating point numbers
(dcgm_structs.h)."""

AMD = GpuExporter(
    fields=(
        GpuField("gpu_power_usage", "gpu_package_power", "W"),
        GpuField("gpu_power_usage", "gpu_average_package_power", "W"),
        GpuField("energy_consumption", "gpu_energy_consumed", "MJ", Kind.COUNTER, 1e-12),
        GpuField("gpu_utilization", "gpu_gfx_activity", "%"),
        GpuField("mem_utilization", "gpu_umc_activity", "%"),
        GpuField("gpu_memory_used", "gpu_used_vram", "GB", scale=1.048576e-3),
        GpuField("gpu_memory_free", "gpu_free_vram", "GB", scale=1.048576e-3),
        GpuField("gpu_temperature", "gpu_junction_temperature", "°C"),
        GpuField("gpu_temperature", "gpu_edge_temperature", "°C"),
        GpuField("power_violation_share", "gpu_violation_ppt_residency_percentage", "%"),
        GpuField(
            "thermal_violation_share", "gpu_violation_socket_thermal_residency_percentage", "%"
        ),
    ),
    no_values=frozenset((float(2**16 - 1), float(2**32 - 1), float(2**64 - 1))),
    host="hostname",
    uuid="serial_number",
    index="gpu_id",
    model="card_model",
    pod_labels={
        "app.kubernetes.io/name": ("metrics-exporter",),
        "app": ("amdgpu-metrics-exporter", "amd-device-metrics-exporter"),
    },
    port=5000,
)
"""AMD's device-metrics-exporter, with the labels of its chart. If two families have the same
meaning, the first is that of MI300 and later, the second that of MI200. Energy is in µJ, memory in
MiB. Missing values are represented by the largest number of their width. A partitioned GPU counts
once, by its serial number."""

GPU_EXPORTERS = (DCGM, AMD)
"""The exporters whose pages are supported and that are discovered in a cluster."""
GPU_FIELDS = tuple({f.name: f for each in GPU_EXPORTERS for f in each.fields}.values())
"""The distinct fields of GPUs, in the order of the report."""

RANK_LABELS = frozenset(("tp_rank", "pp_rank", "moe_ep_rank"))
"""Labels that distinguish ranks which serve the same requests together."""

_BY_FAMILY: dict[str, list[Portable]] = {}
for _portable in PORTABLE:
    for _family in (*_portable.families, *_portable.of_routers):
        _BY_FAMILY.setdefault(_family, []).append(_portable)
_GPU_BY_FAMILY = {f.family: (each, f) for each in GPU_EXPORTERS for f in each.fields}
_PARTS = ("_bucket", "_sum", "_count")


def family_of(series: Series) -> str:
    """Return the name of a series' family as in `PORTABLE`, without the suffix of a histogram's
    part; empty if it is not portable."""
    name = series.name.removesuffix("_total")
    found = _BY_FAMILY.get(name)
    if found is not None and found[0].kind is not Kind.HISTOGRAM:
        return name
    for part in _PARTS:
        base = name.removesuffix(part)
        found = _BY_FAMILY.get(base) if base != name else None
        if found is not None and found[0].kind is Kind.HISTOGRAM:
            return base
    return ""


def portables_of(series: Series) -> Sequence[Portable]:
    """Return the portable quantities to which a series contributes. Empty for SGLang's series of
    single priorities, which it reports in addition to the total."""
    if series.label("priority") and series.name.startswith("sglang:"):
        return ()
    return _BY_FAMILY.get(family_of(series), ())


def gpu_field_of(series: Series) -> GpuField | None:
    """Return the GPU field of a series; None if it is not one."""
    found = _GPU_BY_FAMILY.get(series.name)
    return None if found is None else found[1]


def exporter_of(series: Series) -> GpuExporter | None:
    """Return the kind of exporter of a series; None if it is not a GPU field."""
    found = _GPU_BY_FAMILY.get(series.name)
    return None if found is None else found[0]


def is_blank(series: Series, value: float) -> bool:
    """Return whether a number represents a missing value of a GPU field, or is infinite, which is
    not a value of any known series."""
    if isinf(value):
        return is_known(series)
    exporter = exporter_of(series)
    return exporter is not None and value in exporter.no_values


def is_known(series: Series) -> bool:
    """Return whether a series has priority if not all can be kept."""
    return bool(portables_of(series)) or gpu_field_of(series) is not None


def family_type(series: Series, types: dict[str, str]) -> tuple[str, str]:
    """Return the family of a series and its type, as the page declares them."""
    name = series.name
    if name in types:
        return name, types[name]
    if (base := name.removesuffix("_total")) in types:
        return name, types[base]
    for part in _PARTS:
        base = name.removesuffix(part)
        if base != name and types.get(base) in ("histogram", "summary"):
            return base, types[base]
    return name, "unknown"
