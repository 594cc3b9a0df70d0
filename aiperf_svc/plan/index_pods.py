"""The pod of an index of a Job: the server under test, and all services that measure it.

The services run like processes on one machine. An init container prepares the start of the server,
whose arguments and variables differ between the indexes of a Job; its launcher starts it.
"""

import functools
import operator
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.target import HOST
from aiperf_svc.config.urls import address_of
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.process_environment import PROCESS_ENVIRONMENT
from aiperf_svc.plan.experiments import largest_load, largest_topology
from aiperf_svc.plan.identity import RUN_ID
from aiperf_svc.plan.inference import secrets_of
from aiperf_svc.plan.pod_settings import (
    SCRATCH_BYTES,
    download_bytes,
    requests_of,
    with_storage,
    worker_bytes,
)
from aiperf_svc.plan.pods import GRACE_S, ContainerPlan, ImagePlan, PodPlan, Requests, Volume
from aiperf_svc.plan.service_pods import ARTIFACTS_DIR, CONFIG_DIR, CURVE_DIR, PORT_RANGE, key_files
from aiperf_svc.plan.stack_kind import StackBasis
from aiperf_svc.plan.target import resolve_pages, resolve_url, target_pod
from aiperf_svc.plan.topology import Facts, Group, Topology, plan
from aiperf_svc.protocol.services import Service

KEY = "experiment.fan_out: jobs"
COLLECTOR = "collector"
INDEX = "index"
SHAPES_ENV = "AIPERF_SHAPES"
"""Variable of an index's pod with the shape numbers of the indexes of its Job."""
LAUNCH_DIR = "/aiperf-server"
"""Folder of the launcher of an index's server, for its command and its outcome."""
LAUNCHER = "server_launcher"
LOOPBACK = "127.0.0.1"
FAILURES = "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"
"""Field with the number of failed attempts of an index."""
COLLECTION_S = 120
"""Maximum time from the end of an index's load until the collector has its results."""
MAX_LAUNCH_BYTES = 16 * 2**20
"""Size limit of the launcher's folder."""
_KEYS = Group(INDEX, (Service.RECORD_PROCESSOR,), 1)
"""The service whose CURVE key each index uses."""


class Server(NamedTuple):
    """The server of an index, as its launcher starts it."""

    command: tuple[str, ...]
    env: dict[str, str]


def index_config(config: BenchmarkConfig) -> BenchmarkConfig:
    """Return the config of a shape or trial with the server in the pod of its index, and thus with
    the layout of one machine. Raises ConfigError."""
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
    # The template of the pod has the image.
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
            f"{target.image!r}, whose own entrypoint is unknown here (docker inspect shows it)"
        )
    texts = (*pod.command, *pod.args, *pod.env.values())
    if reference := next((text for text in texts if "$(" in text), ""):
        raise ConfigError(
            f"{KEY}: deployment.target: {reference!r}: references $(NAME) to variables are not "
            "resolved in the pods of Jobs; write the value"
        )
    return Server((*pod.command, *pod.args), pod.env)


def check_index(config: BenchmarkConfig) -> None:
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
    pages = (page.url for page in telemetry.named_pages)
    if other := next((url for url in pages if address_of(url).host != HOST), ""):
        raise ConfigError(
            f"{KEY}: telemetry has {other}; only pages of the server itself are read there, "
            f"http://{HOST}:PORT/metrics"
        )


def index_template(
    trials: Sequence[BenchmarkConfig], basis: StackBasis[BenchmarkConfig]
) -> PodPlan:
    """Return the pod of an index, without the parts that differ within a Job."""
    config, identity, image = trials[0], basis.identity, basis.image
    topology = index_topology(trials)
    load = largest_load(config, trials)
    server = target_pod(config, image)
    assert server is not None
    launch = Volume("server", LAUNCH_DIR, "scratch", MAX_LAUNCH_BYTES)
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
        **basis.run.environment(),
    }
    memory = {Service.WORKER.value: worker_bytes(load, topology)}
    parts = (
        requests_of(config, g.name, memory_bytes=memory.get(g.name))
        for g in topology.groups
        for _ in range(g.replicas)
    )
    secrets = secrets_of(config)
    small = with_storage(Requests(10, 128 * 2**20), (launch,))
    return PodPlan(
        name=INDEX,
        replicas=1,
        image=image,
        args=("index",),
        env=env,
        field_env={
            "AIPERF_SERVICE_ID": "metadata.name",
            "AIPERF_ADVERTISE": "status.podIP",
            "AIPERF_FAILURES": FAILURES,
        },
        secret_env=secrets[Service.WORKER] | secrets[Service.RECORDS_MANAGER],
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
                command=(f"{LAUNCH_DIR}/{LAUNCHER}", LAUNCH_DIR, str(GRACE_S)),
                secret_env=server.secret_env,
                volumes=(*server.volumes, launch),
                requests=server.requests,
                run_as_root=server.run_as_root,
                read_only_root=server.read_only_root,
                is_sidecar=True,
            ),
        ),
        requests=with_storage(functools.reduce(operator.add, parts), volumes),
        placement=server.placement,
        sysctls=PORT_RANGE,
        # A pod that receives SIGTERM sends the trials that have ended.
        grace_s=COLLECTION_S,
        ready_timeout_s=server.ready_timeout_s,
    )


def index_pod(
    template: PodPlan, name: str, shapes: Sequence[int], retries: int, *, replicas: int
) -> PodPlan:
    """Return the pod of a Job with these shapes. Each may be retried `retries` times."""
    own = {SHAPES_ENV: ",".join(map(str, shapes)), "AIPERF_RETRIES": str(retries)}
    setup, server = template.preparations
    return msgspec.structs.replace(
        template,
        name=name,
        replicas=replicas,
        env=template.env | own,
        preparations=(msgspec.structs.replace(setup, env=setup.env | own), server),
    )
