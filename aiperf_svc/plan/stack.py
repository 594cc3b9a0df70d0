"""Plans all objects of a benchmark config in a cluster. Pure, so the plan can be reviewed, tested
and totalled before anything exists.

    Config --plan_kind--> StackPlan --stack/--> Kubernetes objects
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import msgspec

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.deployment import Deployment
from aiperf_svc.config.placement import (
    check_digest,
    check_fixed,
    check_replacement,
    is_mutable,
    is_pinned,
    mirrored,
)
from aiperf_svc.config.target import HOST, Target
from aiperf_svc.config.workload import Config
from aiperf_svc.config.yaml_files import yaml_text
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.footprint import (
    Footprint,
    check_limits,
    max_nodes,
    with_autoscalers,
    with_events,
)
from aiperf_svc.plan.identity import RUN_ID, Identity, check_stack_name
from aiperf_svc.plan.lifetime import DisruptionBudget, LongestTimes, check_ttl, plan_budget
from aiperf_svc.plan.network import Policy
from aiperf_svc.plan.pods import ImagePlan, PodPlan, with_images
from aiperf_svc.plan.queue import QueuePlan, plan_queue
from aiperf_svc.plan.release import Rendered
from aiperf_svc.plan.run_id import (
    OrderedExperiment,
    in_order,
    non_defaults,
    order_experiment,
    run_id_of,
)
from aiperf_svc.plan.run_values import RunValues
from aiperf_svc.plan.service_pods import deadline_pod, upload_keys
from aiperf_svc.plan.stack_kind import KindPods, StackBasis, StackKind
from aiperf_svc.plan.topology import SINGLETONS, Topology
from aiperf_svc.protocol.services import Service

PodSecurity = Literal["restricted", "baseline", "privileged"]
LEVELS: tuple[PodSecurity, ...] = ("restricted", "baseline", "privileged")
"""From strictest to least strict."""


class Totals(msgspec.Struct, frozen=True):
    """Resources that the whole stack requests from the cluster."""

    pods: int
    cpu_millis: int
    memory_bytes: int
    gpus: int
    cost_per_hour: float
    currency: str


class StackPlan(KindPods, frozen=True, kw_only=True, dict=True):
    """The plan of a stack, which `stack/` translates into objects."""

    identity: Identity
    config: Config
    """Config as the services read it, with the target's real address and the real variable of its
    key."""
    topology: Topology
    budget: DisruptionBudget | None
    deadline: PodPlan
    times: LongestTimes
    policies: tuple[Policy, ...]
    pod_security: PodSecurity
    queue: QueuePlan | None = None
    """Kueue queue in which the stack waits; None: it starts immediately."""
    measured: dict[str, str]
    """Outputs of the stack that name the measured system."""
    secret_keys: dict[str, tuple[str, ...]]
    """Maps the name of a Secret to the keys of the stack's configuration with its values."""

    @cached_property
    def files(self) -> dict[str, str]:
        """Names and contents of the services' config folder. They contain the whole experiment, so
        they are written only for the shape that is deployed."""
        return {
            "config.yaml": yaml_text(non_defaults(self.config)),
            "topology.json": msgspec.json.encode(self.topology).decode(),
        }

    @property
    def config_name(self) -> str:
        """Name of the ConfigMap that holds the files; it depends on their contents."""
        return self._named_by("config", self.files)

    @cached_property
    def shared_env(self) -> dict[str, str]:
        """Environment variables of the pods of all services, except the run's id, which each pod
        shows; empty with a single pod."""
        if len(self.services) < 2:
            return {}
        common = set.intersection(*(set(pod.env.items()) for pod in self.services))
        return dict(sorted((name, value) for name, value in common if name != RUN_ID))

    @property
    def shared_env_name(self) -> str:
        """Name of the ConfigMap that holds these variables; it depends on their values."""
        return self._named_by("environment", self.shared_env)

    def _named_by(self, what: str, data: Mapping[str, str]) -> str:
        digest = hashlib.sha256("".join(data.values()).encode()).hexdigest()
        return self.identity.name(f"{what}-{digest[:8]}")

    @property
    def pods(self) -> tuple[PodPlan, ...]:
        """All pods of the stack."""
        return (self.deadline, *super().pods)

    @property
    def scheduled(self) -> tuple[PodPlan, ...]:
        """All pods that need room: those of the stack, and the known pods of its release."""
        return (*self.pods, *self.of_release)

    @property
    def deployed(self) -> tuple[PodPlan, ...]:
        """The pods of Deployments."""
        of_jobs = {job.pod.name for job in self.jobs}
        return tuple(pod for pod in self.pods if not pod.sets and pod.name not in of_jobs)

    @property
    def inference(self) -> BenchmarkConfig:
        """The config of a stack that measures an inference server."""
        config = self.config.inference
        assert config is not None
        return config

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
        """Names of the pods that have replicas and need no stable names."""
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
        """Name of the pod that stores the results."""
        groups = self.topology.groups
        return next(g.name for g in groups if Service.RECORDS_MANAGER in g.services)

    @cached_property
    def at_once(self) -> dict[str, int]:
        """Number of replicas of each pod that run at the same time, by name. If not all Jobs may
        run together, the largest ones do, with one index each."""
        found = {pod.name: pod.replicas for pod in self.scheduled}
        experiment = self.config.experiment
        limit = experiment.parallel if experiment is not None else 1
        if limit != "auto" and len(self.jobs) > limit:
            largest_first = sorted(self.jobs, key=lambda job: job.pod.size, reverse=True)
            found |= {job.pod.name: 0 for job in largest_first[limit:]}
        return found

    @cached_property
    def at_once_with_events(self) -> dict[str, int]:
        """Like `at_once`, while the events of the load add replicas."""
        config = self.config.inference
        if config is None:
            return self.at_once
        return with_events(self.at_once, config.events, self.target, self.identity.name(HOST))

    @cached_property
    def totals(self) -> Totals:
        """Total requests of all pods that run at the same time."""
        return self._totals(self.at_once)

    def _totals(self, at_once: Mapping[str, int]) -> Totals:
        prices = self.config.deployment.prices
        counts = [(at_once[pod.name], pod.total) for pod in self.scheduled]
        cpu = sum(number * each.cpu_millis for number, each in counts)
        memory = sum(number * each.memory_bytes for number, each in counts)
        gpus = sum(number * each.gpu_count for number, each in counts)
        cost = cpu / 1000 * prices.cpu + memory / 2**30 * prices.memory_gib + gpus * prices.gpu
        return Totals(
            pods=sum(at_once[pod.name] for pod in self.scheduled),
            cpu_millis=cpu,
            memory_bytes=memory,
            gpus=gpus,
            cost_per_hour=round(cost, 4),
            currency=prices.currency,
        )

    @property
    def footprint(self) -> Footprint:
        """The maximum that the stack takes of its cluster, and for how long, with the pods that its
        events and the autoscalers of its release add."""
        at_once = self.at_once_with_events
        if self.release is not None:
            at_once = with_autoscalers(at_once, self.release.objects)
        totals = self._totals(at_once)
        return Footprint(
            nodes=max_nodes(self.scheduled, at_once),
            pods=totals.pods,
            gpus=totals.gpus,
            cpu_millis=totals.cpu_millis,
            memory_bytes=totals.memory_bytes,
            time_ns=self.config.deployment.longest_life,
        )


