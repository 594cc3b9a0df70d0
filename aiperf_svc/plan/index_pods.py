"""The stack of an experiment whose shapes run as the indexes of Jobs (`experiment.fan_out: jobs`).

A shape is an index: its pod has the server under test beside all services that measure it, and runs
the trials of the shape as a run on one machine does. Shapes whose pods differ only in arguments and
variables of the server share a Job. The collector has the place of the records manager: it starts
the Jobs, receives the trials of each index, and serves the results.
"""

import functools
import heapq
import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.target import HOST
from aiperf_svc.config.urls import address_of
from aiperf_svc.config.workload import Config
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.process_environment import PROCESS_ENVIRONMENT
from aiperf_svc.plan.experiments import all_times, largest_load, largest_topology
from aiperf_svc.plan.identity import RUN_ID, Identity, check_stack_name
from aiperf_svc.plan.lifetime import LongestTimes, check_ttl, load_times, plan_budget
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
from aiperf_svc.plan.pods import (
    ARTIFACTS_DIR,
    CONFIG_DIR,
    CURVE_DIR,
    PORT_RANGE,
    SCRATCH_BYTES,
    TARGET_KEY,
    TARGET_KEY_ENV,
    ContainerPlan,
    ImagePlan,
    JobPlan,
    PodPlan,
    Requests,
    SecretKey,
    Volume,
    deadline_pod,
    download_bytes,
    has_target_key,
    key_files,
    requests_of,
    seconds,
    service_pods,
    with_storage,
)
from aiperf_svc.plan.run_id import OrderedExperiment, in_order, order_experiment, run_id_of
from aiperf_svc.plan.stack import (
    StackPlan,
    check_secrets,
    plaintext_warnings,
    required_security,
    secret_keys_of,
    services_image,
    unpinned_images,
)
from aiperf_svc.plan.target import resolve_pages, resolve_url, target_pod
from aiperf_svc.plan.topology import Facts, Group, Topology, plan
from aiperf_svc.protocol.messages import Service
from aiperf_svc.protocol.ports import Port

KEY = "experiment.fan_out: jobs"
COLLECTOR = "collector"
INDEX = "index"
LAUNCH_DIR = "/aiperf-server"
"""Folder of the launcher of an index's server, with what it starts and what became of it."""
LAUNCHER = "server_launcher"
LOOPBACK = "127.0.0.1"
FAILURES = "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"
"""Field with the number of attempts of an index that have failed."""
COLLECTION_S = 120
"""Longest time from the end of an index's load until the collector has its results."""
LARGEST_FILES = 1_000_000
"""Most bytes of a ConfigMap's files: its whole must stay below 1 MiB."""
LARGEST_LAUNCH = 16 * 2**20
"""Limit of the folder of the launcher."""
_FOLDER = Group("collector", (Service.RECORDS_MANAGER,), 1)
_KEYS = Group("index", (Service.RECORD_PROCESSOR,), 1)
"""The services whose CURVE keys both sides have."""


class Server(NamedTuple):
    """The server of an index, as its launcher starts it."""

    command: tuple[str, ...]
    env: dict[str, str]


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


def index_config(config: BenchmarkConfig) -> BenchmarkConfig:
    """Return the config of a shape or trial with the server where the services of its index reach
    it: in their own pod, and so with the layout of one machine. Raises ConfigError."""
    deployment = config.deployment.model_copy(update={"layout": "compact"})
    url = resolve_url(config, LOOPBACK)
    return config.model_copy(
        update={
            "endpoint": config.endpoint.model_copy(update={"url": url}),
            "telemetry": resolve_pages(config, LOOPBACK),
            "deployment": deployment,
        }
    )


def index_topology(trials: Sequence[BenchmarkConfig]) -> Topology:
    """Return the processes of an index that runs these trials. Raises ConfigError."""
    return largest_topology([plan(index_config(t), Facts(where="cluster")) for t in trials])


