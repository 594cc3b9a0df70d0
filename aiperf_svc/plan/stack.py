"""Plans everything that a cluster will hold for a benchmark config. Pure, so that it can be
reviewed, tested and totalled before anything exists.

    Config --plan_stack--> StackPlan --infra/--> Kubernetes objects
"""

import hashlib
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import msgspec

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.deployment import RANK_POD
from aiperf_svc.config.image_names import check_digest, check_fixed, check_replacement, is_mutable
from aiperf_svc.config.secret_names import PAGES_KEY_ENV, TARGET_KEY_ENV, is_secret_name
from aiperf_svc.config.target import HOST
from aiperf_svc.config.target_notices import UNCHECKED, is_unchecked
from aiperf_svc.config.workload import Config, WorkloadConfig
from aiperf_svc.config.yaml_files import yaml_text
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.experiments import (
    all_times,
    largest_load,
    largest_topology,
    replacement_time,
)
from aiperf_svc.plan.identity import Identity, check_stack_name
from aiperf_svc.plan.lifetime import (
    DisruptionBudget,
    LongestTimes,
    check_ttl,
    load_times,
    plan_budget,
    step_times,
)
from aiperf_svc.plan.network import Policy, is_on_hub, plan_policies
from aiperf_svc.plan.pods import ImagePlan, JobPlan, PodPlan
from aiperf_svc.plan.ranks import RankNeeds, rank_pod
from aiperf_svc.plan.run_id import (
    OrderedExperiment,
    in_order,
    non_defaults,
    order_experiment,
    run_id_of,
)
from aiperf_svc.plan.service_pods import (
    PAGES_KEY,
    TARGET_KEY,
    deadline_pod,
    has_pages_key,
    has_target_key,
    service_pods,
    upload_keys,
)
from aiperf_svc.plan.target import resolve_pages, resolve_url, target_pod
from aiperf_svc.plan.topology import SINGLETONS, Facts, Topology, plan, plan_ranks
from aiperf_svc.protocol.services import Service

_COMMIT = re.compile(r"[0-9a-f]{40}")
PodSecurity = Literal["restricted", "baseline", "privileged"]


class Totals(msgspec.Struct, frozen=True):
    """Resources that the whole stack requests from the cluster."""

    pods: int
    cpu_millis: int
    memory_bytes: int
    gpus: int
    cost_per_hour: float
    currency: str


