"""The stack of an experiment whose shapes run as the indexes of Jobs (`experiment.fan_out: jobs`).

Each shape is an index. Its pod (`plan/index_pods.py`) runs the trials of the shape like a run on
one machine. Shapes whose pods differ only in arguments and variables of the server share a Job. The
collector replaces the records manager: it starts the Jobs, receives the trials of each index, and
serves the results.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.experiment import Experiment
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.experiments import all_times
from aiperf_svc.plan.identity import Identity
from aiperf_svc.plan.index_pods import (
    COLLECTION_S,
    COLLECTOR,
    INDEX,
    KEY,
    check_index,
    index_pod,
    index_template,
)
from aiperf_svc.plan.inference import InferenceStack, secrets_of, with_pod_keys
from aiperf_svc.plan.lifetime import LongestTimes, load_times, seconds
from aiperf_svc.plan.network import (
    HTTPS_PORT,
    Policies,
    Policy,
    Rule,
    StackPods,
    api_server_rule,
    dataset_policies,
    is_on_hub,
    results_rule,
    upload_policies,
    usual_policies,
)
from aiperf_svc.plan.pod_settings import download_bytes
from aiperf_svc.plan.pods import JobPlan, PodPlan
from aiperf_svc.plan.service_pods import ServiceNeeds, service_pods
from aiperf_svc.plan.stack_kind import KindPods, StackBasis
from aiperf_svc.plan.topology import Group, Topology
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.services import Service

MAX_CONFIG_MAP_BYTES = 1_000_000
"""Limit of the bytes of a ConfigMap's files: the whole object must stay below 1 MiB."""
_FOLDER = Group("collector", (Service.RECORDS_MANAGER,), 1)


