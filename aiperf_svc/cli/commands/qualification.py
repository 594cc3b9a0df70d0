"""`qualify`: adds the limits and the baseline of its flags."""

import argparse
from pathlib import Path
from typing import Any

from aiperf_svc.adapters.exports.qualify_export import baseline_of, read_qualification
from aiperf_svc.cli.flag_config import Draft
from aiperf_svc.config.load_config import refusal
from aiperf_svc.config.problems import member_problems
from aiperf_svc.config.yaml_files import read_yaml
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.workloads.qualify.spec import CheckLimit
from aiperf_svc.workloads.registry import kind_of

KIND = "qualify"


def complete(draft: Draft, args: argparse.Namespace) -> None:
    """Add the limits and the baseline to the config. Raises ConfigError."""
    if (kind := kind_of(draft.data)) != KIND:
        raise ConfigError(
            f"{draft.source}: workload.kind: {kind!r}: aiperf-svc qualify runs the kind {KIND}; "
            "aiperf-svc run runs any"
        )
    spec: Json = draft.data["workload"]
    if args.limits is not None:
        spec["limits"] = [*(spec.get("limits") or []), *_limits(args.limits)]
    if args.baseline is not None:
        spec["baseline"] = baseline_of(read_qualification(args.baseline))


def _limits(path: Path) -> list[Any]:
    found = read_yaml(path)
    if not isinstance(found, list):
        raise ConfigError(f"{path}: expected a list of limits, each of which begins with `- `")
    if problems := member_problems(found, CheckLimit):
        raise refusal(problems, str(path))
    return found