class StackPlan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The plan of a stack, which `infra/` translates."""

    identity: Identity
    config: Config
    """Config as the services read it, with the target's real address and the key's real
    variable."""
    topology: Topology
    budget: DisruptionBudget | None
    deadline: PodPlan
    services: tuple[PodPlan, ...]
    target: PodPlan | None
    times: LongestTimes
    policies: tuple[Policy, ...]
    pod_security: PodSecurity
    notes: tuple[str, ...]
    """Notes for reviewers."""
    jobs: tuple[JobPlan, ...] = ()
    """Jobs whose indexes are the shapes of an experiment."""
    secret_keys: dict[str, tuple[str, ...]]
    """Name of a Secret to the keys of the stack's configuration whose secret values it holds."""

    @cached_property
    def files(self) -> dict[str, str]:
        """Names and contents of the services' config folder. They contain the whole experiment, so
        they are written only for the shape that is brought up."""
        return {
            "config.yaml": yaml_text(non_defaults(self.config)),
            "topology.json": msgspec.json.encode(self.topology).decode(),
        }

    @property
    def config_name(self) -> str:
        """Name of the ConfigMap that holds the files; differs with their contents."""
        digest = hashlib.sha256("".join(self.files.values()).encode()).hexdigest()
        return self.identity.name(f"config-{digest[:8]}")

    @property
    def pods(self) -> tuple[PodPlan, ...]:
        """All pods of the stack."""
        target = (self.target,) if self.target else ()
        return (self.deadline, *self.services, *target, *(job.pod for job in self.jobs))

    @property
    def deployed(self) -> tuple[PodPlan, ...]:
        """The pods of Deployments."""
        of_jobs = {job.pod.name for job in self.jobs}
        return tuple(pod for pod in self.pods if not pod.sets and pod.name not in of_jobs)

    @property
    def inference(self) -> BenchmarkConfig:
        """The config of a stack that measures an inference server."""
        assert isinstance(self.config, BenchmarkConfig)
        return self.config

    @property
    def ranks(self) -> PodPlan | None:
        """The pod of a workload's ranks; None without a workload."""
        return next((pod for pod in self.services if pod.sets), None)

    @property
    def deadline_policies(self) -> tuple[Policy, ...]:
        """Policies that the deadline's pod needs before it can be ready."""
        return tuple(p for p in self.policies if p.components == (self.deadline.name,))

    @property
    def replicated(self) -> frozenset[str]:
        """Names of the pods that have replicas and need no name of their own."""
        singles = set(SINGLETONS)
        return frozenset(g.name for g in self.topology.groups if not singles & set(g.services))

    @property
    def load_pod(self) -> PodPlan:
        """A pod that sends the load."""
        if self.jobs:
            return self.jobs[0].pod
        group = next(g for g in self.topology.groups if Service.WORKER in g.services)
        return next(pod for pod in self.services if pod.name == group.name)

    @property
    def results_pod(self) -> str:
        """Name of the pod that has the results."""
        groups = self.topology.groups
        return next(g.name for g in groups if Service.RECORDS_MANAGER in g.services)

    @cached_property
    def at_once(self) -> dict[str, int]:
        """Number of replicas of each pod that run at the same time, by name. Of more Jobs than may
        run together, the largest do, one index each."""
        found = {pod.name: pod.replicas for pod in self.pods}
        experiment = self.config.experiment
        limit = experiment.parallel if experiment is not None else 1
        if limit != "auto" and len(self.jobs) > limit:
            largest_first = sorted(self.jobs, key=lambda job: job.pod.size, reverse=True)
            found |= {job.pod.name: 0 for job in largest_first[limit:]}
        return found

    @cached_property
    def totals(self) -> Totals:
        """Resources that all pods that run at the same time request together."""
        prices = self.config.deployment.prices
        asked = [(self.at_once[pod.name], pod.total) for pod in self.pods]
        cpu = sum(number * each.cpu_millis for number, each in asked)
        memory = sum(number * each.memory_bytes for number, each in asked)
        gpus = sum(number * each.gpu_count for number, each in asked)
        cost = cpu / 1000 * prices.cpu + memory / 2**30 * prices.memory_gib + gpus * prices.gpu
        return Totals(
            pods=sum(self.at_once.values()),
            cpu_millis=cpu,
            memory_bytes=memory,
            gpus=gpus,
            cost_per_hour=round(cost, 4),
            currency=prices.currency,
        )


def plan_stack(
    config: Config,
    *,
    stack: str,
    version: str,
    generation: int = 1,
    image: str = "",
    needs: RankNeeds | None = None,
    trials: Sequence[Config] = (),
    is_held: bool = False,
    upload_into: str = "",
    whole: Config | None = None,
    lifetime: LongestTimes | None = None,
    experiment: OrderedExperiment | None = None,
) -> StackPlan:
    """Plan a stack.

    `image` replaces the one in the config; a new `generation` makes a new run of an unchanged
    config. `needs` is what the config's workload needs for all trials. `trials` are the configs of
    the trials that the pods run, one for each; none without an experiment. If they are those of one
    shape, `whole` is the config of all, in order, and `lifetime` are the times of all shapes,
    through which the stack lives. `experiment` is that of the config, in order, if it is known. The
    load of a stack that `is_held` waits until it is given a start. `upload_into` is the folder of
    the bucket that the trials of all shapes share. Raises ConfigError.
    """
    check_stack_name(stack)
    experiment = experiment or order_experiment(config)
    config, image_notes = replace_image(in_order(config, experiment), image)
    deployment = config.deployment
    trials = trials or (config,)
    times = longest_times(config, trials, steps_ns=needs.steps_ns if needs else 0)
    lifetime = lifetime or times
    check_ttl(deployment, lifetime)
    check_secrets(config)
    used = ImagePlan(
        services_image(deployment.image.name or "", version=version),
        deployment.image.pull_policy,
        deployment.image.pull_secrets,
    )
    resolved = _resolve(config, Identity(stack=stack, run_id="", version=version))
    images = used.name if needs is None else f"{used.name} {needs.image}"
    run_id = run_id_of(resolved, experiment, images=images, generation=generation)
    label = ""
    if whole is not None:
        label = run_id_of(whole, experiment, images=used.name, generation=generation)
    identity = Identity(
        stack=stack,
        run_id=run_id,
        version=version,
        label=label,
        more_labels=deployment.labels,
        annotations=deployment.annotations,
    )
    topology = _topology(trials, needs)
    load = largest_load(resolved, trials)
    pods_of_services = service_pods(
        load, topology, identity, used, is_held=is_held, upload_into=upload_into
    )
    services = _with_ranks(pods_of_services, load, identity, needs)
    target = target_pod(resolved, used) if isinstance(resolved, BenchmarkConfig) else None
    budget = plan_budget(deployment, lifetime, identity)
    deadline = deadline_pod(resolved, identity, used, budget=budget)
    pods = (deadline, *services, *((target,) if target else ()))
    policies, notes = plan_policies(resolved, topology, pods)
    security, reasons = required_security(pods)
    return StackPlan(
        identity=identity,
        config=resolved,
        topology=topology,
        budget=budget,
        deadline=deadline,
        services=services,
        target=target,
        times=times,
        policies=policies,
        pod_security=security,
        notes=(
            *reasons,
            *image_notes,
            *notes,
            *plaintext_warnings(resolved),
            *unpinned_images(resolved, used, pods),
        ),
        secret_keys=secret_keys_of(resolved),
    )


