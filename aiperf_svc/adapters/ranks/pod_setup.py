"""Prepares a rank's pod before its containers start."""

import fcntl
import os
import socket
import struct
from pathlib import Path

from aiperf_svc.adapters.ranks.launches import make_launch_folder
from aiperf_svc.adapters.ranks.rank_environment import pod_environment
from aiperf_svc.adapters.ranks.rank_shell import make_folder
from aiperf_svc.domain.errors import EnvironmentProblem

SIOCSIFMTU = 0x8922
"""Request that sets an interface's MTU, from <linux/sockios.h>."""


def make_rank_folder() -> None:
    """Create the files that the rank and its courier share. Raises EnvironmentProblem."""
    try:
        folder = Path(os.environ["AIPERF_RANK_DIR"])
        make_folder(folder)
        make_launch_folder(folder)
    except KeyError as error:
        raise EnvironmentProblem(f"{error.args[0]} is not set in this pod") from error
    except OSError as error:
        raise EnvironmentProblem(f"cannot create the rank's folder: {error}") from error


def set_mtu() -> None:
    """Set the MTU of the interface with the rank's address. Raises EnvironmentProblem."""
    environment, mtu = pod_environment(), int(os.environ["AIPERF_RANK_MTU"])
    # A pod's /sys is read-only; this request needs only NET_ADMIN.
    wanted = struct.pack("16si12x", environment.interface.encode(), mtu)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, SIOCSIFMTU, wanted)
    except OSError as error:
        raise EnvironmentProblem(
            f"deployment.ranks.mtu: interface {environment.interface} does not take MTU {mtu}: "
            f"{error.strerror}"
        ) from error
