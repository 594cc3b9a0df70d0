"""How well a value grows with the number of processes that share the work.

The efficiency of n processes is the value of n, divided by n times the value of one. The trial with
the fewest processes stands for the one, because one process may not have room for the work. Trials
are compared that differ in the number of processes only.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from aiperf_svc.core.compare.measured_run import RowKey
from aiperf_svc.core.experiments.combinations import (
    Aggregate,
    Combination,
    identity,
    is_number,
)
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.domain.json_objects import Parameters

EFFICIENCY = RowKey("parallel_efficiency", "avg")


def efficiency_info(scaled: MetricInfo) -> MetricInfo:
    """Describe the efficiency that follows from a metric."""
    return MetricInfo(
        tag=EFFICIENCY.tag,
        name="Parallel efficiency",
        unit="ratio",
        formula=f"{scaled.tag} of each process, relative to that with the fewest processes",
    )


def with_efficiency(combinations: Sequence[Combination], scaled: MetricInfo) -> list[Combination]:
    """Return the combinations, with their efficiency where the number of processes varies."""
    groups: dict[bytes, list[Combination]] = {}
    for each in combinations:
        others = {n: v for n, v in each.parameters.items() if n not in scaled.scales_with}
        groups.setdefault(identity(others), []).append(each)
    found = {
        identity(parameters): efficiency
        for group in groups.values()
        for parameters, efficiency in _efficiencies(group, scaled)
    }
    return [
        replace(each, values={**each.values, EFFICIENCY: found[identity(each.parameters)]})
        if identity(each.parameters) in found
        else each
        for each in combinations
    ]


def _efficiencies(
    group: Sequence[Combination], scaled: MetricInfo
) -> Iterator[tuple[Parameters, Aggregate]]:
    key = RowKey(scaled.tag, "avg")
    known = [
        (_processes(each.parameters, scaled.scales_with), each) for each in group if each.mean(key)
    ]
    if len({processes for processes, _ in known}) < 2:
        return
    fewest, base = min(known, key=lambda each: each[0])
    for processes, each in known:
        if each is base:
            yield each.parameters, Aggregate(base.values[key].n, 1.0, 1.0, 1.0, None)
        else:
            factor = processes / fewest
            yield each.parameters, _relative(each.values[key], base.values[key], factor)


def _processes(parameters: Parameters, keys: Collection[str]) -> float:
    """The product of the keys' values. A key that no trial sets is the same for all."""
    values = (parameters.get(key, 1) for key in keys)
    return float(math.prod(value for value in values if is_number(value)))


def _relative(value: Aggregate, base: Aggregate, factor: float) -> Aggregate:
    """The value by that of the base and the factor of processes. Both have an error."""
    whole = base.mean * factor
    sd = None
    if value.sd is not None and base.sd is not None:
        sd = value.mean / whole * math.hypot(value.sd / value.mean, base.sd / base.mean)
    n = min(value.n, base.n)
    return Aggregate(n, value.mean / whole, value.low / whole, value.high / whole, sd)
