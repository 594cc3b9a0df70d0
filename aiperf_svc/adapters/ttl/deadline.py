"""Deletes the stack from within the cluster when its time is over, for when nobody comes back.

What is deleted is one object that takes everything else along: the Namespace, where it is the
stack's own; in somebody else's the anchor ConfigMap, which owns all other objects, so that
Kubernetes' garbage collection removes them.

Before that the run's PodDisruptionBudget is deleted, as soon as the start and the load must be
over: from then on nobody who drains a node waits for the stack. A budget that is not there is no
error: it is made after this pod is ready, and deleted with the stack.

Meanwhile it renews the Lease of the stack, by which others know that the stack is somebody's. That
it cannot be renewed is logged and changes nothing.

Each deadline is absolute: the object's creation, as the API server has stored it, plus its time to
live. It is compared with the API server's own clock (the `Date` of its responses), so neither a
restart of this pod nor a wrong clock of its node moves it. Whatever fails is tried again: this
process ends only when it is told to, usually by the deletion that it asked for.

The pod is ready when the API server has responded to it once. One that never is (a token that is
not accepted, a network policy of somebody else's) lets `up` fail, for its stack would never go.

Uses the standard library only: it is the one pod that must start and stay small whatever happens.
"""

import json
import logging
import os
import signal
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.foreign_text import one_line

ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REQUEST_TIMEOUT_S = 10.0
RETRY_S = 10.0
"""Seconds between attempts, after any failure and after the deletion was requested."""
SOON_S = 1.0
"""Seconds between attempts before the first response: `up` waits for it, and a network may open
after its pods."""
RENEWED_ANNOTATION = "aiperf.dev/renewed"
"""As in `plan/identity.py`, which needs more than the standard library."""
RENEW_S = 30.0
"""Seconds between two renewals of the Lease; it counts as abandoned after 120."""
RECHECK_S = 300.0
"""Longest sleep, after which a suspended node or a new TTL is noticed."""

log = logging.getLogger(__name__)


class ApiRefusal(Exception):
    """Raised when the API server responds with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Response:
    """Response with an object, and its time by the API server's clock."""

    body: dict[str, Any]
    server_wall_s: float


class ApiServer:
    """Client of the API server, with the few requests that pods of a stack need."""

    def __init__(self, url: str, *, account: Path = ACCOUNT_DIR) -> None:
        """Connect with an account's folder, which holds `token` and, for https, `ca.crt`."""
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
        """Return the API server's time, by its last response and the time since."""
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

    def patch(self, path: str, changes: dict[str, Any]) -> Response:
        """Merge changes into an object. Raises ApiRefusal, OSError."""
        kind = "application/merge-patch+json"
        return self._request("PATCH", path, json.dumps(changes).encode(), kind=kind)

    def _request(
        self, method: str, path: str, body: bytes | None, *, kind: str = "application/json"
    ) -> Response:
        # The kubelet renews the token's file, so it is read each time.
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


@dataclass(frozen=True, kw_only=True)
class Expiring:
    """Object that is deleted when its time is over."""

    path: str
    """Path in the API."""
    ttl_s: float
    """Seconds from the object's creation to its deletion."""
    is_optional: bool = False
    """True if the object may be missing."""


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """Objects to delete, and when."""

    objects: tuple[Expiring, ...]
    """Objects to delete; with the first one, the whole stack goes."""
    ready_file: Path
    """File made when the first object has been read."""
    lease: str = ""
    """Path of the stack's Lease in the API; empty: it has none."""


