"""Deletes the stack from within the cluster when its time is over, for when nobody comes back.

What is deleted is one object that takes everything else along: the Namespace, where it is the
stack's own; in somebody else's the anchor ConfigMap, which owns all other objects, so that
Kubernetes' garbage collection removes them.

Before that the run's PodDisruptionBudget is deleted, as soon as the start and the load must be
over: from then on nobody who drains a node waits for the stack. A budget that is not there is no
error: it is made after this pod is ready, and deleted with the stack.

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
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.foreign_text import one_line

ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REQUEST_TIMEOUT_S = 10.0
RETRY_S = 10.0
"""Between attempts, after anything that did not work and after the deletion has been asked for."""
SOON_S = 1.0
"""The same before the first response: `up` waits for it, and a network may open after its pods."""
RECHECK_S = 300.0
"""Longest sleep: a node that was suspended, or a new time to live, is noticed after that."""

log = logging.getLogger(__name__)


class ApiRefusal(Exception):
    """The API server responded, and not with what was asked for."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Response:
    """An object, and when the API server sent it by its own clock."""

    body: dict[str, Any]
    server_wall_s: float


class ApiServer:
    """The few requests that a deadline needs."""

    def __init__(self, url: str, *, account: Path = ACCOUNT_DIR) -> None:
        """`account` holds `token` and, for https, `ca.crt`."""
        self._url = url.rstrip("/")
        self._account = account
        is_https = url.startswith("https://")
        authority = str(account / "ca.crt")
        self._tls = ssl.create_default_context(cafile=authority) if is_https else None

    def get(self, path: str) -> Response:
        """Raises ApiRefusal, OSError."""
        return self._request("GET", path, None)

    def delete(self, path: str, *, uid: str) -> None:
        """Deletes the object if it is still the one with `uid`. Raises ApiRefusal, OSError."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        self._request("DELETE", path, json.dumps(options).encode())

    def _request(self, method: str, path: str, body: bytes | None) -> Response:
        # The kubelet renews the token's file, so it is read each time.
        token = (self._account / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(
            self._url + path, data=body, headers=headers, method=method
        )
        try:
            with urllib.request.urlopen(
                request, timeout=REQUEST_TIMEOUT_S, context=self._tls
            ) as response:
                stamp = response.headers.get("Date")
                now = parsedate_to_datetime(stamp).timestamp() if stamp else time.time()
                return Response(body=json.load(response), server_wall_s=now)
        except urllib.error.HTTPError as error:
            with error:
                raise ApiRefusal(error.code, one_line(str(error.reason))) from error


@dataclass(frozen=True, kw_only=True)
class Expiring:
    """An object that is deleted when its time is over."""

    path: str
    """In the API."""
    ttl_s: float
    """After the object's creation."""
    is_optional: bool = False
    """Whether it may not be there."""


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """What is deleted, and when."""

    objects: tuple[Expiring, ...]
    """The first one is what takes the stack along."""
    ready_file: Path
    """Made when the first object has been seen."""


def run_deadline(environ: Mapping[str, str] = os.environ) -> int:
    """Keep the deadline that the environment describes until SIGTERM; an exit code.

    Raises EnvironmentProblem outside a pod of a stack.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: told.set())
    deadline, api = read_deadline(environ)
    keep_deadline(deadline, api, wait=told.wait)
    return int(ExitCode.OK)


def read_deadline(
    environ: Mapping[str, str], *, account: Path = ACCOUNT_DIR
) -> tuple[Deadline, ApiServer]:
    """The deadline and the API server of this pod. Raises EnvironmentProblem."""
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
        deadline = Deadline(objects=tuple(objects), ready_file=Path(environ["AIPERF_READY_FILE"]))
        host = environ["KUBERNETES_SERVICE_HOST"]
        host = f"[{host}]" if ":" in host else host
        url = f"https://{host}:{environ['KUBERNETES_SERVICE_PORT']}"
    except KeyError as error:
        raise EnvironmentProblem(
            f"{error.args[0]} is not set; a deadline is kept only in a pod of a stack"
        ) from error
    try:
        return deadline, ApiServer(url, account=account)
    except OSError as error:
        raise EnvironmentProblem(f"no service account in {account}: {error}") from error


def keep_deadline(deadline: Deadline, api: ApiServer, *, wait: Callable[[float], bool]) -> None:
    """Delete each object when its time is over, and go on until `wait(seconds)` says to stop."""
    is_ready = False
    while True:
        looks = [_delete_if_over(each, api) for each in deadline.objects]
        if looks[0] is not None and not is_ready:
            deadline.ready_file.touch()
            is_ready = True
        retry_s = RETRY_S if is_ready else SOON_S
        if wait(min(RECHECK_S, *(retry_s if each is None else each for each in looks))):
            return


def _delete_if_over(expiring: Expiring, api: ApiServer) -> float | None:
    """Time in s until the next look at the object is due; None when it could not be seen."""
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
