"""A pod that is discovered as a GPU exporter by its label, and serves a DCGM page."""

from collections.abc import Sequence
from typing import Any

PORT = 9400
SERVE = """
import http.server, sys, time
begin = time.monotonic()
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text, used = "", 1_000_000 + round(250_000 * (time.monotonic() - begin))
        for number, user in enumerate(sys.argv[2:] or [""]):
            name = f'gpu="{number}",UUID="GPU-{number}",modelName="NVIDIA Test GPU",Hostname="n"'
            gpu = "{" + name + ("," + user if user else "") + "}"
            text += f'''DCGM_FI_DEV_POWER_USAGE{gpu} 250
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu} {used}
DCGM_FI_DEV_GPU_UTIL{gpu} 90
DCGM_FI_DEV_XID_ERRORS{gpu} {sys.argv[1]}
'''
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())
http.server.ThreadingHTTPServer(("", PORT), Page).serve_forever()
""".replace("PORT", str(PORT))


def exporter_pod(*, image: str, xid: int = 0, used_by: Sequence[str] = ()) -> dict[str, Any]:
    """Return the manifest with the label of the GPU operator's exporter. `used_by` has the page's
    labels for each GPU. Without any, there is one GPU that no pod uses."""
    container = {
        "name": "exporter",
        "image": image,
        "command": ["python3", "-uc", SERVE, str(xid), *used_by],
        "ports": [{"name": "metrics", "containerPort": PORT}],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "exporter", "labels": {"app": "nvidia-dcgm-exporter"}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    }
