"""Where a rank runs: its folder, address, node and limits, from the environment."""

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from aiperf_svc.adapters.host.machine import usable_cores
from aiperf_svc.adapters.ranks.counters import interface_of
from aiperf_svc.domain.errors import EnvironmentProblem

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class RankEnvironment:
    folder: Path
    """Folder that the courier and the rank's loop share; both use the same path."""
    volume: Path
    is_volume_removed: bool = False
    """Whether the volume is a folder that is removed after the run."""
    address: str
    interface: str
    node: str
    cores: float
    memory_bytes: int
    is_container: bool
    """Whether the loop is process 1 of a container; else it is a child of the courier."""
    is_shared_network: bool
    """Whether other programs use the same network interfaces."""

    def is_left(self, path: Path) -> bool:
        """Return whether a command created this file. In a pod, a link may lead out of the folders
        that the rank's container shares, to files of the courier's own container such as its
        keys."""
        if not path.is_file():
            return False
        found = path.resolve()
        shared = self.folder, self.volume
        return not self.is_container or any(map(found.is_relative_to, shared))


def local_environment(state: Path, instance: str, volume: str | None) -> RankEnvironment:
    """Return the environment of a rank on this machine. `volume` is the folder in the config."""
    folder = state / instance
    own = folder / "volume"
    own.mkdir(parents=True, exist_ok=True)
    return RankEnvironment(
        folder=folder,
        volume=Path(volume) if volume else own,
        address=LOOPBACK,
        interface="lo",
        node=socket.gethostname(),
        cores=usable_cores(),
        memory_bytes=0,
        is_container=False,
        is_shared_network=True,
    )


def pod_environment(environ: Mapping[str, str] = os.environ) -> RankEnvironment:
    """Return the environment of a rank in a pod, from its variables. Raises EnvironmentProblem."""
    try:
        address = environ["AIPERF_ADVERTISE"]
        status = environ.get("AIPERF_NETWORK_STATUS")
        network = environ.get("AIPERF_RANK_NETWORK", "")
        if status and network:
            address = address_on(network, Path(status).read_text())
        return RankEnvironment(
            folder=Path(environ["AIPERF_RANK_DIR"]),
            volume=Path(environ["AIPERF_RANK_VOLUME"]),
            address=address,
            interface=interface_of(address),
            node=environ["AIPERF_NODE"],
            cores=float(environ.get("AIPERF_RANK_CORES") or usable_cores()),
            memory_bytes=int(environ.get("AIPERF_RANK_MEMORY", "0")),
            is_container=True,
            is_shared_network=environ.get("AIPERF_HOST_NETWORK") == "1",
        )
    except KeyError as error:
        raise EnvironmentProblem(f"{error.args[0]} is not set in this pod") from error


def with_own_volume(environment: RankEnvironment, run_id: str) -> RankEnvironment:
    """Return the environment with a new subfolder as its volume. The volume is a folder of the
    machine, where a tool's files must neither remain nor replace other files. Raises
    EnvironmentProblem."""
    volume = environment.volume / f"aiperf-{run_id}"
    try:
        # The ranks of a machine share the folder, so each finds the files of the others.
        volume.mkdir(exist_ok=True)
    except OSError as error:
        raise EnvironmentProblem(
            f"deployment.ranks.volume.path: cannot create {volume}: {error.strerror}"
        ) from error
    return replace(environment, volume=volume, is_volume_removed=True)


def address_on(network: str, status: str) -> str:
    """Return the pod's IPv4 address on a network of Multus, from the annotation
    `k8s.v1.cni.cncf.io/network-status`. Raises EnvironmentProblem."""
    try:
        interfaces = json.loads(status)
    except ValueError:
        interfaces = []
    wanted = network.rpartition("/")[2]
    for interface in interfaces:
        if str(interface.get("name", "")).rpartition("/")[2] == wanted:
            for address in interface.get("ips", ()):
                if ":" not in address:
                    return str(address)
    raise EnvironmentProblem(
        f"the pod has no address on network {network}: its annotation network-status is "
        f"{status.strip()[:300] or 'empty'}; is Multus installed, and the definition there?"
    )
