"""Passes the finished plan of a stack from the runner to the Pulumi program.

The runner plans with facts about the cluster, writes the plan into a private file, and passes the
file's path to the program. Plain `pulumi up` has no such file: the program then calls the function
that the runner calls too (`workloads.stacks.plan_stack`). A plan contains the keys of secrets in
Pulumi's config, but no values of secrets.
"""

from pathlib import Path
from typing import Any

import msgspec

from aiperf_svc.config.base import Model
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.plan.run_id import non_defaults
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.workloads.registry import parse_benchmark

PLAN = "AIPERF_PLAN"
"""Environment variable of the program with the path of the file."""
FILE = "plan.json"


def encode_plan(plan: StackPlan) -> bytes:
    content = {name: getattr(plan, name) for name in plan.__struct_fields__}
    # The kind of the config chooses its model, so parse it like a user's file.
    content["config"] = non_defaults(plan.config)
    return msgspec.json.encode(content, enc_hook=_from_model)


def decode_plan(data: bytes) -> StackPlan:
    """Return the plan that `encode_plan` wrote. Raises ConfigError, msgspec.DecodeError."""
    content = msgspec.json.decode(data)
    content["config"] = parse_benchmark(content["config"], "the plan")
    for field in msgspec.structs.fields(StackPlan):
        if field.name != "config":
            made = msgspec.convert(content[field.name], field.type, dec_hook=_to_model)
            content[field.name] = made
    return StackPlan(**content)


def write_plan(folder: Path, plan: StackPlan) -> Path:
    """Write the plan into a private folder, and return the path of the file. Raises
    EnvironmentProblem."""
    path = folder / FILE
    try:
        path.write_bytes(encode_plan(plan))
    except OSError as error:
        raise EnvironmentProblem(f"cannot write {path}: {error.strerror or error}") from error
    return path


def read_plan(path: Path) -> StackPlan:
    """Read the plan. Raises EnvironmentProblem if the file is not a plan of this version."""
    try:
        return decode_plan(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise EnvironmentProblem(f"{PLAN}: cannot read the plan in {path}: {error}") from error


def _from_model(value: Any) -> Any:
    if isinstance(value, Model):
        return value.model_dump(mode="json", by_alias=True)
    raise NotImplementedError(f"a plan has no {type(value).__name__}")


def _to_model(kind: type[Any], value: Any) -> Any:
    if issubclass(kind, Model):
        return kind.model_validate(value)
    raise NotImplementedError(f"a plan has no {kind.__name__}")
