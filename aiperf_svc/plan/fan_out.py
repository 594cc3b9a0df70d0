"""The stack of an experiment whose shapes run as the indexes of Jobs (`experiment.fan_out: jobs`).

A shape is an index: its pod (`plan/index_pods.py`) runs the trials of the shape as a run on one
machine does. Shapes whose pods differ only in arguments and variables of the server share a Job.
The collector has the place of the records manager: it starts the Jobs, receives the trials of each
index, and serves the results.
"""

import heapq
from collections.abc import Mapping, Sequence

import msgspec

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.experiment import Experiment
from aiperf_svc.config.secret_names import PAGES_KEY_ENV, TARGET_KEY_ENV
from aiperf_svc.config.workload import Config
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.experiments import all_times
from aiperf_svc.plan.identity import Identity, check_stack_name
from aiperf_svc.plan.index_pods import (
    COLLECTION_S,
    COLLECTOR,
    INDEX,
    KEY,
    check_index,
    index_pod,
    index_template,
)
from aiperf_svc.plan.lifetime import LongestTimes, check_ttl, load_times, plan_budget, seconds
from aiperf_svc.plan.network import (
    DNS_PORTS,
    HTTPS_PORT,
    Policy,
    Range,
    Rule,
    StackPods,
    is_on_hub,
    results_policy,
    upload_policies,
)
from aiperf_svc.plan.pods import ImagePlan, JobPlan, PodPlan
from aiperf_svc.plan.run_id import OrderedExperiment, in_order, order_experiment, run_id_of
from aiperf_svc.plan.service_pods import deadline_pod, service_pods
from aiperf_svc.plan.stack import (
    StackPlan,
    check_secrets,
    plaintext_warnings,
    replace_image,
    required_security,
    secret_keys_of,
    services_image,
    unpinned_images,
)
from aiperf_svc.plan.topology import Group, Topology
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.services import Service

LARGEST_FILES = 1_000_000
"""Most bytes of a ConfigMap's files: its whole must stay below 1 MiB."""
_FOLDER = Group("collector", (Service.RECORDS_MANAGER,), 1)