def no_release(target: Target) -> tuple[Rendered, ...]:
    """Refuse a target of kind release where charts and manifests cannot be read."""
    raise ConfigError("deployment.target.kind release needs a stack on a cluster")


@dataclass(frozen=True, kw_only=True)
class StackSettings:
    """Inputs of a stack's plan besides its config."""

    stack: str
    version: str
    """Version of this program."""
    generation: int = 1
    """A different number makes a new run of an unchanged config."""
    image: str = ""
    """Image of the services that replaces the one in the config (AIPERF_IMAGE)."""
    workload_image: str = ""
    """Image of the ranks that replaces the one in the config (AIPERF_WORKLOAD_IMAGE)."""
    run: RunValues = field(default_factory=RunValues)
    render: Callable[[Target], tuple[Rendered, ...]] = no_release
    """Returns the sources of a target of kind release. Raises ConfigError."""


class SharedByShapes(NamedTuple):
    """Data common to the stacks of all shapes of a config."""

    experiment: OrderedExperiment | None
    whole: Config | None = None
    """The config with sorted maps if one stack runs all shapes in turn, else None."""
    lifetime: LongestTimes | None = None
    """The times of all shapes if one stack runs them in turn, else None."""


def plan_kind(
    kind: StackKind[Any], settings: StackSettings, shared: SharedByShapes | None = None
) -> StackPlan:
    """Plan a stack of one kind. If its trials are those of one shape, `shared` contains the data
    common to all shapes of its config. Raises ConfigError."""
    check_stack_name(settings.stack)
    shared = shared or SharedByShapes(order_experiment(kind.config))
    ordered = in_order(kind.config, shared.experiment)
    config, image_notes = replace_image(ordered, settings.image)
    kind = replace(kind, config=config)
    deployment = config.deployment
    check_ttl(deployment, shared.lifetime or kind.lifetime)
    kind.check()
    services = services_image(deployment.image.name or "", version=settings.version)
    image = ImagePlan(
        mirrored(services, deployment.registry_mirror),
        deployment.image.pull_policy,
        deployment.image.pull_secrets,
    )
    resolved = kind.resolve(Identity(stack=settings.stack, run_id="", version=settings.version))
    identity = _identity(resolved, kind.images(image.name), image, settings, shared)
    basis = StackBasis(
        config=resolved,
        identity=identity,
        image=image,
        topology=kind.topology(),
        run=settings.run,
    )
    made, mirror = kind.pods(basis), deployment.registry_mirror
    if mirror is not None:
        made = made.changed(partial(with_images, rename=partial(mirrored, mirror=mirror)))
    queue, made = plan_queue(deployment, identity, made, has_shapes=shared.whole is not None)
    budget = plan_budget(deployment, shared.lifetime or kind.longest_hold, identity)
    if budget is not None and kind.evicted:
        budget = msgspec.structs.replace(budget, leaves_out=kind.evicted)
    deadline = deadline_pod(resolved, identity, image, budget=budget, release=made.release)
    pods = (deadline, *made.pods)
    if deployment.require_digests:
        check_digests((*pods, *made.of_release), made.custom_images)
    policies, policy_notes = kind.policies(basis, pods)
    security, reasons = required_security(pods)
    if made.release:
        wanted = deployment.target.pod_security
        security = max(security, wanted, key=LEVELS.index)
        reasons = (*reasons, f"Pod Security {wanted}: deployment.target.pod_security")
    plan = StackPlan(
        identity=identity,
        config=resolved,
        topology=basis.topology,
        budget=budget,
        deadline=deadline,
        services=made.services,
        target=made.target,
        release=made.release,
        times=kind.times,
        policies=policies,
        pod_security=security,
        notes=(
            *reasons,
            *image_notes,
            *made.notes,
            *policy_notes,
            *kind.notes(resolved),
            *absent_secrets(deployment),
            *unpinned_images(image, (*pods, *made.of_release), made.custom_images),
        ),
        jobs=made.jobs,
        queue=queue,
        measured=kind.outputs(resolved),
        secret_keys=_secret_keys(kind, resolved),
    )
    kind.check_files(lambda: plan.files)
    check_limits(deployment.limits, plan.footprint)
    return plan


