"""`aiperf-svc workloads`: lists the kinds of workloads and the keys of each."""

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from rich.console import Console

from aiperf_svc import __version__
from aiperf_svc.adapters.terminal.output import console_on, print_json
from aiperf_svc.adapters.terminal.tables import text_table
from aiperf_svc.cli.key_docs import describe_fields
from aiperf_svc.config.workload import WorkloadSpec
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.workloads.registry import kinds, tool
from aiperf_svc.workloads.tool import ToolWorkload, default_image


def workloads(args: argparse.Namespace) -> int:
    """Print the list, or describe one kind."""
    described = [describe(tool(args.kind))] if args.kind else list(_all())
    if args.json:
        content: Any = described[0] if args.kind else described
        print_json(content)
    elif args.kind:
        with console_on(sys.stdout) as console:
            _print_kind(described[0], console)
    else:
        width = max(len(each["kind"]) for each in described)
        for each in described:
            print(f"{each['kind']:<{width}}  {each['summary']}")
    return int(ExitCode.OK)


def _all() -> Iterator[dict[str, Any]]:
    """Yield every kind. A kind whose package cannot be imported is reported on standard error."""
    for kind in kinds():
        try:
            yield describe(tool(kind))
        except ConfigError as error:
            print(f"warning: {error}", file=sys.stderr)


def describe(found: ToolWorkload[Any]) -> dict[str, Any]:
    """Return the complete description of a kind."""
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
    for name, (text, choices, default) in describe_fields(model).items():
        if name != "kind":
            listed = f"{', '.join(choices[:-1])} or {choices[-1]}. " if choices else ""
            yield {"key": name, "default": default, "text": f"{listed}{text}".strip()}


def _print_kind(described: dict[str, Any], console: Console) -> None:
    console.print(f"{described['kind']}: {described['summary']}")
    keys = [(key["key"], key["default"], key["text"]) for key in described["keys"]]
    console.print(text_table(("key", "default", ""), keys, texts=range(3)))
    metrics = [(m["tag"], m["unit"], m["better"], m["formula"]) for m in described["metrics"]]
    if metrics:
        head = ("metric", "unit", "better", "from")
        console.print(text_table(head, metrics, texts=range(4)))
    for each in described["tools"]:
        package = f" (Debian package {each['package']})" if each["package"] else ""
        console.print(f"needs {each['name']}{package}")
    if described["image"]:
        console.print(f"runs in {described['image']}, or in workload.image", soft_wrap=True)
