"""Requests for queueing disciplines to the kernel of this machine. Needs root."""

import subprocess
import sys

import pytest

from tests.support.namespaces import NEEDS, can_make_namespaces

pytestmark = pytest.mark.skipif(not can_make_namespaces(), reason=NEEDS)

LINK = (
    "ip link add here type veth peer name there && ip addr add 10.9.9.1/24 dev here && "
    "ip link set here up && ip link set there up && "
    "ip neigh add 10.9.9.2 lladdr 02:00:00:00:00:02 dev here"
)
# Some kernels lack netem. All have pfifo, whose requests differ only in name and settings.
PROGRAM = """
import socket
from contextlib import closing
from aiperf_svc.adapters.events import netem

netem.NAME, netem.netem_options = b"pfifo\\0", lambda *_: (100).to_bytes(4, "little")
index = socket.if_nametoindex("here")
with closing(netem.Network()) as network, socket.socket(type=socket.SOCK_DGRAM) as udp:
    print(network.counts(index))
    network.add(index)
    for _ in range(5):
        udp.sendto(b"x", ("10.9.9.2", 9))
    print(network.counts(index).packets >= 5)
    try:
        network.add(index)
    except FileExistsError:
        print("exists")
    network.remove(index)
    print(network.counts(index))
"""


def test_discipline_is_added_counted_and_removed() -> None:
    command = f'{LINK} && exec "$0" -c "$1"'
    argv = ("unshare", "-n", "sh", "-c", command, sys.executable, PROGRAM)
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.split() == ["None", "True", "exists", "None"], ended.stderr