def _identity(
    config: Config, images: str, image: ImagePlan, settings: StackSettings, shared: SharedByShapes
) -> Identity:
    experiment, generation, label = shared.experiment, settings.generation, ""
    if shared.whole is not None:
        label = run_id_of(shared.whole, experiment, images=image.name, generation=generation)
    return Identity(
        stack=settings.stack,
        run_id=run_id_of(config, experiment, images=images, generation=generation),
        version=settings.version,
        label=label,
        more_labels=config.deployment.labels,
        annotations=config.deployment.annotations,
    )


def _secret_keys(kind: StackKind[Any], config: Config) -> dict[str, tuple[str, ...]]:
    """Map the name of each Secret to the keys of the stack's configuration that it holds."""
    own = kind.secret_keys(config)
    secrets = {
        "target": tuple(sorted(own.get("target", ()))),
        "upload": tuple(upload_keys(config).values()),
        "pages": tuple(sorted(own.get("pages", ()))),
        "workload": tuple(sorted(own.get("workload", ()))),
    }
    return {name: keys for name, keys in secrets.items() if keys}


def replace_image(config: Config, image: str) -> tuple[Config, tuple[str, ...]]:
    """Return the config with `image` (AIPERF_IMAGE) as the image of the services, and notes about
    the replaced image. The results then name the image that ran. Raises ConfigError if the config
    pins a different image."""
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
    """Return the image of the services: `image`, else this version's. Raises ConfigError."""
    try:
        check_digest(image)
    except ValueError as error:
        raise ConfigError(f"AIPERF_IMAGE (or --image): {error}") from error
    return image or f"localhost/aiperf-svc:{version}"


