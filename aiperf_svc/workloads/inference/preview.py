"""An inference load in the preview of a stack."""

from aiperf_svc.config.agentx import conformance
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import DatasetKind
from aiperf_svc.config.load import Load, describe_load
from aiperf_svc.config.prompts import Length
from aiperf_svc.config.units import format_duration
from aiperf_svc.domain.number_text import count, significant
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.plan.topology import Facts, Topology, plan
from aiperf_svc.protocol.services import Service


def inference_rows(config: BenchmarkConfig) -> list[tuple[str, str]]:
    """Return the first rows: name and text."""
    first = "of the first trial: " if config.experiment else ""
    events = [
        f"{each.do} {each.deployment or each.pool or 'target'} at {format_duration(each.at)}"
        for each in config.events
    ]
    return [
        ("load", first + _load_line(config.load)),
        ("target", _target(config)),
        ("model", config.endpoint.model),
        ("tokens", _lengths(config)),
        *([("events", ", ".join(events))] if events else []),
        *([("rules", conformance(config.model_dump(mode="json")))] if config.scenario else []),
    ]


def sizing_line(stack: StackPlan, config: BenchmarkConfig) -> str:
    """Return the size of the load's pods by the expected load, and by the formula."""
    workers = config.workers
    requests = workers.expected_requests or config.load.peak_rate or 0.0
    update = {"sizing": "formula", "expected_requests": None, "expected_chunks": None}
    by_formula = config.model_copy(update={"workers": workers.model_copy(update=update)})
    other = plan(by_formula, Facts(where="cluster"))
    numbers = {pod.name: pod.total.cpu_millis for pod in stack.services}
    cpu_of = {name: numbers.get(name, 0) for name in (Service.WORKER.value, "record-processor")}

    def size(topology: Topology) -> str:
        counts = (topology.workers, topology.record_processors)
        cpu = sum(n * each for n, each in zip(counts, cpu_of.values(), strict=True)) / 1000
        return f"{counts[0]:,} with {counts[1]:,} record processors, {cpu:,.4g} CPU"

    return (
        f"{size(stack.topology)}: for {requests:,.0f} requests/s and "
        f"{workers.expected_chunks:,.0f} chunks/s, {workers.reserve:.0%} of each core in reserve; "
        f"by the formula {size(other)}"
    )


def _load_line(load: Load) -> str:
    """Return the load in one line."""
    phrases = describe_load(load)
    if load.requests is not None:
        phrases.append(count(load.requests, "request"))
    if load.duration is not None:
        phrases.append(f"for {format_duration(load.duration)}")
    if load.min_duration is not None:
        phrases.append(f"whole passes for at least {format_duration(load.min_duration)}")
    if load.ramp:
        phrases.append(f"ramp {format_duration(load.ramp)}")
    if load.warmup:
        warm = load.warmup
        parts = [count(warm.requests, "request")] if warm.requests is not None else []
        parts += [count(warm.conversations, "conversation")] if warm.conversations else []
        parts += [format_duration(warm.duration)] if warm.duration is not None else []
        phrases.append(f"after a warmup of {' or '.join(parts)}")
    if load.agentic is not None:
        phrases.append("after filling the cache with the session trees that it begins in")
    return ", ".join(phrases)


def _target(config: BenchmarkConfig) -> str:
    kind = config.deployment.target.kind
    made = "" if kind == "none" else f" ({kind}, created and removed with the stack)"
    pools = [f"{name} {pool.replicas:,}" for name, pool in config.deployment.target.pools.items()]
    waited = f", ready with pools {', '.join(pools)}" if pools else ""
    return f"{config.endpoint.url}{made}{waited}"


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
        parts = ["; ".join(kinds)]
    else:
        parts = [_in_and_out(dataset.input_tokens, dataset.output_tokens, forced)]
    prefix = dataset.prefix
    if prefix.system_tokens or prefix.system_prompt:
        parts.append("after a system prompt that all share")
    if prefix.groups:
        parts.append(f"after {prefix.groups:,} prefixes of {prefix.tokens:,}")
    if dataset.turns.number != Length(mean=1):
        parts.append(f"conversations of {_length(dataset.turns.number)} turns")
    return ", ".join(parts)


def _in_and_out(length_in: Length, length_out: Length | None, forced: str) -> str:
    text = f"{_length(length_in)} in"
    return text if length_out is None else f"{text}, {_length(length_out)} out{forced}"


def _length(length: Length) -> str:
    if length.distribution == "uniform":
        return f"{length.min:,} to {length.max:,}"
    spread = f" ± {significant(length.stddev)}" if length.stddev else ""
    return f"{significant(length.mean)}{spread}"
