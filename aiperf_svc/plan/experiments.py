"""The processes or pods of several trials that run one after another in one stack: as many
workers as the largest trial needs, and the time of all trials."""

from collections.abc import Sequence

import msgspec

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.experiment import Experiment
from aiperf_svc.plan.lifetime import LongestTimes
from aiperf_svc.plan.topology import Group, Topology


def largest_topology(topologies: Sequence[Topology]) -> Topology:
    """Return a topology that suffices for each of these, which have the same layout."""
    groups: dict[str, Group] = {}
    for group in (group for each in topologies for group in each.groups):
        if group.name not in groups or groups[group.name].replicas < group.replicas:
            groups[group.name] = group
    return msgspec.structs.replace(
        topologies[0],
        groups=tuple(groups.values()),
        workers=max(each.workers for each in topologies),
        record_processors=max(each.record_processors for each in topologies),
        # A direct socket can replace the proxy, but not the reverse.
        raw_route="direct" if any(t.raw_route == "direct" for t in topologies) else "proxy",
        workers_per_core=max(each.workers_per_core for each in topologies),
    )


def largest_load(config: BenchmarkConfig, trials: Sequence[BenchmarkConfig]) -> BenchmarkConfig:
    """Return the config of the trial with the most users. It determines the size of the pods."""
    users = max(each.load.concurrency or 0 for each in trials)
    load = config.load.model_copy(update={"concurrency": users or None})
    return config.model_copy(update={"load": load})


def replacement_time(longest_ns: int, experiment: Experiment | None) -> int:
    """Return the time of the repeated trials, each of which takes at most `longest_ns`."""
    return longest_ns * experiment.replacements if experiment is not None else 0


def all_times(trials: Sequence[LongestTimes], experiment: Experiment | None) -> LongestTimes:
    """Return the longest times of a stack that starts once and runs all these trials, including
    possible repeats."""
    times = trials[0]
    cooldown_ns = experiment.cooldown if experiment is not None else 0
    load = sum(each.load for each in trials) + cooldown_ns * (len(trials) - 1)
    replacement_ns = replacement_time(cooldown_ns + max(each.load for each in trials), experiment)
    may_repeat = experiment is not None and experiment.replacements
    repeated = ", and those that may be run again," if may_repeat else ""
    return LongestTimes(
        start=times.start,
        load=load + replacement_ns,
        is_bounded=all(each.is_bounded for each in trials),
        start_keys=times.start_keys,
        what=f"{len(trials):,} trials{repeated} take" if len(trials) > 1 else times.what,
    )