def shares(left: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """Return how many indexes of each Job may run at the same time: equal shares of the limit, none
    of which is above what the Job has left. The first ones take what cannot be shared equally."""
    found = dict.fromkeys(left, 0)
    free = sum(left.values()) if limit is None else min(limit, sum(left.values()))
    while free:
        for name, number in left.items():
            if free and found[name] < number:
                found[name] += 1
                free -= 1
    return found


def plan_fan_out(
    config: Config,
    *,
    stack: str,
    version: str,
    indexes: Sequence[Sequence[Config]],
    generation: int = 1,
    image: str = "",
    upload_into: str = "",
    experiment: OrderedExperiment | None = None,
) -> StackPlan:
    """Plan the stack. `indexes` are the configs of the trials of each shape, in the order in which
    the shapes begin. Other arguments and errors are those of `plan.stack.plan_stack`."""
    check_stack_name(stack)
    experiment = experiment or order_experiment(config)
    config, image_notes = replace_image(in_order(config, experiment), image)
    every = [[each for each in trials if isinstance(each, BenchmarkConfig)] for trials in indexes]
    if not isinstance(config, BenchmarkConfig) or experiment is None:
        raise ConfigError(
            f"{KEY} measures inference servers; leave it out, and the shapes of this workload run "
            "in stacks of their own"
        )
    check_secrets(config)
    for trials in every:
        check_index(trials[0])
    limit = experiment.experiment.parallel
    at_once = None if limit == "auto" else limit
    times = [_times(trials, experiment.experiment) for trials in every]
    whole = _whole(times, at_once)
    # An index whose start takes long makes it longer, so this is the least time.
    collected = f"{len(times):,} indexes, with {COLLECTION_S} s to collect their trials, take"
    check_ttl(
        config.deployment,
        msgspec.structs.replace(whole, load=whole.load + COLLECTION_S * SECOND_NS, what=collected),
    )
    used = ImagePlan(
        services_image(config.deployment.image.name or "", version=version),
        config.deployment.image.pull_policy,
        config.deployment.image.pull_secrets,
    )
    resolved = _resolve(config)
    run_id = run_id_of(resolved, experiment, images=used.name, generation=generation)
    identity = Identity(
        stack=stack,
        run_id=run_id,
        version=version,
        more_labels=config.deployment.labels,
        annotations=config.deployment.annotations,
    )
    jobs = _jobs(resolved, every, times, identity, used, at_once)
    topology = Topology(
        layout="compact", groups=(_FOLDER,), workers=0, record_processors=0, raw_route="direct"
    )
    collector = _collector(resolved, topology, identity, used, jobs, upload_into)
    bounded = msgspec.structs.replace(whole, is_bounded=False)
    budget = plan_budget(config.deployment, bounded, identity)
    deadline = deadline_pod(resolved, identity, used, budget=budget)
    pods = (deadline, collector, *(job.pod for job in jobs))
    policies, notes = _policies(resolved, every, topology, jobs)
    security, reasons = required_security(pods)
    found = StackPlan(
        identity=identity,
        config=resolved,
        topology=topology,
        budget=budget,
        deadline=deadline,
        services=(collector,),
        target=None,
        times=whole,
        policies=policies,
        pod_security=security,
        notes=(
            *reasons,
            *image_notes,
            *(_indexes(job, at_once) for job in jobs),
            *notes,
            *dict.fromkeys(note for trials in every for note in plaintext_warnings(trials[0])),
            *unpinned_images(resolved, used, pods),
        ),
        jobs=jobs,
        secret_keys=_secret_keys(resolved, every),
    )
    size = sum(len(content.encode()) for content in found.files.values())
    if size > LARGEST_FILES:
        raise ConfigError(
            f"{KEY}: the config has {size:,} bytes, and a ConfigMap holds {LARGEST_FILES:,}; list "
            "fewer trials, or give product in place of explicit"
        )
    return found


def _resolve(config: BenchmarkConfig) -> BenchmarkConfig:
    key_env = TARGET_KEY_ENV if config.endpoint.api_key_env else None
    endpoint = config.endpoint.model_copy(update={"api_key_env": key_env})
    pages_env = PAGES_KEY_ENV if config.telemetry.key_env else None
    telemetry = config.telemetry.model_copy(update={"key_env": pages_env})
    return config.model_copy(update={"endpoint": endpoint, "telemetry": telemetry})


def _times(trials: Sequence[BenchmarkConfig], experiment: Experiment | None) -> LongestTimes:
    return all_times([load_times(each) for each in trials], experiment)


def _whole(times: Sequence[LongestTimes], at_once: int | None) -> LongestTimes:
    """Return the least longest time of the stack: of all loads, with one start."""
    return LongestTimes(
        start=max(each.start for each in times),
        load=makespan([each.load for each in times], at_once or len(times)),
        is_bounded=all(each.is_bounded for each in times),
        start_keys=times[0].start_keys,
    )


def makespan(times_ns: Sequence[int | None], limit: int) -> int:
    """Return when the last of several is over, if they begin in order and so many at a time."""
    ends = [0] * min(limit, len(times_ns))
    for time_ns in times_ns:
        heapq.heapreplace(ends, ends[0] + (time_ns or 0))
    return max(ends)


# --- the pods ------------------------------------------------------------------------------------


def _jobs(
    config: BenchmarkConfig,
    every: Sequence[Sequence[BenchmarkConfig]],
    times: Sequence[LongestTimes],
    identity: Identity,
    image: ImagePlan,
    at_once: int | None,
) -> tuple[JobPlan, ...]:
    """Return a Job for all shapes whose pods have the same template."""
    templates: list[tuple[PodPlan, int]] = []
    members: list[list[int]] = []
    for number, (trials, longest) in enumerate(zip(every, times, strict=True), start=1):
        found = index_template(trials, identity, image), _deadline_s(config, longest)
        if found not in templates:
            templates.append(found)
            members.append([])
        members[templates.index(found)].append(number)
    names = [f"{INDEX}-{number}" for number in range(1, len(templates) + 1)]
    sizes = {name: len(own) for name, own in zip(names, members, strict=True)}
    begin = dict.fromkeys(names, 1) if at_once is None else shares(sizes, at_once)
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


def _indexes(job: JobPlan, at_once: int | None) -> str:
    """Return a note for reviewers about the indexes of a Job."""
    most = f"{job.pod.replicas:,} at a time"
    if at_once is None:
        most = "as many at a time as there is room for; what the stack asks for has one of them"
    return f"{job.pod.name}: {job.completions:,} indexes, {most}"


def _deadline_s(config: BenchmarkConfig, times: LongestTimes) -> int:
    longest = times.start + times.load + COLLECTION_S * SECOND_NS
    return seconds(longest if times.is_bounded else config.deployment.ttl)


def _collector(
    config: BenchmarkConfig,
    topology: Topology,
    identity: Identity,
    image: ImagePlan,
    jobs: Sequence[JobPlan],
    upload_into: str,
) -> PodPlan:
    (pod,) = service_pods(config, topology, identity, image, upload_into=upload_into)
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


# --- what they may reach -------------------------------------------------------------------------


def _policies(
    config: BenchmarkConfig,
    every: Sequence[Sequence[BenchmarkConfig]],
    topology: Topology,
    jobs: Sequence[JobPlan],
) -> tuple[tuple[Policy, ...], list[str]]:
    """Return the policies, and notes for reviewers."""
    if not config.deployment.network_policies:
        return (), ["no NetworkPolicies: deployment.network_policies is off"]
    names = tuple(job.pod.name for job in jobs)
    port = (int(Port.RECORDS),)
    api_server = Rule(tuple(map(Range, config.deployment.api_server_cidrs)))
    uploads, notes = upload_policies(config, topology)
    policies = [
        Policy(
            name="default",
            components=(),
            egress=(Rule(ports=DNS_PORTS, protocols=("UDP", "TCP")),),
        ),
        Policy("deadline", ("deadline",), egress=(api_server,)),
        Policy(
            COLLECTOR,
            (COLLECTOR,),
            ingress=(Rule((StackPods(names),), port),),
            egress=(api_server,),
        ),
        Policy(INDEX, names, egress=(Rule((StackPods((COLLECTOR,)),), port),)),
        results_policy(config, topology),
        *uploads,
    ]
    why = _downloads([trials[0] for trials in every])
    if why:
        policies.append(Policy("downloads", names, egress=(Rule(ports=(HTTPS_PORT,)),)))
        notes.append(f"{', '.join(names)} may reach port 443 anywhere, for {' and '.join(why)}")
    return tuple(policies), notes


def _downloads(configs: Sequence[BenchmarkConfig]) -> list[str]:
    """Return what is downloaded in the pods of indexes, whose containers share their network."""
    why: dict[str, None] = {}
    for config in configs:
        tokenizer = config.tokenizer.name
        if config.dataset.public:
            why[f"dataset.public: {config.dataset.public}"] = None
        if is_on_hub(tokenizer):
            why[f"tokenizer.name: {tokenizer}"] = None
        if config.deployment.target.downloads:
            why["deployment.target.downloads"] = None
    return list(why)


def _secret_keys(
    config: BenchmarkConfig, every: Sequence[Sequence[BenchmarkConfig]]
) -> dict[str, tuple[str, ...]]:
    """Return the keys of the Secrets: those of the config and of every shape's server."""
    found: dict[str, set[str]] = {}
    for each in (config, *(trials[0] for trials in every)):
        for name, keys in secret_keys_of(each).items():
            found.setdefault(name, set()).update(keys)
    return {name: tuple(sorted(keys)) for name, keys in found.items()}
