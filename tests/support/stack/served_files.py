"""A pod that serves files with ranges like the results API, and breaks connections."""

from typing import Any

from aiperf_svc.adapters.cluster.api.connection import Cluster
from tests.support.stack.small_pods import pod

SERVICE, PORT, SIZE = "files", 9090, 2**26
PROGRAM = """
import http.server, os, re
with open("/data/small", "wb") as file:
    file.truncate(SIZE)
breaks = [1, 2]

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        name = self.path.rpartition("/")[2]
        if name != "small":
            body = b"ok" if name == "healthz" else os.environ["HOSTNAME"].encode()
            self.response(200, len(body))
            self.wfile.write(body)
            return
        start = int(re.search("[0-9]+", self.headers.get("Range", "bytes=0-"))[0])
        self.response(206 if start else 200, SIZE - start)
        with open("/data/" + name, "rb") as file:
            file.seek(start)
            left = SIZE - start
            if breaks:
                breaks.pop()
                left //= 2
                self.close_connection = True
            while left:
                chunk = file.read(min(left, 2**18))
                self.wfile.write(chunk)
                left -= len(chunk)

    def response(self, status, length):
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *said):
        pass

http.server.ThreadingHTTPServer(("", PORT), Handler).serve_forever()
""".replace("SIZE", str(SIZE)).replace("PORT", str(PORT))
"""The connection for `small` breaks twice in the middle."""


def outputs(namespace: str, **results: Any) -> dict[str, Any]:
    """Return the outputs of a stack with such a pod."""
    return {
        "namespace": namespace,
        "results": {"service": SERVICE, "port": PORT, "url": "", **results},
    }


async def serve(cluster: Cluster, namespace: str, image: str, *, program: str = "") -> None:
    """Create the Service and a ready pod that runs `program`, by default the server above."""
    service = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"app": SERVICE},
        "ports": [{"port": PORT}],
    }
    place = f"/api/v1/namespaces/{namespace}"
    manifest = {"metadata": {"name": SERVICE}, "spec": service}
    await cluster.post(f"{place}/services", manifest)
    await add_pod(cluster, namespace, image, SERVICE, program=program)


async def add_pod(
    cluster: Cluster, namespace: str, image: str, name: str, *, program: str = ""
) -> None:
    """Add another ready pod behind the Service."""
    probe = {"httpGet": {"path": "/healthz", "port": PORT}, "periodSeconds": 1}
    manifest = pod(name, image, program or PROGRAM, container={"readinessProbe": probe})
    manifest["metadata"]["labels"] = {"app": SERVICE}
    pods = f"/api/v1/namespaces/{namespace}/pods"
    await cluster.post(pods, manifest)
    selector = f"metadata.name={name}"
    async for event in cluster.lines(pods, watch="1", fieldSelector=selector, timeoutSeconds="60"):
        conditions = event["object"].get("status", {}).get("conditions") or ()
        if any(each["type"] == "Ready" and each["status"] == "True" for each in conditions):
            return
    raise AssertionError(f"pod {name} did not get ready in 60 s")
