"""The pods of a workload's ranks: a courier, which is a worker, and the workload's container.

Both share one folder, where an init container puts the loop that runs commands. The pods belong to
StatefulSets, since they need stable names.
"""

from dataclasses import dataclass
from functools import partial

import msgspec

from aiperf_svc.config.deployment import RANK_POD
from aiperf_svc.config.placement import Network, Ranks, RankVolume
from aiperf_svc.config.workload import AnyWorkloadConfig
from aiperf_svc.plan.identity import Identity
from aiperf_svc.plan.network import OutsideUrl, Policies, plan_policies, rank_policies
from aiperf_svc.plan.pod_settings import (
    BESIDE_RANKS_CPU,
    SCRATCH_BYTES,
    in_pods,
    own_settings,
    requests_of,
    with_storage,
)
from aiperf_svc.plan.pods import (
    COURIER,
    ContainerPlan,
    ImagePlan,
    PodPlan,
    PodSet,
    Requests,
    SecretKey,
    Volume,
)
from aiperf_svc.plan.service_pods import ServiceNeeds, service_pods
from aiperf_svc.plan.stack_kind import KindPods, StackBasis, StackKind
from aiperf_svc.plan.topology import Facts, Topology, plan_ranks

RANK_DIR = "/rank"
"""Folder shared by courier and rank, at the same path in both."""
VOLUME_DIR = "/volume"
"""Folder that a disk benchmark measures."""
NETWORK_DIR = "/etc/aiperf-network"
NETWORK_FILE = "status"
NETWORK_STATUS = "k8s.v1.cni.cncf.io/network-status"
"""Annotation to which Multus writes the pod's interfaces and addresses."""
DEFAULT_NETWORK = "v1.multus-cni.io/default-network"
RANK_BYTES = 8 * 2**30
"""Limit of the shared folder, which holds the files and the output of a step."""
SHM_SHARE = 2
"""A rank's /dev/shm is its memory divided by this. A container's default is 64 MiB, too little for
the data that MPI and PyTorch share between processes."""


class RankNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements of a workload for its stack."""

    count: int
    """Number of ranks."""
    image: str
    """Image of the ranks."""
    capabilities: tuple[str, ...] = ()
    """Linux capabilities of the ranks."""
    outside: tuple[OutsideUrl, ...] = ()
    """Servers outside the stack that the ranks connect to."""
    notes: tuple[str, ...] = ()
    """Notes for reviewers."""


@dataclass(frozen=True, kw_only=True)
class RankStack(StackKind[AnyWorkloadConfig]):
    """A stack whose workers are couriers of ranks."""

    needs: RankNeeds

    def resolve(self, identity: Identity) -> AnyWorkloadConfig:
        return self.config.model_copy(update={"deployment": in_pods(self.config.deployment)})

    def images(self, services: str) -> str:
        return f"{services} {self.needs.image}"

    def topology(self) -> Topology:
        return plan_ranks(self.trials[0].deployment, self.needs.count, Facts(where="cluster"))

    def pods(self, basis: StackBasis[AnyWorkloadConfig]) -> KindPods:
        config = basis.config
        found = service_pods(basis, config, ServiceNeeds(cpu_millis=BESIDE_RANKS_CPU))
        return KindPods(
            services=tuple(
                rank_pod(pod, config, self.needs, basis.identity) if pod.name == RANK_POD else pod
                for pod in found
            )
        )

    def policies(self, basis: StackBasis[AnyWorkloadConfig], pods: tuple[PodPlan, ...]) -> Policies:
        of_ranks = partial(rank_policies, outside=self.needs.outside)
        return plan_policies(basis.config, basis.topology, pods, of_ranks)

    def outputs(self, config: AnyWorkloadConfig) -> dict[str, str]:
        return {"workload": config.kind}

    def notes(self, config: AnyWorkloadConfig) -> tuple[str, ...]:
        return (*self.needs.notes, *super().notes(config))

    def secret_keys(self, config: AnyWorkloadConfig) -> dict[str, set[str]]:
        return {"workload": set(config.workload.secret_env.values())}


def rank_pod(
    courier: PodPlan,
    config: AnyWorkloadConfig,
    needs: RankNeeds,
    identity: Identity,
) -> PodPlan:
    """Return the pod of the ranks, based on the pod that the courier would have as a worker."""
    ranks = config.deployment.ranks
    requested = msgspec.structs.replace(requests_of(config, RANK_POD), devices=ranks.devices)
    volume = _volume(ranks.volume or RankVolume())
    shared = Volume("rank", RANK_DIR, "scratch", RANK_BYTES)
    image = ImagePlan(needs.image, courier.image.pull_policy, courier.image.pull_secrets)
    env = _courier_env(ranks, requested)
    placement, annotations = courier.placement, own_settings(config, RANK_POD).annotations
    if ranks.host_network:
        placement = placement.model_copy(update={"host_network": True})
    network, status = ranks.network, tuple[Volume, ...]()
    if network is not None and network.attach == "default":
        annotations = {DEFAULT_NETWORK: network.name, **annotations}
    elif network is not None:
        networks = (*placement.networks, Network(name=network.name))
        placement = placement.model_copy(update={"networks": networks})
        status = (Volume("network", NETWORK_DIR, "annotations", source=NETWORK_STATUS),)
        env["AIPERF_RANK_NETWORK"] = network.name
        env["AIPERF_NETWORK_STATUS"] = f"{NETWORK_DIR}/{NETWORK_FILE}"
    labels, gang = _gang(ranks, needs.count, identity)
    # Linux gives capabilities only to root, and root usually owns the folder of a node.
    is_root = bool(needs.capabilities) or volume.kind == "host-path"
    folder = _preparation(courier, "folder", (shared,), env, is_root)
    preparations = [folder]
    if ranks.mtu is not None:
        wanted = {**env, "AIPERF_RANK_MTU": str(ranks.mtu)}
        mtu = _preparation(courier, "mtu", status, wanted, is_root=True)
        preparations.append(msgspec.structs.replace(mtu, capabilities=("NET_ADMIN",)))
    scratch = Volume("rank-tmp", "/tmp", "scratch", SCRATCH_BYTES)
    memory = Volume("shm", "/dev/shm", "memory", requested.memory_bytes // SHM_SHARE)
    rank = ContainerPlan(
        name=RANK_POD,
        image=image,
        command=("sh", f"{RANK_DIR}/rank_loop.sh", RANK_DIR),
        env={"HOME": "/tmp"},
        volumes=(shared, volume, scratch, memory),
        requests=with_storage(requested, (volume, scratch, memory)),
        run_as_root=is_root,
        # Tools of any image may write to their own folders.
        read_only_root=ranks.read_only_root,
        capabilities=needs.capabilities,
    )
    return msgspec.structs.replace(
        courier,
        env={**courier.env, **env},
        field_env={**courier.field_env, "AIPERF_NODE": "spec.nodeName"},
        secret_env={
            **courier.secret_env,
            **{n: SecretKey("workload", key) for n, key in config.workload.secret_env.items()},
        },
        volumes=(*courier.volumes, shared, volume, *status),
        requests=with_storage(requests_of(config, COURIER), (*courier.volumes, shared)),
        sidecars=(rank,),
        preparations=tuple(preparations),
        sets=_sets(ranks, needs.count, identity),
        replicas_on=ranks.nodes if isinstance(ranks.nodes, str) else "any",
        scheduler="volcano" if ranks.gang == "volcano" else None,
        labels=labels,
        has_service=True,
        placement=placement,
        annotations={**gang, **annotations},
        # Servers of the tools listen on ports in the range that workers would use.
        sysctls={},
        run_as_root=is_root,
    )


def _preparation(
    courier: PodPlan,
    what: str,
    volumes: tuple[Volume, ...],
    env: dict[str, str],
    is_root: bool,
) -> ContainerPlan:
    return ContainerPlan(
        name=what,
        image=courier.image,
        args=("rank-setup", what),
        env=env,
        field_env={"AIPERF_ADVERTISE": "status.podIP", "AIPERF_NODE": "spec.nodeName"},
        volumes=volumes,
        requests=with_storage(Requests(10, 64 * 2**20), ()),
        run_as_root=is_root,
    )


def _courier_env(ranks: Ranks, requested: Requests) -> dict[str, str]:
    """Return the variables that describe a courier's pod."""
    env = {
        "AIPERF_RANK_DIR": RANK_DIR,
        "AIPERF_RANK_VOLUME": VOLUME_DIR,
        "AIPERF_RANK_MEMORY": str(requested.memory_bytes),
    }
    if requested.cpu_limit_millis is not None:
        env["AIPERF_RANK_CORES"] = f"{requested.cpu_limit_millis / 1000:g}"
    if ranks.host_network:
        env["AIPERF_HOST_NETWORK"] = "1"
    return env


def _volume(wanted: RankVolume) -> Volume:
    match wanted.kind:
        case "empty-dir":
            return Volume("volume", VOLUME_DIR, "scratch", wanted.size)
        case "host-path":
            return Volume("volume", VOLUME_DIR, "host-path", source=wanted.path or "")
        case "claim" | "shared-claim":
            source = wanted.storage_class or ""
            return Volume("volume", VOLUME_DIR, wanted.kind, wanted.size, source=source)


def _sets(ranks: Ranks, count: int, identity: Identity) -> tuple[PodSet, ...]:
    """Return one set. If nodes are named, return one for each rank, because all pods of a set have
    the same choice of nodes."""
    if isinstance(ranks.nodes, str):
        return (PodSet(RANK_POD, count),)
    return tuple(
        PodSet(
            f"{RANK_POD}-{number}",
            1,
            node=ranks.nodes[number % len(ranks.nodes)],
            service_id=f"{identity.name(RANK_POD)}-{number}",
        )
        for number in range(count)
    )


def _gang(ranks: Ranks, count: int, identity: Identity) -> tuple[dict[str, str], dict[str, str]]:
    """Return the labels and annotations that make the ranks start together or not at all."""
    group = identity.name(RANK_POD)
    match ranks.gang:
        case "kueue":
            queue = {"kueue.x-k8s.io/queue-name": ranks.queue} if ranks.queue else {}
            labels = {**queue, "kueue.x-k8s.io/pod-group-name": group}
            return labels, {"kueue.x-k8s.io/pod-group-total-count": str(count)}
        case "coscheduling":
            return {"scheduling.x-k8s.io/pod-group": group}, {}
        case "volcano":
            queue = {"scheduling.volcano.sh/queue-name": ranks.queue} if ranks.queue else {}
            return {}, {"scheduling.k8s.io/group-name": group, **queue}
        case "none":
            return {}, {}
