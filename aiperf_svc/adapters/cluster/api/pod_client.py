"""Small API client for the pods of a stack. Uses only the standard library.

The deadline's pod runs with every stack and requests memory for as long as the stack exists
(figures in docs/decisions/0012-kubernetes-clients.md).
"""

import json
import logging
import signal
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import Json

ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REQUEST_TIMEOUT_S = 10.0


def start_program() -> threading.Event:
    """Configure logging for a program in a pod. Return an event that SIGTERM and SIGINT set."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stopped.set())
    return stopped


class ApiRefusal(Exception):
    """Raised when the API server responds with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Response:
    """A response object, with its time by the API server's clock."""

    body: Json
    server_wall_s: float


class ApiServer:
    """API client with the few requests that pods of a stack need."""

    def __init__(self, url: str, *, account: Path = ACCOUNT_DIR) -> None:
        """`account` is the folder of a service account, with `token` and, for https, `ca.crt`."""
        self._url = url.rstrip("/")
        self._account = account
        self._server_ahead_s = 0.0
        is_https = url.startswith("https://")
        authority = str(account / "ca.crt")
        self._tls = ssl.create_default_context(cafile=authority) if is_https else None

    def get(self, path: str) -> Response:
        """Return an object. Raises ApiRefusal, OSError."""
        return self._request("GET", path, None)

    def now_s(self) -> float:
        """Return the API server's time, computed from its last response and the time since."""
        return time.time() + self._server_ahead_s

    def delete(self, path: str, *, uid: str) -> None:
        """Delete the object if it still has this `uid`. Raises ApiRefusal, OSError."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        self._request("DELETE", path, json.dumps(options).encode())

    def patch(self, path: str, changes: Json) -> Response:
        """Merge changes into an object. Raises ApiRefusal, OSError."""
        kind = "application/merge-patch+json"
        return self._request("PATCH", path, json.dumps(changes).encode(), kind=kind)

    def _request(
        self, method: str, path: str, body: bytes | None, *, kind: str = "application/json"
    ) -> Response:
        # The kubelet renews the token file, so read it for each request.
        token = (self._account / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = kind
        request = urllib.request.Request(
            self._url + path, data=body, headers=headers, method=method
        )
        try:
            with urllib.request.urlopen(
                request, timeout=REQUEST_TIMEOUT_S, context=self._tls
            ) as response:
                stamp = response.headers.get("Date")
                now = parsedate_to_datetime(stamp).timestamp() if stamp else time.time()
                self._server_ahead_s = now - time.time()
                return Response(body=json.load(response), server_wall_s=now)
        except urllib.error.HTTPError as error:
            with error:
                raise ApiRefusal(error.code, one_line(str(error.reason))) from error


def url_of_api(environ: Mapping[str, str]) -> str:
    """Return the URL of the API server, from the environment of a pod. Raises KeyError."""
    host = environ["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    return f"https://{host}:{environ['KUBERNETES_SERVICE_PORT']}"
