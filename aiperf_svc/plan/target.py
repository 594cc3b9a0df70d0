"""The pod of the stack's own target, and its URL."""

from urllib.parse import urlsplit

import msgspec

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.events import PACKET_KINDS, SIGNALS
from aiperf_svc.config.placement import Placement, Toleration
from aiperf_svc.config.target import HOST, Target, TargetPods
from aiperf_svc.config.telemetry import PoolPages, Telemetry
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.identity import Identity
from aiperf_svc.plan.lifetime import seconds
from aiperf_svc.plan.pods import (
    HOSTNAME,
    NETWORK,
    VISIT_ANNOTATION,
    ContainerPlan,
    ImagePlan,
    PodPlan,
    Probe,
    Requests,
    SecretKey,
    Volume,
)

VLLM_IMAGE = "vllm/vllm-openai:v0.11.0"
VLLM_COMMAND = ("python3", "-m", "vllm.entrypoints.openai.api_server")
"""Command of vLLM. The image's entrypoint has changed over time; the module has not."""
PULLED_ONCE = "IfNotPresent"
MOCK_COMMAND = ("python", "-P", "-m", "aiperf_svc.mock_server")


def target_pod(config: BenchmarkConfig, image: ImagePlan, *, listen: str = "::") -> PodPlan | None:
    """Return the pod of the stack's own target; None if it has none. The mock server listens on the
    address `listen`."""
    target = config.deployment.target
    if target.kind in ("none", "release"):
        return None
    storage = target.storage or 0
    own_image, command, args = _server(config, image, listen)
    ready_path = target.ready_path or ("/health" if target.kind == "vllm" else None)
    volumes = [Volume("tmp", "/tmp", "scratch", storage)]
    volumes += [
        Volume(
            f"given-{number}",
            each.path,
            "existing-claim" if each.kind == "claim" else each.kind,
            source=each.source,
            is_read_only=each.read_only,
        )
        for number, each in enumerate(target.volumes, start=1)
    ]
    if target.shared_memory:
        volumes.append(Volume("shm", "/dev/shm", "memory", target.shared_memory))
    return PodPlan(
        name=HOST,
        replicas=target.replicas,
        image=own_image,
        command=command,
        args=args,
        env={"HOME": "/tmp", **target.env},
        secret_env={name: SecretKey("target", key) for name, key in target.secret_env.items()},
        volumes=tuple(volumes),
        preparations=_network(config, image),
        ports={"http": target.port},
        has_service=True,
        probe=Probe(target.port, ready_path),
        requests=Requests(
            target.cpu,
            target.memory + target.shared_memory,
            target.cpu_limit,
            target.gpu,
            storage,
            storage,
        ),
        placement=_placement(target, config.deployment.placement),
        run_as_root=target.run_as_root,
        read_only_root=not target.writable,
        # A server with PID 1 ignores the signals of an event.
        shares_processes=any(each.do in SIGNALS and not each.foreign for each in config.events),
        rollout=target.rollout,
        ready_timeout_s=seconds(target.ready_timeout),
    )


def _network(config: BenchmarkConfig, image: ImagePlan) -> tuple[ContainerPlan, ...]:
    """Return the containers that disturb the pod's traffic, if an event needs them: one that checks
    the kernel, and one that waits beside the server."""
    if not any(each.do in PACKET_KINDS for each in config.events):
        return ()
    check = ContainerPlan(
        name=f"{NETWORK}-check",
        image=image,
        args=("netem", "check"),
        field_env={"AIPERF_NODE": "spec.nodeName"},
        requests=Requests(10, 96 * 2**20),
        # Linux gives capabilities only to root.
        run_as_root=True,
        capabilities=("NET_ADMIN",),
    )
    replaced = {"name": NETWORK, "args": ("netem", "wait"), "is_sidecar": True}
    return (check, msgspec.structs.replace(check, **replaced))


def in_visit(target: PodPlan, *, node: str = "", visit: str = "") -> PodPlan:
    """Return the target's pod for one of several visits: on the node with this value of the label
    `kubernetes.io/hostname`, with an image that is pulled only once. A new `visit` makes a new pod,
    even without any other difference."""
    required = target.placement.require_nodes | ({HOSTNAME: (node,)} if node else {})
    return msgspec.structs.replace(
        target,
        image=msgspec.structs.replace(target.image, pull_policy=PULLED_ONCE),
        placement=target.placement.model_copy(update={"require_nodes": required}),
        annotations=target.annotations | ({VISIT_ANNOTATION: visit} if visit else {}),
    )


def watched_pods(config: BenchmarkConfig, identity: Identity, namespace: str) -> TargetPods:
    """Return the pods whose replicas are watched, with the port of their metrics page. `namespace`
    is the stack's. Raises ConfigError."""
    pods = _watched_pods(config, identity, namespace)
    if pods.port is None:
        raise ConfigError("scaling.pods.port: give the port of the pods' page of metrics")
    return pods


