"""`profile_export_aiperf.json`: AIPerf's schema 1.4, with our own keys beside its own.

AIPerf's keys keep its meaning. Ours: `p99_9`, `unreliable`, `censored_share`, `beyond` and
`relative_error` within a metric, and one object `aiperf_svc` with verdict, accounts, finish reasons
and SLO.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from aiperf_svc.core.events.report import Disturbance
from aiperf_svc.core.quality.gate import QualityResult
from aiperf_svc.core.records.accounts import Accounts
from aiperf_svc.core.results.cache_stats import CacheUse
from aiperf_svc.core.results.inference_result import (
    AddressFacts,
    DatasetFacts,
    ErrorCount,
    GroupStats,
    Hook,
    InferenceResult,
    RunLayout,
    SteadyStats,
    TurnOverflow,
)
from aiperf_svc.core.results.run_result import MetricStats
from aiperf_svc.core.results.slo_results import ObjectiveBatches, ObjectiveResult, TierResult
from aiperf_svc.core.scaling.report import ScalingResult
from aiperf_svc.core.telemetry.system_report import SourceReport, SystemReport
from aiperf_svc.core.verdict.check_result import Reason, Severity
from aiperf_svc.core.verdict.health_log import Health
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.domain.metric_catalog import METRICS

SCHEMA_VERSION = "1.4"


class _System(msgspec.Struct, frozen=True, kw_only=True):
    """A `SystemReport`, with the checks that did not pass."""

    verdict: Severity
    reasons: tuple[Reason, ...]
    checks: tuple[Reason, ...]
    metrics: dict[str, float]
    sources: tuple[SourceReport, ...]


class _Topology(msgspec.Struct, frozen=True, kw_only=True):
    """A `RunLayout`. Without a dataset, the file has an empty object."""

    layout: str = ""
    workers: int = 0
    record_processors: int = 0
    raw_route: str = ""
    dataset: msgspec.Raw = msgspec.Raw(b"{}")


_Group = dict[str, str | MetricStats]
"""Metrics by tag, and the name of the target or model by `url` or `model`."""


class _OwnPart(msgspec.Struct, frozen=True, kw_only=True):
    """The object `aiperf_svc`. The order of the fields is that of the keys."""

    version: str = "unknown"
    verdict: Severity
    cause: str = ""
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()
    slo: tuple[ObjectiveResult, ...] = ()
    goodput_tiers: tuple[TierResult, ...] | UnsetType = UNSET
    slo_batches: tuple[ObjectiveBatches, ...] = ()
    early_end: str | UnsetType = UNSET
    accounts: Accounts = Accounts()
    finish_reasons: dict[str, int] = {}
    lost_services: tuple[str, ...] = ()
    health: tuple[Health, ...] = ()
    topology: _Topology = _Topology()
    target_addresses: tuple[AddressFacts, ...] = ()
    hooks: tuple[Hook, ...] | UnsetType = UNSET
    scaling: ScalingResult | UnsetType = UNSET
    events: tuple[Disturbance, ...] | UnsetType = UNSET
    config: dict[str, Any] = {}
    targets: tuple[_Group, ...] | UnsetType = UNSET
    models: tuple[_Group, ...] | UnsetType = UNSET
    quality: QualityResult | UnsetType = UNSET
    steady_state: SteadyStats | UnsetType = UNSET
    cache: CacheUse | UnsetType = UNSET
    context_overflows: tuple[TurnOverflow, ...] | UnsetType = UNSET
    system: _System | UnsetType = UNSET


class _RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    benchmark_id: str
    random_seed: int
    trial: int = 0
    cli_command: str = ""


class _AiperfPart(msgspec.Struct, frozen=True, kw_only=True):
    """AIPerf's keys beside the metrics."""

    benchmark_id: str = ""
    input_config: msgspec.Raw = msgspec.Raw(b"{}")
    run_info: _RunInfo | None = None
    was_cancelled: bool = False
    is_complete: bool = True
    error_summary: tuple[ErrorCount, ...] = ()
    start_time: str = ""
    end_time: str = ""
    aiperf_svc: _OwnPart


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