def shares(remaining: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """Return how many indexes of each Job may run at the same time: equal shares of the limit, but
    at most what the Job has left. The first Jobs get the remainder."""
    found = dict.fromkeys(remaining, 0)
    free = sum(remaining.values()) if limit is None else min(limit, sum(remaining.values()))
    while free:
        for name, number in remaining.items():
            if free and found[name] < number:
                found[name] += 1
                free -= 1
    return found


@dataclass(frozen=True, kw_only=True)
class IndexStack(InferenceStack):
    """A stack whose shapes are the indexes of Jobs."""

    indexes: Sequence[Sequence[BenchmarkConfig]]
    """Configs of the trials of each shape, in the order in which the shapes begin."""

    @property
    def lifetime(self) -> LongestTimes:
        # This is the least time: slow starts of indexes add to it.
        subject = (
            f"{len(self.indexes):,} indexes, with {COLLECTION_S} s to collect their trials, take"
        )
        load = self.times.load + COLLECTION_S * SECOND_NS
        return msgspec.structs.replace(self.times, load=load, what=subject)

    @property
    def longest_hold(self) -> LongestTimes:
        """Return how long the drain of a node may have to wait: until the stack is gone."""
        return msgspec.structs.replace(self.times, is_bounded=False)

    def check(self) -> None:
        """Raise ConfigError for a secret in plain text, or for a shape that cannot be an index."""
        super().check()
        for trials in self.indexes:
            check_index(trials[0])

    def resolve(self, identity: Identity) -> BenchmarkConfig:
        """Return the config as the services read it. Each index has an address of its own."""
        return with_pod_keys(self.config)

    def topology(self) -> Topology:
        return Topology(
            layout="compact", groups=(_FOLDER,), workers=0, record_processors=0, raw_route="direct"
        )

    def pods(self, basis: StackBasis[BenchmarkConfig]) -> KindPods:
        jobs = _jobs(basis, self.indexes)
        return KindPods(
            services=(_collector(basis, jobs),),
            jobs=jobs,
            notes=tuple(_indexes(job, at_once(basis.config)) for job in jobs),
        )

    def policies(self, basis: StackBasis[BenchmarkConfig], pods: tuple[PodPlan, ...]) -> Policies:
        names = tuple(pod.name for pod in pods if pod.name.startswith(f"{INDEX}-"))
        return _policies(basis.config, self.indexes, basis.topology, names)

    def notes(self, config: BenchmarkConfig) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for trials in self.indexes:
            found |= dict.fromkeys(super().notes(trials[0]))
        return tuple(found)

    def secret_keys(self, config: BenchmarkConfig) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for each in (config, *(trials[0] for trials in self.indexes)):
            for name, keys in super().secret_keys(each).items():
                found.setdefault(name, set()).update(keys)
        return found

    def check_files(self, files: Callable[[], Mapping[str, str]]) -> None:
        size = sum(len(content.encode()) for content in files().values())
        if size > MAX_CONFIG_MAP_BYTES:
            raise ConfigError(
                f"{KEY}: the config has {size:,} bytes, and a ConfigMap holds "
                f"{MAX_CONFIG_MAP_BYTES:,}; list fewer trials, or give product in place of explicit"
            )


def index_stack(
    config: BenchmarkConfig, indexes: Sequence[Sequence[BenchmarkConfig]]
) -> IndexStack:
    """Return the kind of the stack of a config whose shapes have these trials."""
    times = [_times(trials, config.experiment) for trials in indexes]
    trials = [each for own in indexes for each in own]
    # The minimum time of the stack: all loads and one start.
    minimum = LongestTimes(
        start=max(each.start for each in times),
        load=makespan([each.load for each in times], at_once(config) or len(times)),
        is_bounded=all(each.is_bounded for each in times),
        start_keys=times[0].start_keys,
    )
    return IndexStack(config=config, trials=trials, times=minimum, indexes=indexes)


def at_once(config: BenchmarkConfig) -> int | None:
    """Return how many indexes run at the same time; None: as many as the cluster has room for."""
    assert config.experiment is not None
    limit = config.experiment.parallel
    return None if limit == "auto" else limit


def _times(trials: Sequence[BenchmarkConfig], experiment: Experiment | None) -> LongestTimes:
    return all_times([load_times(each) for each in trials], experiment)


def makespan(times_ns: Sequence[int | None], limit: int) -> int:
    """Return when the last task ends if the tasks start in order, at most `limit` at a time."""
    ends = [0] * min(limit, len(times_ns))
    for time_ns in times_ns:
        heapq.heapreplace(ends, ends[0] + (time_ns or 0))
    return max(ends)


# --- the pods ------------------------------------------------------------------------------------


def _jobs(
    basis: StackBasis[BenchmarkConfig], every: Sequence[Sequence[BenchmarkConfig]]
) -> tuple[JobPlan, ...]:
    """Return a Job for all shapes whose pods have the same template."""
    config = basis.config
    templates: list[tuple[PodPlan, int]] = []
    members: list[list[int]] = []
    for number, trials in enumerate(every, start=1):
        times = _times(trials, config.experiment)
        longest = times.start + times.load + COLLECTION_S * SECOND_NS
        deadline_s = seconds(longest if times.is_bounded else config.deployment.ttl)
        found = index_template(trials, basis), deadline_s
        if found not in templates:
            templates.append(found)
            members.append([])
        members[templates.index(found)].append(number)
    names = [f"{INDEX}-{number}" for number in range(1, len(templates) + 1)]
    sizes = {name: len(own) for name, own in zip(names, members, strict=True)}
    limit = at_once(config)
    begin = dict.fromkeys(names, 1) if limit is None else shares(sizes, limit)
    assert config.experiment is not None
    retries = config.experiment.retries
    return tuple(
        JobPlan(
            pod=index_pod(template, name, own, retries, replicas=max(1, begin[name])),
            shapes=tuple(own),
            retries=retries,
            deadline_s=deadline_s,
        )
        for name, own, (template, deadline_s) in zip(names, members, templates, strict=True)
    )


def _indexes(job: JobPlan, limit: int | None) -> str:
    """Return a note for reviewers about the indexes of a Job."""
    at_once_text = f"{job.pod.replicas:,} at a time"
    if limit is None:
        at_once_text = "as many at a time as there is room for; the stack's totals count one"
    return f"{job.pod.name}: {job.completions:,} indexes, {at_once_text}"


def _collector(basis: StackBasis[BenchmarkConfig], jobs: Sequence[JobPlan]) -> PodPlan:
    config, identity = basis.config, basis.identity
    needs = ServiceNeeds(secret_env=secrets_of(config), download_bytes=download_bytes(config))
    (pod,) = service_pods(basis, config, needs)
    names = {identity.name(job.pod.name): job.shapes for job in jobs}
    env = {name: value for name, value in pod.env.items() if name != "AIPERF_SERVICE"}
    return msgspec.structs.replace(
        pod,
        args=(COLLECTOR,),
        env=env
        | {
            "AIPERF_STACK": identity.stack,
            "AIPERF_JOBS": msgspec.json.encode(names).decode(),
        },
        calls_api=True,
    )


# --- network policies ----------------------------------------------------------------------------


def _policies(
    config: BenchmarkConfig,
    every: Sequence[Sequence[BenchmarkConfig]],
    topology: Topology,
    names: tuple[str, ...],
) -> Policies:
    """Return the policies, and notes for reviewers. `names` are those of the pods of the Jobs."""
    if not config.deployment.network_policies:
        return (), ("no NetworkPolicies: deployment.network_policies is off",)
    port = (int(Port.RECORDS),)
    uploads, notes = upload_policies(config, topology)
    policies = [
        *usual_policies(config),
        Policy(
            COLLECTOR,
            (COLLECTOR,),
            ingress=(Rule((StackPods(names),), port), results_rule(config)),
            egress=(api_server_rule(config),),
        ),
        Policy(INDEX, names, egress=(Rule((StackPods((COLLECTOR,)),), port),)),
        *uploads,
    ]
    shapes = [trials[0] for trials in every]
    datasets, dataset_notes = dataset_policies(shapes, names)
    policies += datasets
    notes += dataset_notes
    why = _downloads(shapes)
    if why:
        policies.append(Policy("downloads", names, egress=(Rule(ports=(HTTPS_PORT,)),)))
        notes.append(f"{', '.join(names)} may reach port 443 anywhere, for {' and '.join(why)}")
    return tuple(policies), tuple(notes)


def _downloads(configs: Sequence[BenchmarkConfig]) -> list[str]:
    """Return what the pods of indexes download. Their containers share one network."""
    why: dict[str, None] = {}
    for config in configs:
        tokenizer = config.tokenizer.name
        if config.dataset.public and not config.dataset.url:
            why[f"dataset.public: {config.dataset.public}"] = None
        if is_on_hub(tokenizer):
            why[f"tokenizer.name: {tokenizer}"] = None
        if config.deployment.target.downloads:
            why["deployment.target.downloads"] = None
    return list(why)