def _watched_pods(config: BenchmarkConfig, identity: Identity, namespace: str) -> TargetPods:
    target, scaling = config.deployment.target, config.scaling
    if scaling is not None and scaling.pods is not None:
        return scaling.pods
    if target.kind not in ("none", "release"):
        labels = identity.selector(HOST)
        return TargetPods(namespace=namespace, labels=labels, port=target.port)
    if target.pods is not None:
        return target.pods
    pools = [each for each in target.pools.values() if each.port is not None]
    if len(pools) == 1:
        return TargetPods(namespace=namespace, labels=pools[0].labels, port=pools[0].port)
    if pools:
        raise ConfigError(
            f"scaling: {len(pools)} pools of deployment.target have a port; name the pods of one "
            "in scaling.pods, and the namespace of the stack in deployment.namespace"
        )
    raise ConfigError(
        f"scaling: the pods behind {config.endpoint.url} are unknown: it is neither a server of "
        "the stack's own nor a Service of the cluster; name its pods in scaling.pods"
    )


def resolve_url(config: BenchmarkConfig, host: str) -> str:
    """Return `endpoint.url` with the address `host` of the stack's own target.

    Raises ConfigError when the URL and `deployment.target` disagree.
    """
    url, target = config.endpoint.url, config.deployment.target
    parts = urlsplit(url)
    if target.kind != "none" and config.endpoint.urls:
        raise ConfigError(
            "endpoint.urls: the stack has one target of its own (deployment.target.kind: "
            f"{target.kind}); leave out one of them"
        )
    if target.kind == "none":
        if parts.hostname == HOST:
            raise ConfigError(
                f"endpoint.url is {url!r}: host `{HOST}` stands for a target in the stack, and "
                "there is none; set deployment.target.kind to mock, vllm or custom"
            )
        return url
    if target.url is not None:
        if parts.hostname != HOST or parts.port is not None:
            raise ConfigError(
                f"endpoint.url is {url!r}; expected '{parts.scheme}://{HOST}', which stands for "
                f"deployment.target.url ({target.url})"
            )
        served = urlsplit(target.url)
        return parts._replace(scheme=served.scheme, netloc=served.netloc).geturl()
    if parts.hostname != HOST or parts.port not in (None, target.port):
        raise ConfigError(
            f"endpoint.url is {url!r}; expected '{parts.scheme}://{HOST}' with the stack's own "
            f"target (deployment.target.kind: {target.kind}, port: {target.port})"
        )
    return parts._replace(netloc=f"{host}:{target.port}").geturl()


def first_completion_ns(config: BenchmarkConfig) -> int:
    """Return how long workers wait for a first completion. They always wait for that of a release:
    a router responds before its pools can. In a queue the services are created at the same time as
    the target, not after it."""
    wait_ns, target = config.endpoint.wait_for_server, config.deployment.target
    if config.deployment.queue is not None and target.kind != "none":
        return max(wait_ns, target.ready_timeout)
    return wait_ns or (target.ready_timeout if target.kind == "release" else 0)


def pool_pages(config: BenchmarkConfig, identity: Identity) -> tuple[PoolPages, ...]:
    """Return the metrics pages of a release's pools, by the names of their Services."""
    return tuple(
        PoolPages(name=name, url=f"http://{identity.name(f'pool-{name}')}:{pool.port}{pool.path}")
        for name, pool in config.deployment.target.pools.items()
        if pool.port is not None
    )


def resolve_pages(config: BenchmarkConfig, host: str) -> Telemetry:
    """Return `telemetry` with the address `host` of the stack's own target in the URLs of pages; a
    URL without a port gets the target's port. Raises ConfigError."""
    telemetry, target = config.telemetry, config.deployment.target
    update: dict[str, tuple[str, ...]] = {}
    for key, url, _ in telemetry.named_pages:
        parts = urlsplit(url)
        if parts.hostname == HOST:
            if target.kind == "none":
                raise ConfigError(
                    f"telemetry.{key} has {url!r}: host `{HOST}` stands for a target in the "
                    "stack, and there is none"
                )
            netloc = f"{host}:{parts.port or target.port}"
            url = parts._replace(netloc=netloc).geturl()
        update[key] = (*update.get(key, ()), url)
    return telemetry.model_copy(update=update)


def _server(
    config: BenchmarkConfig, image: ImagePlan, listen: str
) -> tuple[ImagePlan, tuple[str, ...], tuple[str, ...]]:
    """Return the image of the server, its command and its arguments."""
    target, model = config.deployment.target, config.endpoint.model
    if target.kind == "mock":
        place = ("--host", listen, "--port", str(target.port))
        http2 = ("--http2",) if config.endpoint.http2 else ()
        return image, MOCK_COMMAND, (*place, "--model", model, *http2, *target.args)
    image = ImagePlan(target.image or VLLM_IMAGE, image.pull_policy, image.pull_secrets)
    if target.kind != "vllm":
        return image, target.command, target.args
    args = ["--model", model, "--port", str(target.port)]
    if target.gpu and target.gpu.count > 1:
        args += ["--tensor-parallel-size", str(target.gpu.count)]
    return image, target.command or VLLM_COMMAND, (*args, *target.args)


def _placement(target: Target, common: Placement) -> Placement:
    """Return the target's placement: its own keys, else those of `common`. A GPU adds the node
    label of its type, if configured, and a toleration for its usual taint."""
    placement = target.placement.overriding(common)
    if target.gpu is None:
        return placement
    selector = dict(placement.node_selector)
    if target.gpu.type:
        selector[target.gpu.type_label] = target.gpu.type
    accepted = Toleration(key=target.gpu.resource)
    return placement.model_copy(
        update={"node_selector": selector, "tolerations": (*placement.tolerations, accepted)}
    )