def _own_part(result: InferenceResult) -> _OwnPart:
    dataset = msgspec.Raw(dataset_json(result.topology.dataset))
    changed = {
        "topology": _Topology(**(_fields(_Topology, result.topology) | {"dataset": dataset})),
        "targets": tuple({"url": each.name, **each.metrics} for each in result.targets),
        "models": tuple({"model": each.name, **each.metrics} for each in result.models),
        "system": result.system and _System(**_fields(_System, result.system)),
    }
    found = _fields(_OwnPart, result) | changed
    return _OwnPart(**{name: value for name, value in found.items() if value})


def _fields(struct: type[msgspec.Struct], source: object) -> dict[str, Any]:
    """Return the values of the fields of a struct that an object has under the same names."""
    names = struct.__struct_fields__
    found = {name: getattr(source, name) for name in names if hasattr(source, name)}
    return {name: value for name, value in found.items() if value is not UNSET}


def dataset_json(dataset: DatasetFacts | None) -> bytes:
    """Return a dataset as it is in results and in the status of a run: an empty object if there is
    none, and without what only some datasets have."""
    if dataset is None:
        return b"{}"
    content = msgspec.structs.asdict(dataset)
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
    has_dataset = bytes(own.topology.dataset) != b"{}"
    dataset = msgspec.json.decode(own.topology.dataset, type=DatasetFacts) if has_dataset else None
    changed = {
        "run_id": rest.benchmark_id,
        "name": str(own.config.get("name", "")),
        "cli_command": rest.run_info.cli_command if rest.run_info else "",
        "start_wall_ns": wall_ns(rest.start_time) if rest.start_time else 0,
        "end_wall_ns": wall_ns(rest.end_time) if rest.end_time else 0,
        "was_cancelled": rest.was_cancelled,
        "is_complete": rest.is_complete,
        "metrics": {
            metric.tag: msgspec.json.decode(parts[metric.tag], type=MetricStats)
            for metric in METRICS
            if metric.tag in parts
        },
        "errors": rest.error_summary,
        "topology": RunLayout(**(_fields(RunLayout, own.topology) | {"dataset": dataset})),
        "targets": tuple(_group(each, "url") for each in own.targets or ()),
        "models": tuple(_group(each, "model") for each in own.models or ()),
        "system": SystemReport(**_fields(SystemReport, own.system)) if own.system else None,
        "aiperf_config": rest.input_config,
    }
    return InferenceResult(**(_fields(InferenceResult, own) | changed))


def _group(group: _Group, name: str) -> GroupStats:
    metrics = {tag: each for tag, each in group.items() if isinstance(each, MetricStats)}
    return GroupStats(name=str(group[name]), metrics=metrics)


def iso_time(wall_ns: int) -> str:
    """Format a time as AIPerf does: UTC without an offset, to the microsecond."""
    seconds, rest_ns = divmod(wall_ns, 10**9)
    moment = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None, microsecond=rest_ns // 1000)
    return moment.isoformat(timespec="microseconds")


def wall_ns(text: str) -> int:
    """Return the time that `iso_time` has formatted, to the microsecond. Raises ValueError."""
    moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    return (int(moment.timestamp()) * 10**6 + moment.microsecond) * 1000


def json_schema() -> Json:
    """Return the JSON Schema of the file: AIPerf's keys, and metrics under any other key."""
    topology = _without_raw("Topology", _Topology, {})
    own = _without_raw("OwnPart", _OwnPart, {_Topology: topology})
    found = msgspec.json.schema(_without_raw("File", _AiperfPart, {_OwnPart: own}))
    metric = msgspec.json.schema(MetricStats)
    definitions = {**found["$defs"], **metric["$defs"]}
    file = definitions["File"]
    file["properties"] |= {"schema_version": {"const": SCHEMA_VERSION}, "aiperf_version": {}}
    file["additionalProperties"] = {"$ref": metric["$ref"]}
    return {"$ref": found["$ref"], "$defs": definitions}


def _without_raw(name: str, struct: type, changed: Mapping[Any, type]) -> type:
    """Return the same struct for a schema, in which a part that is kept as JSON is any value."""
    fields = msgspec.structs.fields(struct)
    types = {msgspec.Raw: Json, **changed}
    given = [(each.name, types.get(each.type, each.type), each.required) for each in fields]
    return msgspec.defstruct(
        name,
        [(field, kind) if required else (field, kind, None) for field, kind, required in given],
        kw_only=True,
    )