def check_digests(pods: tuple[PodPlan, ...], custom: Sequence[str]) -> None:
    """Raise ConfigError naming each image without a digest, and a pod that uses it. `custom` are
    the images named by custom resources."""
    used = dict.fromkeys(custom, "custom resource")
    used |= {name: f"pod {pod.name}" for pod in reversed(pods) for name in pod.image_names}
    unpinned = [f"{name} ({users})" for name, users in sorted(used.items()) if not is_pinned(name)]
    if unpinned:
        raise ConfigError(
            f"deployment.require_digests: {', '.join(unpinned)} without a digest; expected "
            "NAME@sha256:DIGEST in deployment.image.name, deployment.target.image and "
            "workload.image, or in AIPERF_IMAGE and AIPERF_WORKLOAD_IMAGE"
        )


def unpinned_images(
    services: ImagePlan, pods: tuple[PodPlan, ...], custom: Sequence[str]
) -> list[str]:
    """Return notes about images that may differ in the next run of the same file."""
    images = {services.name: "services'"}
    for pod in pods:
        for name in pod.image_names:
            images.setdefault(name, f"{pod.name}'s")
    for name in custom:
        images.setdefault(name, "custom resources'")
    return [
        f"the {whose} image {name} has no digest: anyone who may push there can replace it; pin it "
        "as NAME@sha256:DIGEST"
        for name, whose in images.items()
        if is_mutable(name)
    ]


def absent_secrets(deployment: Deployment) -> list[str]:
    """Return notes about Secrets that the stack refers to and its own namespace cannot have yet."""
    if deployment.namespace.mode == "existing":
        return []
    wanted = {f"deployment.image.pull_secrets: {name}" for name in deployment.image.pull_secrets}
    if deployment.results.tls_secret:
        wanted.add(f"deployment.results.tls_secret: {deployment.results.tls_secret}")
    return [
        f"{each}: the namespace is created without this Secret; use namespace.mode: existing, "
        "unless a controller makes it"
        for each in sorted(wanted)
    ]


def required_security(pods: tuple[PodPlan, ...]) -> tuple[PodSecurity, tuple[str, ...]]:
    """Return the strictest level that admits these pods, and why stricter levels do not."""
    hosted = [pod.name for pod in pods if pod.placement.host_network]
    every = [(pod, each) for pod in pods for each in (*pod.preparations, *pod.containers)]
    # Linux gives capabilities only to root, so the level for capabilities includes that for root.
    as_root = [pod.name for pod, each in every if each.run_as_root and not each.capabilities]
    privileged = [f"{name} uses its node's network" for name in hosted]
    privileged += [
        f"container {each.name} of {pod.name} has {', '.join(each.capabilities)}"
        for pod, each in every
        if each.capabilities
    ]
    privileged += [
        f"{pod.name} mounts {volume.source} of its node"
        for pod in pods
        for volume in pod.all_volumes
        if volume.kind == "host-path"
    ]
    reasons = [f"Pod Security privileged: {reason}" for reason in privileged]
    reasons += [f"Pod Security baseline: {name} runs as root" for name in dict.fromkeys(as_root)]
    if privileged:
        return "privileged", tuple(reasons)
    return ("baseline" if as_root else "restricted"), tuple(reasons)
