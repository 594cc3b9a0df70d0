"""The pods of the services, one for each group of the topology, and the deadline pod."""

import msgspec

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.secret_names import PAGES_KEY_ENV, TARGET_KEY_ENV
from aiperf_svc.config.workload import Config
from aiperf_svc.domain.process_environment import PROCESS_ENVIRONMENT
from aiperf_svc.plan.identity import ANCHOR, LEASE, RUN_ID, Identity
from aiperf_svc.plan.lifetime import DisruptionBudget, seconds
from aiperf_svc.plan.pod_settings import (
    SCRATCH_BYTES,
    download_bytes,
    own_settings,
    placement_of,
    requests_of,
    with_storage,
)
from aiperf_svc.plan.pods import ImagePlan, PodPlan, Probe, SecretKey, Volume
from aiperf_svc.plan.topology import SINGLETONS, Group, Topology
from aiperf_svc.protocol.ports import BOUND_BY, Port, key_file, with_peers
from aiperf_svc.protocol.services import Service

CONFIG_DIR = "/etc/aiperf"
CURVE_DIR = "/etc/aiperf-curve"
ARTIFACTS_DIR = "/artifacts"
PAGES_KEY = "pagesKey"
"""Key of that of pages of metrics in the stack's configuration and in its Secret."""
TARGET_KEY = "targetApiKey"
"""Key of the target's API key in the stack's configuration and in its Secret."""
UPLOAD_KEYS = {
    "AWS_ACCESS_KEY_ID": "s3AccessKeyId",
    "AWS_SECRET_ACCESS_KEY": "s3SecretAccessKey",
}
"""Environment variables with the keys of an upload to a bucket, and the keys that hold them in the
stack's configuration and in its Secret."""
UPLOAD_TOKEN = {"AWS_SESSION_TOKEN": "s3SessionToken"}
"""Environment variable and key of the session token of temporary keys."""
DEADLINE_KEPT = "/tmp/kept"
"""File that the deadline pod makes when the API server has responded to it."""
TOKEN_KEY = "token"
"""Name of the results API's token in the Secret of the services' keys."""
METRICS_TOKEN_KEY = "metrics-token"
"""Name of the token that reads `/metrics` and nothing else, in the same Secret."""
METRICS_PATH = "/metrics"
PORT_RANGE = {"net.ipv4.ip_local_port_range": "1024 65535"}
"""Range of local ports: 64,511 ports to a target instead of 28,231. A `safe` sysctl, allowed under
`restricted`."""


def service_pods(
    config: Config,
    topology: Topology,
    identity: Identity,
    image: ImagePlan,
    *,
    is_held: bool = False,
    upload_into: str = "",
) -> tuple[PodPlan, ...]:
    """Return one pod for each group of the topology. The load of a held run waits for a start.
    `upload_into` is the folder of a bucket that several stacks share."""
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
        **({"AIPERF_HELD": "1"} if is_held else {}),
        **({"AIPERF_UPLOAD_INTO": upload_into} if upload_into else {}),
    }
    return tuple(_service_pod(config, topology, group, image, env) for group in topology.groups)


