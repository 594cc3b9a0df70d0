"""A benchmark of a tool in the preview of a stack."""

from typing import Any

from aiperf_svc.config.placement import Ranks
from aiperf_svc.config.units import format_duration, format_size
from aiperf_svc.config.workload import AnyWorkloadConfig
from aiperf_svc.plan.stack import StackPlan

COMMON = ("kind", "image", "env", "secret_env", "files")
"""Keys of a workload that are shown elsewhere, or are too long."""


def tool_rows(plan: StackPlan, config: AnyWorkloadConfig) -> list[tuple[str, str]]:
    """Return the first rows: name and text."""
    ranks = config.deployment.ranks
    found = [
        ("workload", _workload(config)),
        ("steps", _steps(plan, config)),
        ("ranks", f"{ranks_text(plan)}{_nodes(plan, ranks)}"),
        ("network", _network(ranks)),
        ("volume", _volume(ranks)),
    ]
    return [(name, text) for name, text in found if text]


def _workload(config: AnyWorkloadConfig) -> str:
    """Return the kind and the keys that were chosen."""
    chosen = config.workload.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    keys = {key: value for key, value in chosen.items() if key not in COMMON}
    text = ", ".join(f"{key} {_in_one_line(value)}" for key, value in keys.items())
    return f"{config.kind}: {text}" if text else config.kind


def _in_one_line(value: Any) -> str:
    """Return a list, or the keys of a map, in one line."""
    return " ".join(map(str, value)) if isinstance(value, list | dict) else str(value)


def _steps(plan: StackPlan, config: AnyWorkloadConfig) -> str:
    times = f"{config.repetitions:,} repetition{'' if config.repetitions == 1 else 's'}"
    return f"{times}, at most {format_duration(plan.times.load)}"


def ranks_text(plan: StackPlan) -> str:
    """Return the number of ranks: `2 ranks`."""
    number = plan.ranks.replicas if plan.ranks else 0
    return f"{number:,} rank{'' if number == 1 else 's'}"


def _nodes(plan: StackPlan, ranks: Ranks) -> str:
    if plan.ranks is not None and plan.ranks.replicas == 1 and isinstance(ranks.nodes, str):
        return ""
    match ranks.nodes:
        case "apart":
            return ", each on a node of its own"
        case "together":
            return ", all on one node"
        case "any":
            return ", on any nodes"
        case names:
            return f", on {', '.join(names)} in turn"


def _network(ranks: Ranks) -> str:
    words = ["the nodes' own"] if ranks.host_network else []
    if ranks.network is not None:
        how = "instead of the pods'" if ranks.network.attach == "default" else "beside the pods'"
        words.append(f"{ranks.network.name}, {how}")
    words += [f"MTU {ranks.mtu:,}"] if ranks.mtu else []
    words += [f"{number} {name}" for name, number in ranks.devices.items()]
    return ", ".join(words)


def _volume(ranks: Ranks) -> str:
    volume = ranks.volume
    if volume is None:
        return ""
    size = format_size(volume.size)
    match volume.kind:
        case "empty-dir":
            return f"{size} of the node's disk for each rank"
        case "host-path":
            return f"{volume.path} of the node"
        case "claim" | "shared-claim":
            whose = "for each rank" if volume.kind == "claim" else "for all ranks"
            storage = f", storage class {volume.storage_class}" if volume.storage_class else ""
            return f"a claim of {size} {whose}{storage}, removed with the stack"