def run_deadline(environ: Mapping[str, str] = os.environ) -> int:
    """Keep the deadline that the environment describes until SIGTERM, and return an exit code.
    Raises EnvironmentProblem outside a pod of a stack.

    Raises EnvironmentProblem outside a pod of a stack.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: told.set())
    deadline, api = read_deadline(environ)
    keep_deadline(deadline, api, wait=told.wait)
    return int(ExitCode.OK)


def url_of_api(environ: Mapping[str, str]) -> str:
    """Return the URL of the API server, from the environment of a pod. Raises KeyError."""
    host = environ["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    return f"https://{host}:{environ['KUBERNETES_SERVICE_PORT']}"


def read_deadline(
    environ: Mapping[str, str], *, account: Path = ACCOUNT_DIR
) -> tuple[Deadline, ApiServer]:
    """Read the deadline and the API server of this pod. Raises EnvironmentProblem."""
    try:
        namespace = f"namespaces/{environ['AIPERF_NAMESPACE']}"
        path = f"/api/v1/{namespace}"
        if environ["AIPERF_DEADLINE_DELETES"] != "namespace":
            path += f"/configmaps/{environ['AIPERF_ANCHOR']}"
        objects = [Expiring(path=path, ttl_s=float(environ["AIPERF_TTL_SECONDS"]))]
        if "AIPERF_BUDGET" in environ:
            path = f"/apis/policy/v1/{namespace}/poddisruptionbudgets/{environ['AIPERF_BUDGET']}"
            hold_s = float(environ["AIPERF_BUDGET_SECONDS"])
            objects.append(Expiring(path=path, ttl_s=hold_s, is_optional=True))
        lease = ""
        if name := environ.get("AIPERF_LEASE"):
            lease = f"/apis/coordination.k8s.io/v1/{namespace}/leases/{name}"
        deadline = Deadline(
            objects=tuple(objects),
            ready_file=Path(environ["AIPERF_READY_FILE"]),
            lease=lease,
        )
        url = url_of_api(environ)
    except KeyError as error:
        raise EnvironmentProblem(
            f"{error.args[0]} is not set; a deadline is kept only in a pod of a stack"
        ) from error
    try:
        return deadline, ApiServer(url, account=account)
    except OSError as error:
        raise EnvironmentProblem(f"no service account in {account}: {error}") from error


def keep_deadline(deadline: Deadline, api: ApiServer, *, wait: Callable[[float], bool]) -> None:
    """Delete each object when its time is over, and renew the Lease until then. Continues until
    `wait(seconds)` says to stop."""
    is_ready = False
    while True:
        looks = [_delete_if_over(each, api) for each in deadline.objects]
        if looks[0] is not None and not is_ready:
            deadline.ready_file.touch()
            is_ready = True
        retry_s = RETRY_S if is_ready else SOON_S
        left_s = min(RECHECK_S, *(retry_s if each is None else each for each in looks))
        while True:
            pause_s = left_s
            if deadline.lease and is_ready:
                is_renewed = _renew(deadline.lease, api)
                pause_s = min(left_s, RENEW_S if is_renewed else RETRY_S)
            if wait(pause_s):
                return
            left_s -= pause_s
            if left_s <= 0:
                break


def _renew(path: str, api: ApiServer) -> bool:
    """Write the API server's time into the Lease. Returns whether that succeeded."""
    try:
        now = datetime.fromtimestamp(api.now_s(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        api.patch(path, {"metadata": {"annotations": {RENEWED_ANNOTATION: now}}})
    except Exception as error:
        # The deadline is more important than whatever is wrong with this.
        log.warning("%s is not renewed: %s", path, one_line(str(error)))
        return False
    return True


def _delete_if_over(expiring: Expiring, api: ApiServer) -> float | None:
    """Delete the object if its time is over. Returns the seconds until the next check; None if it
    could not be read."""
    path, pause_s = expiring.path, None
    try:
        found = api.get(path)
        metadata = found.body["metadata"]
        uid = metadata["uid"]
        created_s = datetime.fromisoformat(metadata["creationTimestamp"]).timestamp()
        left_s = created_s + expiring.ttl_s - found.server_wall_s
        if left_s > 0:
            log.info("%s is deleted in %.0f s", path, left_s)
            return left_s
        pause_s = RETRY_S
        log.warning("time is over: deleting %s", path)
        api.delete(path, uid=uid)
    except ApiRefusal as error:
        if error.status == 404 and expiring.is_optional:
            # The time of one that is made from now on is not over sooner.
            return expiring.ttl_s
        log.warning("the API server refuses %s: %s", path, error)
    except OSError as error:
        log.warning("cannot reach the API server: %s", one_line(str(error)))
    except Exception as error:
        # Cut off in its middle, of another form, or not from an API server at all: a proxy's.
        # Whatever it is, a deadline that nobody keeps would leave the stack for ever.
        what = one_line(f"{type(error).__name__}: {error}")
        log.warning("the response for %s cannot be read: %s", path, what)
    return pause_s
