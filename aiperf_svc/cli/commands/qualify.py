"""`aiperf-svc qualify`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiperf_svc.cli.commands import run as run_command
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.json_objects import Json

if TYPE_CHECKING:
    from aiperf_svc.cli.flag_config import Draft

DESCRIPTION = """Qualify the nodes of a cluster: measure each alone, in pairs and together, and find
the node or the path that is slow.

  aiperf-svc qualify STACK [--limits FILE] [--baseline FOLDER]
  aiperf-svc qualify STACK --local          with ranks as processes of this machine
  aiperf-svc qualify --label FOLDER         label the nodes with the verdicts of a qualification

The stack file has `workload: {kind: qualify, stages: [...]}`. docs/qualify.md explains the
verdicts. Exit code 4: a node or a path has failed."""
KIND = "qualify"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `run`, limits, the baseline and labels."""
    run_command.add_arguments(parser, is_stack_needed=False)
    group = parser.add_argument_group("nodes")
    group.add_argument(
        "--limits",
        metavar="FILE",
        type=Path,
        help="YAML list of limits, added to those of the stack file. Those of other GPU products "
        "and fabrics are ignored.",
    )
    group.add_argument(
        "--baseline",
        metavar="FOLDER",
        type=Path,
        help="Results of an earlier qualification with which the nodes are compared.",
    )
    group.add_argument(
        "--label",
        metavar="FOLDER",
        type=Path,
        help="Measure nothing; set the labels aiperf.dev/qualified and aiperf.dev/qualified-at of "
        "the nodes of this qualification.",
    )


def run(args: argparse.Namespace) -> int:
    """Qualify, or label the nodes of an earlier qualification."""
    if args.label is not None:
        if args.stack is not None:
            raise ConfigError(f"--label: labels nodes and measures nothing; leave out {args.stack}")
        return _label(args)
    if args.stack is None:
        raise ConfigError("name a stack, or with --label the folder of a qualification")
    return run_command.measure(args, lambda draft: _complete(draft, args))


def _complete(draft: "Draft", args: argparse.Namespace) -> None:
    """Add the limits and the baseline to the config. Raises ConfigError."""
    from aiperf_svc.workloads.registry import kind_of

    if (kind := kind_of(draft.data)) != KIND:
        raise ConfigError(
            f"{draft.source}: workload.kind: {kind!r}: aiperf-svc qualify runs the kind {KIND}; "
            "aiperf-svc run runs any"
        )
    spec: Json = draft.data["workload"]
    if args.limits is not None:
        spec["limits"] = [*(spec.get("limits") or []), *_limits(args.limits)]
    if args.baseline is not None:
        from aiperf_svc.adapters.exports.qualify_export import baseline_of, read_qualification

        spec["baseline"] = baseline_of(read_qualification(args.baseline))


def _limits(path: Path) -> list[Any]:
    from pydantic import TypeAdapter, ValidationError

    from aiperf_svc.config.yaml_files import read_yaml
    from aiperf_svc.workloads.qualify.spec import CheckLimit

    found = read_yaml(path)
    if not isinstance(found, list):
        raise ConfigError(f"{path}: expected a list of limits, not {type(found).__name__}")
    try:
        TypeAdapter(list[CheckLimit]).validate_python(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        text = first["msg"].removeprefix("Value error, ").replace("{", "").replace("}", "")
        raise ConfigError(f"{path}: {where}: {text}") from error
    return found


def _label(args: argparse.Namespace) -> int:
    import os

    from aiperf_svc.adapters.cluster.api.connection import connect
    from aiperf_svc.adapters.cluster.node_labels import label_nodes
    from aiperf_svc.adapters.exports.qualify_export import read_qualification
    from aiperf_svc.adapters.terminal.output import say
    from aiperf_svc.runner import signals
    from aiperf_svc.runner.stack.request import CONTEXT

    found = read_qualification(args.label)
    context = args.context or os.environ.get(CONTEXT)

    async def label() -> None:
        async with connect(kubeconfig=args.kubeconfig, context=context) as cluster:
            await label_nodes(cluster, found, say=say)

    signals.run(label())
    return int(ExitCode.OK)
