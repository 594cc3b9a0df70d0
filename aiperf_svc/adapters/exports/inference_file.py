"""`profile_export_aiperf.json`: AIPerf's schema 1.4, with additional keys.

AIPerf's keys keep their meaning. The additional keys are `p99_9`, `unreliable`, `censored_share`,
`beyond` and `relative_error` in a metric, and the object `aiperf_svc` with the verdict, accounts,
finish reasons and SLO.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from types import NoneType
from typing import Any, get_args

import msgspec
from msgspec.structs import asdict

from aiperf_svc.core.results.inference_result import (
    DatasetFacts,
    ErrorCount,
    InferenceResult,
    RunLayout,
)
from aiperf_svc.core.results.run_result import MetricStats
from aiperf_svc.core.telemetry.system_report import SystemReport
from aiperf_svc.core.verdict.check_result import Reason, Severity
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.domain.metric_catalog import METRICS

SCHEMA_VERSION = "1.4"


_OWN = (
    *("version", "verdict", "cause", "reasons", "notes", "slo", "goodput_tiers", "slo_batches"),
    *("early_end", "accounts", "finish_reasons", "lost_services", "health", "topology"),
    *("target_addresses", "hooks", "scaling", "events", "config", "targets", "models", "quality"),
    *("steady_state", "cache", "context_overflows", "system"),
)
"""Keys of the object `aiperf_svc`, in order: fields of `InferenceResult`."""
_MAY_BE_ABSENT = {
    *("goodput_tiers", "early_end", "hooks", "scaling", "events", "targets", "models", "quality"),
    *("steady_state", "cache", "context_overflows", "system"),
}
"""Keys that the file has only if they are not empty."""
_Group = dict[str, str | MetricStats]
"""Metrics by tag, and the name of the target or model by `url` or `model`."""


class _RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    benchmark_id: str
    random_seed: int
    trial: int = 0
    cli_command: str = ""


class _AiperfPart(msgspec.Struct, frozen=True, kw_only=True):
    """AIPerf's keys besides the metrics."""

    benchmark_id: str = ""
    input_config: msgspec.Raw = msgspec.Raw(b"{}")
    run_info: _RunInfo | None = None
    was_cancelled: bool = False
    is_complete: bool = True
    error_summary: tuple[ErrorCount, ...] = ()
    start_time: str = ""
    end_time: str = ""
    aiperf_svc: dict[str, msgspec.Raw]


def encode(result: InferenceResult) -> bytes:
    """Return the file's content in one line."""
    content: Mapping[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "aiperf_version": f"aiperf-svc {result.version}",
        "benchmark_id": result.run_id,
        **result.metrics,
        "input_config": result.aiperf_config,
        "run_info": _RunInfo(
            benchmark_id=result.run_id,
            random_seed=result.config.get("random_seed", 0),
            cli_command=result.cli_command,
        ),
        "was_cancelled": result.was_cancelled,
        "is_complete": result.is_complete,
        "error_summary": result.errors,
        "start_time": iso_time(result.start_wall_ns),
        "end_time": iso_time(result.end_wall_ns),
        "aiperf_svc": _own_part(result),
    }
    return msgspec.json.encode(content)


def _own_part(result: InferenceResult) -> dict[str, object]:
    layout, system = result.topology, result.system
    found = {name: getattr(result, name) for name in _OWN} | {
        # Without a dataset, the file has an empty object.
        "topology": asdict(layout) | {"dataset": msgspec.Raw(dataset_json(layout.dataset))},
        "targets": [{"url": each.name, **each.metrics} for each in result.targets],
        "models": [{"model": each.name, **each.metrics} for each in result.models],
        "system": system
        and {"verdict": system.verdict, "reasons": system.reasons, **asdict(system)},
    }
    return {name: value for name, value in found.items() if value or name not in _MAY_BE_ABSENT}


def dataset_json(dataset: DatasetFacts | None) -> bytes:
    """Return a dataset as it appears in results and in the status of a run: an empty object if
    there is none. Keys that only some datasets have are optional."""
    if dataset is None:
        return b"{}"
    content = asdict(dataset)
    for name in ("forced_output_length", "streams", "theoretical_prefix_cache_hit"):
        if content[name] is None:
            del content[name]
    if not dataset.has_random_text:
        del content["has_random_text"]
    return msgspec.json.encode(content)


