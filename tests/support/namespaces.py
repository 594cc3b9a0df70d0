"""Gives ranks on this machine separate networks: one network namespace each, joined by a bridge,
with links whose rate `tc` limits. Needs root.

Couriers and the workload kind are unaware of it: a wrapper for iperf3 on PATH runs iperf3 in the
namespace of its rank.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

STAND_IN = '''#!/usr/bin/env python3
"""Runs iperf3 in the network namespace of its rank. Ranks of one machine take turns, so a client
connects to the server that was started last."""
import os, pathlib, re, socket, subprocess, sys, time

at, name = pathlib.Path(os.environ["NAMESPACES"]), os.environ["NAMESPACE"]
argv = sys.argv[1:]
rank = int(re.search(r"rank-(\\d+)", os.getcwd()).group(1))
if "-c" in argv:
    argv[argv.index("-c") + 1] = (at / "server").read_text()
command = ["ip", "netns", "exec", f"{name}{rank}", os.environ["IPERF3"], *argv]
if "-s" not in argv:
    os.execvp("ip", command)
child = subprocess.Popen(command)
port = int(argv[argv.index("-p") + 1])
table = pathlib.Path(f"/proc/{child.pid}/net/tcp6")
while f":{port:04X} " not in table.read_text() and child.poll() is None:
    time.sleep(0.01)
(at / "server").write_text(f"10.77.0.{rank + 1}")
# The courier waits for a socket in its own namespace.
with socket.create_server(("", port)):
    sys.exit(child.wait())
'''


NAME = re.compile(r"q(\d+)-(\d+|br|v\d+)")
"""Names with the process id of the test. Names of links are limited to 15 characters."""
NEEDS = "needs ip, tc, iperf3, and root with the right to make networks"
PROBE = (
    "ip link add probe type bridge && "
    "tc qdisc add dev lo root tbf rate 1mbit burst 256k latency 20ms"
)
"""Checks for the kernel features and permissions that the namespaces need."""


@cache
def can_make_namespaces() -> bool:
    """Return whether this user can create namespaces, which even root in a container may lack."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "tc", "iperf3", "unshare"))):
        return False
    probe = ("unshare", "--net", "sh", "-c", PROBE)
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@contextmanager
def namespaces(folder: Path, rates: Sequence[str]) -> Iterator[dict[str, str]]:
    """Create a namespace for each rank, whose link has this rate in both directions. Yield the
    environment of the workload."""
    _remove_stale()
    name = f"q{os.getpid()}-"
    bridge = f"{name}br"
    programs = folder / "programs"
    programs.mkdir()
    (programs / "iperf3").write_text(STAND_IN)
    (programs / "iperf3").chmod(0o755)
    try:
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "link", "set", bridge, "up")
        for rank, rate in enumerate(rates):
            own, host = f"{name}{rank}", f"{name}v{rank}"
            _run("ip", "netns", "add", own)
            peer = ("type", "veth", "peer", "name", "eth0", "netns", own)
            _run("ip", "link", "add", host, *peer)
            _run("ip", "link", "set", host, "master", bridge, "up")
            _run("ip", "-n", own, "addr", "add", f"10.77.0.{rank + 1}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _run("ip", "-n", own, "link", "set", device, "up")
            limit = ("root", "tbf", "rate", rate, "burst", "256k", "latency", "20ms")
            _run("tc", "-n", own, "qdisc", "add", "dev", "eth0", *limit)
            _run("tc", "qdisc", "add", "dev", host, *limit)
        yield {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "NAMESPACES": str(folder),
            "NAMESPACE": name,
            "IPERF3": shutil.which("iperf3") or "",
        }
    finally:
        _remove(os.getpid())


def _remove_stale() -> None:
    """Remove namespaces and links of test processes that were killed."""
    for pid in {pid for pid, _, _ in _find_all() if not Path(f"/proc/{pid}").exists()}:
        _remove(pid)


def _remove(owner: int) -> None:
    """Remove the namespaces and links of a process. Links go first, because the kernel removes a
    link some time after its namespace."""
    for pid, kind, name in _find_all():
        if pid == owner:
            subprocess.run(["ip", kind, "delete", name], check=False)


def names_of(pid: int) -> set[str]:
    """Return the names of namespaces and links that a test process created."""
    return {name for owner, _, name in _find_all() if owner == pid}


def _find_all() -> list[tuple[int, str, str]]:
    """Return the process, kind and name of each link and namespace of tests."""
    folders = {"link": Path("/sys/class/net"), "netns": Path("/run/netns")}
    return [
        (int(match[1]), kind, each.name)
        for kind, folder in folders.items()
        for each in folder.glob("q*")
        if (match := NAME.fullmatch(each.name))
    ]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