def server_of(config: BenchmarkConfig) -> Server:
    """Return the server of an index whose shape has this config. Raises ConfigError."""
    # The image is that of the pod's template.
    pod = target_pod(config, ImagePlan("", ""), listen=LOOPBACK)
    target = config.deployment.target
    if pod is None:
        raise ConfigError(
            f"{KEY}: the server is in the pods of the Jobs; set deployment.target.kind to mock, "
            "vllm or custom"
        )
    if not pod.command:
        raise ConfigError(
            f"{KEY}: deployment.target.command is needed to start the server of image "
            f"{target.image!r}, whose own entrypoint is not known (docker inspect shows it)"
        )
    texts = (*pod.command, *pod.args, *pod.env.values())
    if reference := next((text for text in texts if "$(" in text), ""):
        raise ConfigError(
            f"{KEY}: deployment.target: {reference!r}: references $(NAME) to variables are not "
            "resolved in the pods of Jobs; write the value"
        )
    return Server((*pod.command, *pod.args), pod.env)


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
    config = in_order(config, experiment)
    every = [[each for each in trials if isinstance(each, BenchmarkConfig)] for trials in indexes]
    if not isinstance(config, BenchmarkConfig) or experiment is None:
        raise ConfigError(
            f"{KEY} measures inference servers; leave it out, and the shapes of this workload run "
            "in stacks of their own"
        )
    check_secrets(config)
    for trials in every:
        _check(trials[0])
    limit = experiment.experiment.parallel
    at_once = None if limit == "auto" else limit
    times = [_times(trials, experiment.experiment.cooldown) for trials in every]
    whole = _whole(times, at_once)
    # An index whose start takes long makes it longer, so this is the least time.
    check_ttl(config.deployment, whole)
    used = ImagePlan(
        services_image(image or config.deployment.image.name or "", version=version),
        config.deployment.image.pull_policy,
        config.deployment.image.pull_secrets,
    )
    resolved = _resolve(config)
    run_id = run_id_of(resolved, experiment, images=used.name, generation=generation)
    identity = Identity(stack=stack, run_id=run_id, version=version)
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
            *(_indexes(job, at_once) for job in jobs),
            *notes,
            *dict.fromkeys(note for trials in every for note in plaintext_warnings(trials[0])),
            *unpinned_images(resolved, used, pods),
        ),
        jobs=jobs,
        secret_keys=_secret_keys(resolved, every),
    )
    size = sum(map(len, found.files.values()))
    if size > LARGEST_FILES:
        raise ConfigError(
            f"{KEY}: the config has {size:,} bytes, and a ConfigMap holds {LARGEST_FILES:,}; list "
            "fewer trials, or give product in place of explicit"
        )
    return found


def _check(config: BenchmarkConfig) -> None:
    """Raise ConfigError for a shape that cannot be an index."""
    server_of(config)
    resolve_url(config, LOOPBACK)
    target, telemetry = config.deployment.target, config.telemetry
    if target.replicas > 1:
        raise ConfigError(
            f"{KEY}: deployment.target.replicas is {target.replicas}; the pod of an index has one "
            "server"
        )
    if target.placement.overriding(config.deployment.placement).host_network:
        raise ConfigError(
            f"{KEY}: placement.host_network: servers of two indexes on one node would take the "
            "same port"
        )
    pages = (*telemetry.server_metrics, *telemetry.gpu_telemetry)
    if other := next((url for url in pages if address_of(url).host != HOST), ""):
        raise ConfigError(
            f"{KEY}: telemetry has {other}; only pages of the server itself are read there, "
            f"http://{HOST}:PORT/metrics"
        )


def _resolve(config: BenchmarkConfig) -> BenchmarkConfig:
    key_env = TARGET_KEY_ENV if config.endpoint.api_key_env else None
    endpoint = config.endpoint.model_copy(update={"api_key_env": key_env})
    return config.model_copy(update={"endpoint": endpoint})


def _times(trials: Sequence[BenchmarkConfig], cooldown_ns: int) -> LongestTimes:
    return all_times([load_times(each) for each in trials], cooldown_ns)


