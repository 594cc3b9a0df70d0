"""The program of the two pods that check a cluster's network. It is sent to them as text, so it
uses only Python's standard library.

`listen PORT...` accepts connections. `connect HOST ALLOWED FORBIDDEN URL...` tries both ports until
they differ, reads the pages of GPU exporters, and prints the result as one line of JSON.
"""

import concurrent.futures
import json
import re
import socket
import sys
import threading
import time
import urllib.request
from typing import Any

CONNECT_S = 2.0
DIFFER_S = 15.0
"""Timeout until the other pod listens and a policy takes effect."""
PAGE_S = 5.0
PAGE_BYTES = 4 * 2**20
GPU_LABEL = re.compile(r'[{,]gpu="([^"]*)"')
XID = "DCGM_FI_DEV_XID_ERRORS"


def listen(ports: list[int]) -> None:
    """Accept connections on all ports for ever. The last port opens after all others."""
    has_both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if has_both else socket.AF_INET
    for port in ports:
        listener = socket.create_server(("", port), family=family, dualstack_ipv6=has_both)
        threading.Thread(target=accept, args=(listener,)).start()


def accept(listener: socket.socket) -> None:
    """Accept connections, and close each."""
    while True:
        listener.accept()[0].close()


def attempt(host: str, port: int) -> str:
    """Connect and return the error; empty on success."""
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError as error:
        return str(error) or type(error).__name__
    return ""


def connect(host: str, allowed: int, forbidden: int) -> dict[str, str]:
    """Try both ports until only the allowed one is open, or until the timeout. The allowed port is
    tried before and after the other, so a missing pod is not mistaken for an enforced policy."""
    end = time.monotonic() + DIFFER_S
    while True:
        first, refused = attempt(host, allowed), attempt(host, forbidden)
        found = first or attempt(host, allowed)
        if (refused and not found) or time.monotonic() > end:
            return {"allowed": found, "forbidden": refused}


def read_page(url: str) -> dict[str, Any]:
    """Return the number of GPUs and the Xid errors on a page, or why it cannot be read."""
    try:
        with urllib.request.urlopen(url, timeout=PAGE_S) as response:
            text = response.read(PAGE_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        return {"failure": str(error) or type(error).__name__}
    gpus: set[str] = set()
    xids: list[tuple[str, int]] = []
    for line in text.splitlines():
        found = GPU_LABEL.search(line) if line.startswith("DCGM_FI_") else None
        if found is None:
            continue
        gpus.add(found[1])
        value = line.rpartition("}")[2].split()
        if line.startswith(XID + "{") and value and float(value[0]):
            xids.append((found[1], int(float(value[0]))))
    if not gpus:
        return {"failure": "its page has no GPU"}
    return {"gpus": len(gpus), "xids": xids}


def main(action: str, *arguments: str) -> None:
    """Run one of the two programs."""
    if action == "listen":
        listen([int(port) for port in arguments])
        return
    host, allowed, forbidden, *urls = arguments
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        pages = dict(zip(urls, pool.map(read_page, urls), strict=True))
    print(json.dumps({**connect(host, int(allowed), int(forbidden)), "pages": pages}))


if __name__ == "__main__":
    main(*sys.argv[1:])