def decode(data: bytes) -> InferenceResult:
    """Return the results in the content of a file. Raises msgspec.DecodeError, and ValueError."""
    rest = msgspec.json.decode(data, type=_AiperfPart)
    parts = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    own = rest.aiperf_svc
    layout = msgspec.json.decode(own.get("topology", b"{}"), type=dict[str, msgspec.Raw])
    if bytes(layout.get("dataset", b"{}")) == b"{}":
        layout["dataset"] = msgspec.Raw(b"null")
    config = msgspec.json.decode(own.get("config", b"{}"), type=dict[str, Any])
    changed = {
        "run_id": rest.benchmark_id,
        "name": str(config.get("name", "")),
        "cli_command": rest.run_info.cli_command if rest.run_info else "",
        "start_wall_ns": wall_ns(rest.start_time) if rest.start_time else 0,
        "end_wall_ns": wall_ns(rest.end_time) if rest.end_time else 0,
        "was_cancelled": rest.was_cancelled,
        "is_complete": rest.is_complete,
        "metrics": {metric.tag: parts[metric.tag] for metric in METRICS if metric.tag in parts},
        "errors": rest.error_summary,
        "config": config,
        "topology": layout,
        "targets": _groups(own, "targets", "url"),
        "models": _groups(own, "models", "model"),
        "aiperf_config": rest.input_config,
    }
    usual = {"version": "unknown", "cause": "", "slo": ()}
    return msgspec.json.decode(msgspec.json.encode(usual | own | changed), type=InferenceResult)


def _groups(own: dict[str, msgspec.Raw], key: str, name: str) -> list[dict[str, object]]:
    found = msgspec.json.decode(own.get(key, b"[]"), type=list[_Group])
    return [{"name": each.pop(name), "metrics": each} for each in found]


def iso_time(wall_ns: int) -> str:
    """Format a time as AIPerf does: UTC without an offset, to the microsecond."""
    seconds, rest_ns = divmod(wall_ns, 10**9)
    moment = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None, microsecond=rest_ns // 1000)
    return moment.isoformat(timespec="microseconds")


def wall_ns(text: str) -> int:
    """Parse a time from `iso_time`, to the microsecond. Raises ValueError."""
    moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    return (int(moment.timestamp()) * 10**6 + moment.microsecond) * 1000


def json_schema() -> Json:
    """Return the JSON Schema of the file: AIPerf's keys, and metrics under any other key."""
    layout = _optional("Topology", _types(RunLayout) | {"dataset": Json})
    system = {"verdict": Severity, "reasons": tuple[Reason, ...], **_types(SystemReport)}
    groups = tuple[_Group, ...]
    changed = {
        "topology": layout,
        "targets": groups,
        "models": groups,
        "system": msgspec.defstruct("System", list(system.items())),
    }
    types = _types(InferenceResult) | changed
    own = _optional("OwnPart", {name: _not_none(types[name]) for name in _OWN}, required="verdict")
    changed = {"input_config": Json, "aiperf_svc": own}
    file = _optional("File", _types(_AiperfPart) | changed, required="aiperf_svc")
    found, metric = msgspec.json.schema(file), msgspec.json.schema(MetricStats)
    definitions = {**found["$defs"], **metric["$defs"]}
    file = definitions["File"]
    file["properties"] |= {"schema_version": {"const": SCHEMA_VERSION}, "aiperf_version": {}}
    file["additionalProperties"] = {"$ref": metric["$ref"]}
    return {"$ref": found["$ref"], "$defs": definitions}


def _types(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {each.name: each.type for each in msgspec.structs.fields(struct)}


def _not_none(kind: Any) -> Any:
    """Return a type without None."""
    kinds = [each for each in get_args(kind) if each is not NoneType]
    return kinds[0] if NoneType in get_args(kind) else kind


def _optional(name: str, types: Mapping[str, Any], *, required: str = "") -> Any:
    """Return a struct with these fields for a schema."""
    fields = [(key, kind) if key == required else (key, kind, None) for key, kind in types.items()]
    return msgspec.defstruct(name, fields, kw_only=True)
