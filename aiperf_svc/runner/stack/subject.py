"""What a stack measures, in words: a server under a load, or a tool on ranks. Pure."""

from typing import Any

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import DatasetKind
from aiperf_svc.config.load_texts import load_words
from aiperf_svc.config.prompts import Length
from aiperf_svc.config.ranks import Ranks
from aiperf_svc.config.units import format_duration, format_size
from aiperf_svc.config.workload import AnyWorkloadConfig
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.runner.numbers import count

COMMON = ("kind", "image", "env", "secret_env", "files")
"""Keys of a workload that are shown elsewhere, or are too long."""


def title(plan: StackPlan) -> str:
    """Return the name of the run and what it measures."""
    if isinstance(plan.config, BenchmarkConfig):
        endpoint = plan.config.endpoint
        return f"{plan.identity.stack} · {endpoint.url} · {endpoint.model}"
    return f"{plan.identity.stack} · {plan.config.workload.kind} · {_ranks(plan)}"


def rows(plan: StackPlan) -> list[tuple[str, str]]:
    """Return the rows that come first: name and text."""
    if isinstance(plan.config, BenchmarkConfig):
        first = "of the first trial: " if plan.config.experiment else ""
        return [("load", first + load_line(plan)), ("target", _target(plan.config))]
    config = plan.config
    found = [
        ("workload", _workload(config)),
        ("steps", _steps(plan, config)),
        ("ranks", f"{_ranks(plan)}{_nodes(plan, config.deployment.ranks)}"),
        ("network", _network(config.deployment.ranks)),
        ("volume", _volume(config.deployment.ranks)),
    ]
    return [(name, text) for name, text in found if text]


def details(plan: StackPlan) -> list[tuple[str, str]]:
    """Return further facts for a reviewer: name and text, which may be empty."""
    if not isinstance(plan.config, BenchmarkConfig):
        return []
    return [("model", plan.config.endpoint.model), ("tokens", _lengths(plan.config))]


def is_timed(plan: StackPlan) -> bool:
    """Return whether the config says how long the load takes."""
    return plan.times.is_bounded


def load_line(plan: StackPlan) -> str:
    """Return the load in one line."""
    load = plan.inference.load
    words = load_words(load)
    if load.requests is not None:
        words.append(f"{load.requests:,} requests")
    if load.duration is not None:
        words.append(f"for {format_duration(load.duration)}")
    if load.ramp:
        words.append(f"ramp {format_duration(load.ramp)}")
    if load.warmup:
        warm = load.warmup
        parts = [f"{warm.requests:,} requests"] if warm.requests is not None else []
        parts += [f"{warm.conversations:,} conversations"] if warm.conversations else []
        parts += [format_duration(warm.duration)] if warm.duration is not None else []
        words.append(f"after a warmup of {' or '.join(parts)}")
    return ", ".join(words)


def _target(config: BenchmarkConfig) -> str:
    kind = config.deployment.target.kind
    made = "" if kind == "none" else f" ({kind}, made and removed with the stack)"
    return f"{config.endpoint.url}{made}"


def _lengths(config: BenchmarkConfig) -> str:
    dataset = config.dataset
    if dataset.kind is not DatasetKind.SYNTHETIC:
        return f"of {dataset.file or dataset.public or dataset.kind}"
    forced = ", forced" if config.endpoint.force_output_length else ""
    if dataset.mix:
        total = sum(shape.weight for shape in dataset.mix)
        kinds = (
            f"{_in_and_out(shape.input_tokens, shape.output_tokens, forced)}"
            f" ({shape.weight / total:.0%})"
            for shape in dataset.mix
        )
        words = ["; ".join(kinds)]
    else:
        words = [_in_and_out(dataset.input_tokens, dataset.output_tokens, forced)]
    prefix = dataset.prefix
    if prefix.system_tokens or prefix.system_prompt:
        words.append("after a system prompt that all share")
    if prefix.groups:
        words.append(f"after {prefix.groups:,} prefixes of {prefix.tokens:,}")
    if dataset.turns.number != Length(mean=1):
        words.append(f"conversations of {_length(dataset.turns.number)} turns")
    return ", ".join(words)


def _in_and_out(length_in: Length, length_out: Length | None, forced: str) -> str:
    text = f"{_length(length_in)} in"
    return text if length_out is None else f"{text}, {_length(length_out)} out{forced}"


def _length(length: Length) -> str:
    if length.distribution == "uniform":
        return f"{length.min:,} to {length.max:,}"
    spread = f" ± {length.stddev:g}" if length.stddev else ""
    return f"{length.mean:g}{spread}"


def _workload(config: AnyWorkloadConfig) -> str:
    """Return the kind and the keys that were chosen."""
    chosen = config.workload.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    keys = {key: value for key, value in chosen.items() if key not in COMMON}
    said = ", ".join(f"{key} {_said(value)}" for key, value in keys.items())
    return f"{config.workload.kind}: {said}" if said else config.workload.kind


def _said(value: Any) -> str:
    """Return a list, or the keys of a map, in one line."""
    return " ".join(map(str, value)) if isinstance(value, list | dict) else str(value)


def _steps(plan: StackPlan, config: AnyWorkloadConfig) -> str:
    times = count(config.repetitions, "repetition")
    return f"{times}, at most {format_duration(plan.times.load)}"


def _ranks(plan: StackPlan) -> str:
    return count(plan.ranks.replicas if plan.ranks else 0, "rank")


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