def longest_times(config: Config, trials: Sequence[Config], *, steps_ns: int) -> LongestTimes:
    """Return the longest times of these trials in the same pods; `steps_ns` are those of all steps
    of a workload."""
    if not isinstance(config, BenchmarkConfig):
        # Ceiling division: the trials of a workload are about equally long.
        again = replacement_time(-(-steps_ns // len(trials)), config.experiment)
        return step_times(config.deployment, steps_ns + again)
    times = [load_times(t) for t in trials if isinstance(t, BenchmarkConfig)]
    return all_times(times, config.experiment)


def _topology(trials: Sequence[Config], needs: RankNeeds | None) -> Topology:
    facts = Facts(where="cluster")
    if needs is not None:
        return plan_ranks(trials[0].deployment, needs.count, facts)
    return largest_topology([plan(t, facts) for t in trials if isinstance(t, BenchmarkConfig)])


def _with_ranks(
    pods: tuple[PodPlan, ...], config: Config, identity: Identity, needs: RankNeeds | None
) -> tuple[PodPlan, ...]:
    if not isinstance(config, WorkloadConfig):
        return pods
    assert needs is not None
    return tuple(
        rank_pod(pod, config, needs, identity) if pod.name == RANK_POD else pod for pod in pods
    )


def _resolve(config: Config, identity: Identity) -> Config:
    deployment = config.deployment
    # Pods start at different times: each waits for its image and a node.
    longest_start = max(deployment.registration_timeout, deployment.ready_timeout)
    update: dict[str, Any] = {
        "deployment": deployment.model_copy(update={"registration_timeout": longest_start})
    }
    if isinstance(config, BenchmarkConfig):
        key_env = TARGET_KEY_ENV if config.endpoint.api_key_env else None
        host = identity.name(HOST)
        url = resolve_url(config, host)
        update["endpoint"] = config.endpoint.model_copy(update={"url": url, "api_key_env": key_env})
        pages = resolve_pages(config, host)
        pages_env = PAGES_KEY_ENV if pages.key_env else None
        update["telemetry"] = pages.model_copy(update={"key_env": pages_env})
    return config.model_copy(update=update)


def check_secrets(config: Config) -> None:
    """Raise ConfigError for a secret that would be kept in clear, or that no Secret can hold."""
    if not isinstance(config, BenchmarkConfig):
        return
    endpoint = config.endpoint
    if endpoint.proxy_auth_env is not None:
        raise ConfigError(
            "endpoint.proxy_auth_env: a stack has no secret for a proxy; use one that lets the "
            "cluster's nodes pass, or measure from a machine of your own"
        )
    for key in endpoint.secrets_in_clear:
        raise ConfigError(
            f"{key} would be kept in clear in a ConfigMap; a key is named by "
            "endpoint.api_key_env and kept under aiperf:targetApiKey (pulumi config set "
            "--secret), and endpoint.api_key_header names its header"
        )


def plaintext_warnings(config: Config) -> tuple[str, ...]:
    """Return notes about data that others can read in transit or in a manifest."""
    notes = [UNCHECKED] if isinstance(config, BenchmarkConfig) and is_unchecked(config) else []
    results, target = config.deployment.results, config.deployment.target
    if results.expose != "port-forward" and not results.tls_secret:
        notes.append(
            f"results by {results.expose} without TLS: the token that reads them travels in clear; "
            "use port-forward, or Ingress with results.tls_secret"
        )
    words = (*target.command, *target.args)
    for flag in (word.partition("=")[0] for word in words if word.startswith("-")):
        if is_secret_name(flag.lstrip("-")):
            notes.append(
                f"deployment.target: {flag}: its value is in clear in the pod and in Pulumi's "
                "state; give it by a variable of deployment.target.secret_env"
            )
    return tuple(notes)


def replace_image(config: Config, image: str) -> tuple[Config, tuple[str, ...]]:
    """Return the config with `image` (AIPERF_IMAGE) as that of the services, and notes about what
    it replaces. The results then name the image that ran. Raises ConfigError if the config pins
    another image."""
    if not image:
        return config, ()
    try:
        check_fixed(image)
    except ValueError as error:
        raise ConfigError(f"AIPERF_IMAGE: {error}") from error
    deployment = config.deployment
    note = check_replacement(
        deployment.image.name, image, key="deployment.image.name", variable="AIPERF_IMAGE"
    )
    own = deployment.image.model_copy(update={"name": image})
    update = {"deployment": deployment.model_copy(update={"image": own})}
    return config.model_copy(update=update), (note,) if note else ()


def services_image(image: str, *, version: str) -> str:
    """Return the image of the services: the given one, else this version's. Raises ConfigError."""
    try:
        check_digest(image)
    except ValueError as error:
        raise ConfigError(f"AIPERF_IMAGE (or --image): {error}") from error
    return image or f"localhost/aiperf-svc:{version}"


def unpinned_images(config: Config, services: ImagePlan, pods: tuple[PodPlan, ...]) -> list[str]:
    """Return notes about what may differ in the next run of the same file."""
    images = {"services'": services.name}
    for pod in pods:
        images |= {f"{pod.name}'s": i.name for i in pod.images if i.name != services.name}
    notes = [
        f"the {whose} image {name} has no digest: whoever may push there can put another one in "
        "its place; pin it as NAME@sha256:DIGEST"
        for whose, name in images.items()
        if is_mutable(name)
    ]
    if not isinstance(config, BenchmarkConfig):
        return notes
    tokenizer = config.tokenizer
    if is_on_hub(tokenizer.name) and not _COMMIT.fullmatch(tokenizer.revision):
        notes.append(
            f"tokenizer.revision {tokenizer.revision} of {tokenizer.name} can become another one; "
            "pin it by a commit"
        )
    return notes


def required_security(pods: tuple[PodPlan, ...]) -> tuple[PodSecurity, tuple[str, ...]]:
    """Return the strictest level that admits these pods, and what rules out a stricter one."""
    hosted = [pod.name for pod in pods if pod.placement.host_network]
    rooted = [pod.name for pod in pods if pod.run_as_root]
    lax = [f"{name} uses its node's network" for name in hosted]
    lax += [
        f"container {container.name} of {pod.name} has {', '.join(container.capabilities)}"
        for pod in pods
        for container in (*pod.preparations, *pod.containers)
        if container.capabilities
    ]
    lax += [
        f"{pod.name} mounts {volume.source} of its node"
        for pod in pods
        for volume in pod.all_volumes
        if volume.kind == "host-path"
    ]
    reasons = [f"Pod Security privileged: {reason}" for reason in lax]
    reasons += [f"Pod Security baseline: {name} runs as root" for name in rooted]
    if lax:
        return "privileged", tuple(reasons)
    return ("baseline" if rooted else "restricted"), tuple(reasons)


def secret_keys_of(config: Config) -> dict[str, tuple[str, ...]]:
    """Return the name of each Secret with the keys of the stack's configuration that it holds."""
    keys = set(config.deployment.target.secret_env.values())
    if has_target_key(config):
        keys.add(TARGET_KEY)
    own = config.workload.secret_env if isinstance(config, WorkloadConfig) else {}
    secrets = {
        "target": tuple(sorted(keys)),
        "upload": tuple(upload_keys(config).values()),
        "pages": (PAGES_KEY,) if has_pages_key(config) else (),
        "workload": tuple(sorted(set(own.values()))),
    }
    return {name: keys for name, keys in secrets.items() if keys}
