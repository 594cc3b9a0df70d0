"""JSON Schemas of configs, stack files and result files, generated from the models that read them.

Editors use the schema of a config to complete and check keys. It must never refuse a valid config,
so it is less strict than `aiperf-svc validate`: it requires no key, because an experiment or a list
of targets may set it, and accepts any text as a time, size or share.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, models_json_schema

from aiperf_svc import __version__
from aiperf_svc.adapters.exports import aiperf_exports, inference_file
from aiperf_svc.adapters.exports.aiperf_sweep_export import AggregateFile, SweepFile
from aiperf_svc.adapters.exports.joint_export import JointExperimentResult
from aiperf_svc.adapters.exports.manifest import Manifest
from aiperf_svc.adapters.exports.result_files import VerdictFile
from aiperf_svc.cli.key_docs import REQUIRED, describe_fields
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load_config import STACK_KEY
from aiperf_svc.core.experiments.experiment_result import ExperimentResult
from aiperf_svc.core.lines.request_line import Inputs, RequestLine
from aiperf_svc.core.qualify.result import Qualification
from aiperf_svc.core.quality.gate import Answer
from aiperf_svc.core.results.joint_result import Joint
from aiperf_svc.core.results.provenance import Provenance
from aiperf_svc.core.results.tool_result import ToolResult
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.workloads.registry import kinds, tool

MODE: JsonSchemaMode = "validation"
DRAFT = "https://json-schema.org/draft/2020-12/schema"
STACK_SETTINGS = {
    "context": "Context of the kubeconfig.",
    "kubeconfig": "Path of the kubeconfig.",
    "clusterIdentifier": "UID of the namespace kube-system. Another cluster is refused.",
    "clusters": "Clusters in which the stack runs at the same time.",
    "generation": "A new number starts a new run of the same config.",
    "target": "Name of the target, of a config with several.",
    "shape": "Number of the shape, of an experiment whose trials need different pods.",
    "providerVersion": "Version of Pulumi's Kubernetes provider.",
}
"""Keys of a stack file besides the config, without their prefix `aiperf:`."""


def schema(args: argparse.Namespace) -> int:
    """Print the schema of a file."""
    print(json.dumps(json_schema(args.name), indent=1, ensure_ascii=False))
    return 0


class _ConfigSchema(GenerateJsonSchema):
    """Schema of a config file: the values that validators accept, and the fields' docstrings."""

    def function_before_schema(self, schema: Any) -> Json:
        """Return the schema of a value that a function converts first; a number may have a unit."""
        inner = self.generate_inner(schema["schema"])
        if schema["schema"]["type"] in ("int", "float"):
            return {"type": ["number", "string"]}
        return inner if schema["schema"]["type"] == "model-fields" else {}

    def model_schema(self, schema: Any) -> Json:
        """Return the schema of a model, with the description and default of each key."""
        found = super().model_schema(schema)
        found.pop("title", None)
        for name, doc in describe_fields(schema["cls"]).items():
            default = f"Default: {doc.default}" if doc.default not in ("", REQUIRED) else ""
            key = schema["cls"].model_fields[name].alias or name
            if text := " ".join(filter(None, (doc.text, default))):
                found["properties"][key]["description"] = text
        return found

    def str_schema(self, schema: Any) -> Json:
        """Return the schema of a text, without a pattern that only pydantic supports."""
        found = super().str_schema(schema)
        if "\\x{" in found.get("pattern", ""):
            del found["pattern"]
        return found

    def default_schema(self, schema: Any) -> Json:
        """Return the schema without its default, which the description contains."""
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return false, because the key is the title."""
        return False

    def field_is_required(self, field: Any, total: bool) -> bool:
        """Return false, because a trial or a target may set the key."""
        return False


def _config() -> Json:
    """Return the schema of a plain config of any kind."""
    tools = {kind: tool(kind).config_model() for kind in kinds()}
    models: list[type[BaseModel]] = [BenchmarkConfig, *tools.values()]
    by_model, found = models_json_schema(
        [(model, MODE) for model in models], schema_generator=_ConfigSchema
    )
    refs = {model: by_model[model, MODE] for model in models}
    any_of: Json = refs[BenchmarkConfig]
    for kind, model in tools.items():
        named = {
            "workload": {
                "anyOf": [
                    {"const": kind},
                    {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
                ]
            }
        }
        is_kind = {"properties": named, "required": ["workload"]}
        any_of = {"if": is_kind, "then": refs[model], "else": any_of}
    return {"type": "object", **any_of, "$defs": found["$defs"]}


def _stack() -> Json:
    """Return the schema of a stack file. It may contain keys of other packages."""
    config = _config()
    definitions = config.pop("$defs")
    settings = {f"aiperf:{key}": {"description": text} for key, text in STACK_SETTINGS.items()}
    return {
        "type": "object",
        "properties": {"config": {"type": "object", "properties": {STACK_KEY: config, **settings}}},
        "$defs": definitions,
    }


def _from_struct(struct: type[msgspec.Struct]) -> Callable[[], Json]:
    return lambda: msgspec.json.schema(struct)


def _joint() -> Json:
    """Return the schema of the results of several runs, or of an experiment across several runs."""
    forms, definitions = msgspec.json.schema_components(
        (Joint, JointExperimentResult), ref_template="#/$defs/{name}"
    )
    return {"anyOf": list(forms), "$defs": definitions}


SCHEMAS: Mapping[str, Callable[[], Json]] = {
    "stack": _stack,
    "config": _config,
    "profile_export_aiperf": inference_file.json_schema,
    "profile_export_aiperf_timeslices": aiperf_exports.slices_schema,
    "profile_export_aiperf_aggregate": _from_struct(AggregateFile),
    "profile_export_aiperf_sweep": _from_struct(SweepFile),
    "results": _from_struct(ToolResult),
    "experiment": _from_struct(ExperimentResult),
    "qualification": _from_struct(Qualification),
    "joint": _joint,
    "verdict": _from_struct(VerdictFile),
    "manifest": _from_struct(Manifest),
    "provenance": _from_struct(Provenance),
    "quality": _from_struct(Answer),
    "profile_export": _from_struct(RequestLine),
    "inputs": _from_struct(Inputs),
}
"""Functions that create the schemas, by name of the file."""


CONFIGS = ("stack", "config")
"""Files that users write."""


def json_schema(name: str) -> Json:
    """Return one of `SCHEMAS`, with this program's version in its id."""
    head = {"$schema": DRAFT, "$id": f"urn:aiperf-svc:{__version__}:{name}"}
    found = {**head, **SCHEMAS[name]()}
    if name not in CONFIGS:
        for each in found["$defs"].values():
            for field in each.get("properties", {}).values():
                # The default that a reader assumes for a missing key.
                field.pop("default", None)
    return found
