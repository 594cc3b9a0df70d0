"""The pods of the services, one for each group of the topology, and the deadline pod."""

import json

import msgspec

from aiperf_svc.config.workload import Config, ConfigT
from aiperf_svc.domain.process_environment import PROCESS_ENVIRONMENT
from aiperf_svc.plan.identity import ANCHOR, LEASE, RUN_ID, Identity
from aiperf_svc.plan.lifetime import DisruptionBudget, seconds
from aiperf_svc.plan.pod_settings import (
    SCRATCH_BYTES,
    own_settings,
    placement_of,
    requests_of,
    with_storage,
)
from aiperf_svc.plan.pods import ImagePlan, PodPlan, Probe, SecretKey, Volume
from aiperf_svc.plan.release import ReleasePlan, path_of
from aiperf_svc.plan.stack_kind import StackBasis
from aiperf_svc.plan.topology import SINGLETONS, Group, Topology
from aiperf_svc.protocol.ports import BOUND_BY, Port, key_file, with_peers
from aiperf_svc.protocol.services import Service

CONFIG_DIR = "/etc/aiperf"
CURVE_DIR = "/etc/aiperf-curve"
ARTIFACTS_DIR = "/artifacts"
PAGES_KEY = "pagesKey"
"""Key for pages of metrics, in the stack's configuration and in its Secret."""
TARGET_KEY = "targetApiKey"
"""Key for the target's API key, in the stack's configuration and in its Secret."""
UPLOAD_KEYS = {
    "AWS_ACCESS_KEY_ID": "s3AccessKeyId",
    "AWS_SECRET_ACCESS_KEY": "s3SecretAccessKey",
}
"""Environment variables with the keys of an upload to a bucket, and the keys that hold them in the
stack's configuration and in its Secret."""
UPLOAD_TOKEN = {"AWS_SESSION_TOKEN": "s3SessionToken"}
"""Environment variable and key of the session token of temporary keys."""
DEADLINE_KEPT = "/tmp/kept"
"""File that the deadline pod creates once the API server has responded."""
TOKEN_KEY = "token"
"""Name of the results API's token in the Secret with the services' keys."""
METRICS_TOKEN_KEY = "metrics-token"
"""Name of the token that only permits reading `/metrics`, in the same Secret."""
METRICS_PATH = "/metrics"
PORT_RANGE = {"net.ipv4.ip_local_port_range": "1024 65535"}
"""Range of local ports: 64,511 ports to a target instead of 28,231. A `safe` sysctl, allowed under
`restricted`."""


class ServiceNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements of one kind of benchmark for the pods of its services."""

    secret_env: dict[Service, dict[str, SecretKey]] = {}
    """Secrets by variable, for each service that needs any."""
    download_bytes: int = 0
    """Space for downloads in each scratch volume."""
    cpu_millis: dict[str, int] = {}
    """CPU of pods by name, unless the config sets it; other pods have the default."""
    worker_bytes: int | None = None
    """Memory of a worker, unless the config sets it; None: the default."""


def service_pods(
    basis: StackBasis[ConfigT], config: ConfigT, needs: ServiceNeeds
) -> tuple[PodPlan, ...]:
    """Return one pod for each group of the topology. `config` is the basis' config with the largest
    load of all trials."""
    topology, identity = basis.topology, basis.identity
    hosts = {
        service.value: identity.name(group.name)
        for group in topology.groups
        for service in group.services
        if service in SINGLETONS and _ports(group, topology)
    }
    env = PROCESS_ENVIRONMENT | {
        RUN_ID: identity.run_id,
        "AIPERF_CONFIG": f"{CONFIG_DIR}/config.yaml",
        "AIPERF_TOPOLOGY": f"{CONFIG_DIR}/topology.json",
        "AIPERF_BUS": "tcp://*",
        "AIPERF_HOSTS": msgspec.json.encode(hosts).decode(),
        "AIPERF_CURVE_DIR": CURVE_DIR,
        "AIPERF_ARTIFACTS": ARTIFACTS_DIR,
        "AIPERF_LOG_FORMAT": "json",
        "AIPERF_RESULTS_PORT": str(int(Port.RESULTS_API)),
        **basis.run.environment(),
    }
    return tuple(
        _service_pod(config, topology, group, needs, image=basis.image, env=env)
        for group in topology.groups
    )


def deadline_pod(
    config: Config,
    identity: Identity,
    image: ImagePlan,
    *,
    budget: DisruptionBudget | None = None,
    release: ReleasePlan | None = None,
) -> PodPlan:
    """Return the pod that deletes the stack when its TTL expires. It also deletes the disruption
    budget after the maximum time of the load. No other pod calls the API server."""
    is_guest = config.deployment.namespace.mode == "existing"
    volumes = (Volume("tmp", "/tmp", "scratch", 64 * 2**20),)
    hold_env: dict[str, str] = {}
    if budget and budget.hold is not None:
        hold_env = {
            "AIPERF_BUDGET": budget.name,
            "AIPERF_BUDGET_SECONDS": str(seconds(budget.hold)),
        }
    if release is not None and release.deleted_first:
        paths = [path_of(each) for each in release.deleted_first]
        hold_env |= {
            "AIPERF_CUSTOM_RESOURCES": json.dumps(paths),
            "AIPERF_CUSTOM_RESOURCES_SECONDS": str(seconds(config.deployment.delete_timeout)),
        }
    return PodPlan(
        name="deadline",
        replicas=1,
        image=image,
        args=("deadline",),
        env={
            "AIPERF_ANCHOR": identity.name(ANCHOR),
            "AIPERF_LEASE": identity.name(LEASE),
            "AIPERF_TTL_SECONDS": str(seconds(config.deployment.longest_life)),
            "AIPERF_DEADLINE_DELETES": "anchor" if is_guest else "namespace",
            **hold_env,
            "AIPERF_READY_FILE": DEADLINE_KEPT,
        },
        field_env={"AIPERF_NAMESPACE": "metadata.namespace"},
        volumes=volumes,
        ready_file=DEADLINE_KEPT,
        requests=with_storage(requests_of(config, "deadline"), volumes),
        placement=placement_of(config, "deadline"),
        annotations=own_settings(config, "deadline").annotations,
        calls_api=True,
        ready_timeout_s=seconds(config.deployment.ready_timeout),
    )


def _service_pod(
    config: Config,
    topology: Topology,
    group: Group,
    needs: ServiceNeeds,
    *,
    image: ImagePlan,
    env: dict[str, str],
) -> PodPlan:
    is_worker = Service.WORKER in group.services
    has_results = Service.RECORDS_MANAGER in group.services
    ports = _ports(group, topology)
    placement = placement_of(config, group.name)
    scratch = SCRATCH_BYTES + needs.download_bytes
    results = config.deployment.results.storage
    requests = requests_of(
        config,
        group.name,
        cpu_millis=needs.cpu_millis.get(group.name),
        memory_bytes=needs.worker_bytes if group.name == Service.WORKER else None,
    )
    volumes = (
        Volume("config", CONFIG_DIR, "config"),
        Volume("curve", CURVE_DIR, "keys", items=key_files(group)),
        Volume("tmp", "/tmp", "scratch", scratch),
        Volume("artifacts", ARTIFACTS_DIR, "scratch", results if has_results else scratch),
    )
    return PodPlan(
        name=group.name,
        replicas=group.replicas,
        image=image,
        args=("service",),
        env={"AIPERF_SERVICE": ",".join(group.services), **env},
        field_env={
            "AIPERF_SERVICE_ID": "metadata.name",
            "AIPERF_ADVERTISE": "status.podIP",
            **({"AIPERF_NAMESPACE": "metadata.namespace"} if has_results else {}),
        },
        secret_env=_secret_env(config, group, needs),
        volumes=volumes,
        ports=ports,
        has_service=group.services[0] in SINGLETONS and bool(ports),
        probe=_probe(ports),
        requests=with_storage(requests, volumes),
        placement=placement,
        annotations={
            **(_scrape_annotations(config) if has_results else {}),
            **own_settings(config, group.name).annotations,
        },
        # The API refuses network sysctls for pods in the node's own network.
        sysctls=PORT_RANGE if is_worker and not placement.host_network else {},
        ready_timeout_s=seconds(config.deployment.ready_timeout),
    )


def _secret_env(config: Config, group: Group, needs: ServiceNeeds) -> dict[str, SecretKey]:
    found: dict[str, SecretKey] = {}
    if Service.RECORDS_MANAGER in group.services:
        found["AIPERF_API_TOKEN"] = SecretKey("keys", TOKEN_KEY)
        if config.deployment.monitoring == "prometheus-operator":
            found["AIPERF_METRICS_TOKEN"] = SecretKey("keys", METRICS_TOKEN_KEY)
        for variable, key in upload_keys(config).items():
            found[variable] = SecretKey("upload", key)
    for service, secrets in needs.secret_env.items():
        found |= secrets if service in group.services else {}
    return found


def _scrape_annotations(config: Config) -> dict[str, str]:
    """Return the annotations that let a Prometheus without the operator find a page."""
    if config.deployment.monitoring != "annotations":
        return {}
    found = {"scrape": "true", "path": METRICS_PATH, "port": str(int(Port.RESULTS_API))}
    return {f"prometheus.io/{name}": value for name, value in found.items()}


def upload_keys(config: Config) -> dict[str, str]:
    """Map environment variables to keys of the stack's configuration, for an upload to a bucket."""
    s3 = config.artifacts.s3
    if s3 is None:
        return {}
    return {**UPLOAD_KEYS, **(UPLOAD_TOKEN if s3.has_session_token else {})}


def key_files(group: Group) -> tuple[str, ...]:
    """Return the pod's own key files, and the public keys of its peer services."""
    public = [key_file(service, "public") for service in with_peers(group.services)]
    return tuple(sorted(public + [key_file(service, "secret") for service in group.services]))


def _ports(group: Group, topology: Topology) -> dict[str, int]:
    bound = {port for port, service in BOUND_BY.items() if service in group.services}
    # The dataset manager serves through the proxy, processors only on the direct route.
    if topology.raw_route == "proxy":
        bound.discard(Port.RAW_DIRECT)
    return {port.name.lower().replace("_", "-"): int(port) for port in sorted(bound)}


def _probe(ports: dict[str, int]) -> Probe | None:
    if Port.RESULTS_API in ports.values():
        return Probe(int(Port.RESULTS_API), "/readyz")
    if ports:
        return Probe(max(ports.values()))
    return None
