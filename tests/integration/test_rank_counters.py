"""The bytes that a courier counts are those that crossed its rank's interface. Needs root."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from aiperf_svc.workloads.steps import ClaimedBytes
from tests.support import fake_steps as fake
from tests.support.namespaces import NEEDS, can_make_namespaces, namespaces

pytestmark = pytest.mark.skipif(not can_make_namespaces(), reason=NEEDS)

TIMEOUT_S = 60
COUNTING = """
import json, socket, sys
from aiperf_svc.adapters.ranks.counters import interface_of, read_counters

def say(before, interface):
    after = read_counters(None, interface)
    names = ("rx_bytes", "tx_bytes", "loopback_bytes")
    print(json.dumps({n: getattr(after, n) - getattr(before, n) for n in names}), flush=True)
"""
LINKS = (
    "ip link set lo up && for n in 8 9; do "
    "ip link add rank$n type veth peer name peer$n && ip addr add 10.9.$n.1/24 dev rank$n && "
    "ip link set rank$n up && ip link set peer$n up && "
    "ip neigh add 10.9.$n.2 lladdr 02:00:00:00:00:02 dev rank$n; done"
)
PAYLOAD, HEADERS = 1_000, 14 + 20 + 8
"""Bytes of a datagram, and of its headers."""
DATAGRAMS = f"""{COUNTING}
before = [read_counters(None, name) for name in ("rank8", "peer8")]
with socket.socket(type=socket.SOCK_DGRAM) as udp:
    for address, number in (("10.9.8.2", 200), ("10.9.9.2", 300), ("127.0.0.1", 400)):
        for _ in range(number):
            udp.sendto(bytes({PAYLOAD}), (address, 9))
for each, name in zip(before, ("rank8", "peer8")):
    say(each, name)
"""
NOISE = 30_000
"""Most bytes by which the kernel introduces a new interface to its neighbours."""
SENT = 20_000_000
RECEIVER = f"""{COUNTING}
name = interface_of("10.77.0.2")
before = read_counters(None, name)
with socket.create_server(("10.77.0.2", 0)) as server:
    print(server.getsockname()[1], flush=True)
    connection, _ = server.accept()
    with connection:
        while connection.recv(1 << 20):
            pass
        say(before, name)
"""
SENDER = f"""{COUNTING}
name = interface_of("10.77.0.1")
before = read_counters(None, name)
with socket.create_connection(("10.77.0.2", int(sys.argv[1]))) as connection:
    connection.sendall(bytes({SENT}))
    connection.shutdown(socket.SHUT_WR)
    # The receiver has all when it closes.
    assert connection.recv(1) == b""
say(before, name)
"""


def test_bytes_of_other_interfaces_do_not_count() -> None:
    argv = ("unshare", "-n", "sh", "-c", f'{LINKS} && exec "$0" -c "$1"', sys.executable, DATAGRAMS)
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ended.returncode == 0, ended.stderr
    rank, peer = map(json.loads, ended.stdout.splitlines())
    size = PAYLOAD + HEADERS
    assert 200 * size <= rank["tx_bytes"] < 200 * size + NOISE
    assert 200 * size <= peer["rx_bytes"] < 200 * size + NOISE
    assert rank["loopback_bytes"] >= 400 * size


def test_counted_bytes_agree_with_those_sent(tmp_path: Path) -> None:
    def command(rank: int, program: str, *args: str) -> list[str]:
        space = f"q{os.getpid()}-{rank}"
        return ["ip", "netns", "exec", space, sys.executable, "-c", program, *args]

    with (
        namespaces(tmp_path, ["10gbit", "10gbit"]),
        subprocess.Popen(command(1, RECEIVER), stdout=subprocess.PIPE, text=True) as receiver,
    ):
        assert receiver.stdout is not None
        port = receiver.stdout.readline().strip()
        sender = subprocess.run(
            command(0, SENDER, port), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert sender.returncode == 0, sender.stderr
        output, _ = receiver.communicate(timeout=TIMEOUT_S)
    counted: list[dict[str, int]] = [json.loads(sender.stdout), json.loads(output)]
    assert min(counted[0]["tx_bytes"], counted[1]["rx_bytes"]) >= SENT
    witnesses = tuple(
        fake.witness(rank, interface_rx_bytes=each["rx_bytes"], interface_tx_bytes=each["tx_bytes"])
        for rank, each in enumerate(counted)
    )
    claims = {0: ClaimedBytes(sent=SENT), 1: ClaimedBytes(received=SENT)}
    found = fake.result(fake.record(fake.reading(claimed_bytes=claims), witnesses=witnesses))
    (check,) = (each for each in found.checks if each.check == "interface-bytes")
    assert check.severity == "valid", msgspec.json.encode(check)