def _whole(times: Sequence[LongestTimes], at_once: int | None) -> LongestTimes:
    """Return the least longest time of the stack: of all loads, with one start."""
    return LongestTimes(
        start=max(each.start for each in times),
        load=makespan([each.load for each in times], at_once or len(times)),
        is_bounded=all(each.is_bounded for each in times),
        start_keys=times[0].start_keys,
        what=f"{len(times):,} indexes take",
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
        found = _template(trials, identity, image), _deadline_s(config, longest)
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
            pod=_index_pod(template, name, own, retries, replicas=max(1, begin[name])),
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


def _index_pod(
    template: PodPlan, name: str, shapes: Sequence[int], retries: int, *, replicas: int
) -> PodPlan:
    given = {"AIPERF_SHAPES": ",".join(map(str, shapes)), "AIPERF_RETRIES": str(retries)}
    setup, server = template.preparations
    return msgspec.structs.replace(
        template,
        name=name,
        replicas=replicas,
        env=template.env | given,
        preparations=(msgspec.structs.replace(setup, env=setup.env | given), server),
    )


def _deadline_s(config: BenchmarkConfig, times: LongestTimes) -> int:
    longest = times.start + times.load + COLLECTION_S * SECOND_NS
    return seconds(longest if times.is_bounded else config.deployment.ttl)


def _template(trials: Sequence[BenchmarkConfig], identity: Identity, image: ImagePlan) -> PodPlan:
    """Return the pod of an index, without what differs between those of a Job."""
    config = trials[0]
    topology = index_topology(trials)
    load = largest_load(config, trials)
    server = target_pod(config, image)
    assert server is not None
    launch = Volume("server", LAUNCH_DIR, "scratch", LARGEST_LAUNCH)
    settings = Volume("config", CONFIG_DIR, "config")
    scratch = SCRATCH_BYTES + download_bytes(config)
    volumes = (
        settings,
        Volume("curve", CURVE_DIR, "keys", items=key_files(_KEYS)),
        Volume("services-tmp", "/tmp", "scratch", scratch),
        Volume("artifacts", ARTIFACTS_DIR, "scratch", config.deployment.results.storage),
        launch,
    )
    env = PROCESS_ENVIRONMENT | {
        RUN_ID: identity.run_id,
        "AIPERF_CONFIG": f"{CONFIG_DIR}/config.yaml",
        "AIPERF_BUS": "tcp://*",
        "AIPERF_HOSTS": msgspec.json.encode(
            {Service.RECORDS_MANAGER.value: identity.name(COLLECTOR)}
        ).decode(),
        "AIPERF_CURVE_DIR": CURVE_DIR,
        "AIPERF_ARTIFACTS": ARTIFACTS_DIR,
        "AIPERF_LOG_FORMAT": "json",
    }
    asked = (
        requests_of(load, g.name, topology) for g in topology.groups for _ in range(g.replicas)
    )
    secret_env = {}
    if has_target_key(config):
        secret_env[TARGET_KEY_ENV] = SecretKey("target", TARGET_KEY)
    small = with_storage(Requests(10, 128 * 2**20), (launch,))
    return PodPlan(
        name=INDEX,
        replicas=1,
        image=image,
        args=("index",),
        env=env,
        field_env={"AIPERF_SERVICE_ID": "metadata.name", "AIPERF_FAILURES": FAILURES},
        secret_env=secret_env,
        volumes=volumes,
        preparations=(
            ContainerPlan(
                name="setup",
                image=image,
                args=("index-setup",),
                env={"AIPERF_CONFIG": f"{CONFIG_DIR}/config.yaml"},
                volumes=(settings, launch),
                requests=small,
            ),
            ContainerPlan(
                name=HOST,
                image=server.image,
                command=(f"{LAUNCH_DIR}/{LAUNCHER}", LAUNCH_DIR),
                secret_env=server.secret_env,
                volumes=(*server.volumes, launch),
                requests=server.requests,
                run_as_root=server.run_as_root,
                read_only_root=server.read_only_root,
                is_beside=True,
            ),
        ),
        requests=with_storage(functools.reduce(operator.add, asked), volumes),
        placement=server.placement,
        sysctls=PORT_RANGE,
        ready_timeout_s=server.ready_timeout_s,
    )


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
