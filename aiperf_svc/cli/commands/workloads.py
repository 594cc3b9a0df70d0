"""`aiperf-svc workloads`: the kinds of workloads, and what each can be told."""

import argparse
import ast
import inspect
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from aiperf_svc import __version__
from aiperf_svc.config.workload import WorkloadSpec
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.workloads.registry import kinds, tool
from aiperf_svc.workloads.tool import ToolWorkload, default_image

if TYPE_CHECKING:
    from rich.console import Console

DESCRIPTION = """List the kinds of workloads, or describe one: its keys with defaults, its metrics,
and what its ranks need.

A workload is measured by a stack file with `workload: {kind: KIND, ...}`, or on this machine by
`aiperf-svc profile --workload KIND KEY=VALUE...`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the kind and the output flags."""
    parser.add_argument("kind", nargs="?", metavar="KIND", help="describe this kind")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the list, or one kind."""
    described = [describe(tool(args.kind))] if args.kind else list(_all())
    if args.json:
        import msgspec

        content: Any = described[0] if args.kind else described
        print(msgspec.json.format(msgspec.json.encode(content)).decode())
    elif args.kind:
        from aiperf_svc.runner.printing import console_on

        with console_on(sys.stdout) as console:
            _print_kind(described[0], console)
    else:
        width = max(len(each["kind"]) for each in described)
        for each in described:
            print(f"{each['kind']:<{width}}  {each['summary']}")
    return int(ExitCode.OK)


def _all() -> Iterator[dict[str, Any]]:
    """Every kind. One whose package cannot be imported is named on standard error."""
    for kind in kinds():
        try:
            yield describe(tool(kind))
        except ConfigError as error:
            print(f"warning: {error}", file=sys.stderr)


def describe(found: ToolWorkload[Any]) -> dict[str, Any]:
    """Return everything that a kind says of itself."""
    spec: type[WorkloadSpec] = found.spec
    return {
        "kind": found.kind,
        "summary": found.summary,
        "keys": list(_keys(spec)),
        "metrics": [
            {
                "tag": metric.tag,
                "unit": metric.unit,
                "better": metric.better,
                "name": metric.name,
                "formula": metric.formula,
            }
            for metric in found.metrics
        ],
        "tools": [{"name": tool.name, "package": tool.package} for tool in found.tools],
        "image": default_image(found.kind, __version__) if found.tools else "",
    }


def _keys(model: type[BaseModel]) -> Iterator[dict[str, Any]]:
    docs = _docs(model)
    for name, field in model.model_fields.items():
        if name != "kind":
            text = f"{_choices(field)} {docs.get(name, '')}".strip()
            yield {"key": name, "default": _default(model, name, field), "text": text}


def _choices(field: FieldInfo) -> str:
    """The words that a key may have, as a sentence; empty where it may have others."""
    annotation = field.annotation
    options = [each for each in (annotation, *get_args(annotation)) if get_origin(each) is Literal]
    words = [str(word) for each in options for word in get_args(each)]
    return f"{', '.join(words[:-1])} or {words[-1]}." if len(words) > 1 else ""


def _default(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    """The default as it is written in a file."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    written = model.model_construct(**{name: value}).model_dump(mode="json", include={name})[name]
    if written is None or written in ({}, []):
        return ""
    if isinstance(written, list):
        return f"[{', '.join(map(str, written))}]"
    return str(written).lower() if isinstance(written, bool) else str(written)


def _docs(model: type[BaseModel]) -> dict[str, str]:
    """The docstring below each field, of the model and those that it extends."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            (definition,) = ast.parse(inspect.getsource(each)).body
            assert isinstance(definition, ast.ClassDef)
            for field, text in pairwise(definition.body):
                match field, text:
                    case (
                        ast.AnnAssign(target=ast.Name(id=name)),
                        ast.Expr(value=ast.Constant(value=str(words))),
                    ):
                        found[name] = " ".join(words.split())
    return found


def _print_kind(described: dict[str, Any], console: "Console") -> None:
    from rich import box
    from rich.table import Table

    console.print(f"{described['kind']}: {described['summary']}")
    keys = Table("key", "default", "", box=box.SIMPLE_HEAD, pad_edge=False)
    for key in described["keys"]:
        keys.add_row(key["key"], key["default"], key["text"])
    console.print(keys)
    if described["metrics"]:
        metrics = Table("metric", "unit", "better", "from", box=box.SIMPLE_HEAD, pad_edge=False)
        for metric in described["metrics"]:
            metrics.add_row(metric["tag"], metric["unit"], metric["better"], metric["formula"])
        console.print(metrics)
    for each in described["tools"]:
        package = f" (Debian package {each['package']})" if each["package"] else ""
        console.print(f"needs {each['name']}{package}")
    if described["image"]:
        console.print(f"runs in {described['image']}, or in workload.image", soft_wrap=True)
