"""Runs `profile` against a mock server with a network delay.

Runs in its own network namespace. A TUN device that delays packets is the only route between client
and server. Both are on one machine, so each packet comes back with its two addresses exchanged: the
server sees the client as 10.77.0.2, and the client sees the server as 10.77.0.2. The sum of the
addresses does not change, so all checksums stay valid.

    slow_way.py MILLISECONDS FLAG…
"""

import fcntl
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections import deque

from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running

TTFT_MS = 60
"""Longer than the 40 ms by which a kernel may delay an acknowledgement."""
HERE, THERE = "10.77.0.1", "10.77.0.2"
_TUNSETIFF = 0x400454CA
_TUN, _NO_PACKET_INFO = 0x0001, 0x1000


def make_way() -> int:
    """Create the device and return the file descriptor of its packets."""
    fd = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", b"slow0", _TUN | _NO_PACKET_INFO))
    for words in (
        ("addr", "add", f"{HERE}/30", "dev", "slow0"),
        ("link", "set", "slow0", "up"),
        ("link", "set", "lo", "up"),
    ):
        subprocess.run(["ip", *words], check=True)
    return fd


def carry(fd: int, delay_s: float, ended: threading.Event) -> None:
    """Return every packet after the delay with source and destination exchanged."""
    on_the_way: deque[tuple[float, bytes]] = deque()
    while not ended.is_set():
        wait_s = max(0.0, on_the_way[0][0] - time.monotonic()) if on_the_way else 0.1
        if select.select([fd], [], [], wait_s)[0]:
            packet = os.read(fd, 65_536)
            if packet[0] >> 4 == 4:
                back = packet[:12] + packet[16:20] + packet[12:16] + packet[20:]
                on_the_way.append((time.monotonic() + delay_s, back))
        while on_the_way and on_the_way[0][0] <= time.monotonic():
            os.write(fd, on_the_way.popleft()[1])


def main() -> int:
    """Run the command and return its exit code."""
    delay_s, flags = float(sys.argv[1]) / 1e3, sys.argv[2:]
    fd, ended = make_way(), threading.Event()
    way = threading.Thread(target=carry, args=(fd, delay_s, ended))
    way.start()
    try:
        config = MockServerConfig(host=HERE, ttft=f"{TTFT_MS}ms", itl="1ms", tokens=5)
        with running(config) as server:
            target = ("-u", f"http://{THERE}:{server.port}", "-m", "mock", "--streaming")
            command = [sys.executable, "-m", "aiperf_svc", "profile", *target, *flags]
            return subprocess.run(command, check=False).returncode
    finally:
        ended.set()
        way.join()
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