def deadline_pod(
    config: Config,
    identity: Identity,
    image: ImagePlan,
    *,
    budget: DisruptionBudget | None = None,
) -> PodPlan:
    """Return the pod that deletes the stack when its TTL is over. It also deletes the disruption
    budget when the load must be over. No other pod talks to the API server."""
    is_guest = config.deployment.namespace.mode == "existing"
    volumes = (Volume("tmp", "/tmp", "scratch", 64 * 2**20),)
    hold_env: dict[str, str] = {}
    if budget and budget.hold is not None:
        hold_env = {
            "AIPERF_BUDGET": budget.name,
            "AIPERF_BUDGET_SECONDS": str(seconds(budget.hold)),
        }
    return PodPlan(
        name="deadline",
        replicas=1,
        image=image,
        args=("deadline",),
        env={
            "AIPERF_ANCHOR": identity.name(ANCHOR),
            "AIPERF_LEASE": identity.name(LEASE),
            "AIPERF_TTL_SECONDS": str(seconds(config.deployment.ttl)),
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
    image: ImagePlan,
    env: dict[str, str],
) -> PodPlan:
    is_worker = Service.WORKER in group.services
    has_results = Service.RECORDS_MANAGER in group.services
    ports = _ports(group, topology)
    placement = placement_of(config, group.name)
    secret_env: dict[str, SecretKey] = {}
    if has_results:
        secret_env["AIPERF_API_TOKEN"] = SecretKey("keys", TOKEN_KEY)
        if config.deployment.monitoring == "prometheus-operator":
            secret_env["AIPERF_METRICS_TOKEN"] = SecretKey("keys", METRICS_TOKEN_KEY)
        for variable, key in upload_keys(config).items():
            secret_env[variable] = SecretKey("upload", key)
        if has_pages_key(config):
            secret_env[PAGES_KEY_ENV] = SecretKey("pages", PAGES_KEY)
    if has_target_key(config) and (is_worker or _calls_hooks(config, group)):
        secret_env[TARGET_KEY_ENV] = SecretKey("target", TARGET_KEY)
    scratch = SCRATCH_BYTES + download_bytes(config)
    results = config.deployment.results.storage
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
        secret_env=secret_env,
        volumes=volumes,
        ports=ports,
        has_service=group.services[0] in SINGLETONS and bool(ports),
        probe=_probe(ports),
        requests=with_storage(requests_of(config, group.name, topology), volumes),
        placement=placement,
        annotations={
            **(_scrape_annotations(config) if has_results else {}),
            **own_settings(config, group.name).annotations,
        },
        # The API refuses network sysctls for pods in the node's own network.
        sysctls=PORT_RANGE if is_worker and not placement.host_network else {},
        ready_timeout_s=seconds(config.deployment.ready_timeout),
    )


def _calls_hooks(config: Config, group: Group) -> bool:
    has_hooks = isinstance(config, BenchmarkConfig) and config.may_call_hooks
    return has_hooks and Service.TIMING_MANAGER in group.services


def _scrape_annotations(config: Config) -> dict[str, str]:
    """Return the annotations by which a Prometheus without the operator finds a page."""
    if config.deployment.monitoring != "annotations":
        return {}
    found = {"scrape": "true", "path": METRICS_PATH, "port": str(int(Port.RESULTS_API))}
    return {f"prometheus.io/{name}": value for name, value in found.items()}


def has_target_key(config: Config) -> bool:
    """Return whether the workers need the key of an inference server."""
    return isinstance(config, BenchmarkConfig) and config.endpoint.api_key_env is not None


def has_pages_key(config: Config) -> bool:
    """Return whether pages of metrics of an inference server have a key."""
    return isinstance(config, BenchmarkConfig) and config.telemetry.key_env is not None


def upload_keys(config: Config) -> dict[str, str]:
    """Return the key of the stack's configuration by environment variable, for an upload to a
    bucket."""
    s3 = config.artifacts.s3
    if s3 is None:
        return {}
    return {**UPLOAD_KEYS, **(UPLOAD_TOKEN if s3.has_session_token else {})}


def key_files(group: Group) -> tuple[str, ...]:
    """Return the pod's own keys, and the public keys of the services that it communicates with."""
    public = [key_file(service, "public") for service in with_peers(group.services)]
    return tuple(sorted(public + [key_file(service, "secret") for service in group.services]))


def _ports(group: Group, topology: Topology) -> dict[str, int]:
    bound = {port for port, service in BOUND_BY.items() if service in group.services}
    # The dataset manager serves through the controller's proxy; processors only on the direct way.
    if topology.raw_route == "proxy":
        bound.discard(Port.RAW_DIRECT)
    return {port.name.lower().replace("_", "-"): int(port) for port in sorted(bound)}


def _probe(ports: dict[str, int]) -> Probe | None:
    if Port.RESULTS_API in ports.values():
        return Probe(int(Port.RESULTS_API), "/readyz")
    if ports:
        return Probe(max(ports.values()))
    return None
