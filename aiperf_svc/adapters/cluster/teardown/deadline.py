"""Deletes a stack from within the cluster when its time to live expires, so a stack does not
outlive a killed runner.

One object is deleted, and Kubernetes' garbage collection removes all others: the stack's own
Namespace or, in an existing namespace, the anchor ConfigMap, which owns all other objects.

The PodDisruptionBudget of the run is deleted earlier, at the latest possible end of the load. After
that, nothing blocks the drain of a node. A missing budget is not an error: it is created
after this pod is ready, and deleted with the stack.

Custom resources of a release are deleted first, by name, and awaited: their operators remove
finalizers, and may need objects in the namespace. A dead operator delays the deletion but does not
prevent it.

Until then this pod renews the stack's Lease, which shows others that the stack is in use. A failed
renewal is logged and has no other effect.

Each deadline is absolute: the object's creation time, as stored by the API server, plus the time to
live. It is compared with the API server's clock (the `Date` of its responses), so neither a restart
of this pod nor a wrong clock of its node moves it. Every failure is retried. The process ends on
SIGTERM, which usually results from the deletion that it requested.

The pod becomes ready with the API server's first response. Without a response (a refused token, a
network policy), `up` fails, because the stack would never be deleted.

Uses only the standard library: this pod must start, and stay small, in all circumstances.
"""

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from aiperf_svc.adapters.cluster.api.pod_client import (
    ACCOUNT_DIR,
    ApiRefusal,
    ApiServer,
    start_program,
    url_of_api,
)
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.foreign_text import one_line

RETRY_S = 10.0
"""Seconds between attempts after a failure or after the requested deletion."""
FIRST_RETRY_S = 1.0
"""Seconds between attempts before the first response: `up` waits for it, and a network policy may
take effect after the pods start."""
WAIT_S = 2.0
"""Seconds between checks of the objects that are deleted first."""
RENEWED_ANNOTATION, TTL_ANNOTATION = "aiperf.dev/renewed", "aiperf.dev/ttl-seconds"
"""Same value as in `plan/identity.py`, which imports more than the standard library."""
RENEW_S = 30.0
"""Seconds between renewals of the Lease; it counts as abandoned after 120."""
RECHECK_S = 300.0
"""Longest sleep. A suspended node or a new TTL is noticed within this time."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Expiring:
    """Object that is deleted when its time expires."""

    path: str
    """Path in the API."""
    ttl_s: float
    """Seconds from the object's creation to its deletion."""
    is_optional: bool = False
    """True if the object may be missing."""
    before: tuple[str, ...] = ()
    """Paths of objects that are deleted and awaited first: custom resources whose finalizers need
    objects that are deleted with this one."""
    before_s: float = 0.0
    """Longest wait for them, because an operator may be dead."""


@dataclass(frozen=True, kw_only=True)
class Deadline:
    objects: tuple[Expiring, ...]
    """Objects to delete. The deletion of the first one deletes the whole stack."""
    ready_file: Path
    """File that is created when the first object has been read."""
    lease: str = ""
    """Path of the stack's Lease in the API; empty if it has none."""


def run_deadline(environ: Mapping[str, str] = os.environ) -> int:
    """Enforce the deadline in the environment variables until SIGTERM, and return an exit code.
    Raises EnvironmentProblem outside a pod of a stack.
    """
    stopped = start_program()
    deadline, api = read_deadline(environ)
    keep_deadline(deadline, api, wait=stopped.wait)
    return int(ExitCode.OK)


def read_deadline(
    environ: Mapping[str, str], *, account: Path = ACCOUNT_DIR
) -> tuple[Deadline, ApiServer]:
    """Read the deadline and the API server of this pod. Raises EnvironmentProblem."""
    try:
        namespace = f"namespaces/{environ['AIPERF_NAMESPACE']}"
        path = f"/api/v1/{namespace}"
        if environ["AIPERF_DEADLINE_DELETES"] != "namespace":
            path += f"/configmaps/{environ['AIPERF_ANCHOR']}"
        before = json.loads(environ.get("AIPERF_CUSTOM_RESOURCES", "[]"))
        objects = [
            Expiring(
                path=path,
                ttl_s=float(environ["AIPERF_TTL_SECONDS"]),
                before=tuple(each.format(namespace=namespace) for each in before),
                before_s=float(environ.get("AIPERF_CUSTOM_RESOURCES_SECONDS", "0")),
            )
        ]
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
    """Delete each object when its time expires, and renew the Lease until then. Continues until
    `wait(seconds)` returns true."""
    is_ready = False
    while True:
        checks = [_delete_if_over(each, api) for each in deadline.objects]
        if checks[0] is not None and not is_ready:
            deadline.ready_file.touch()
            is_ready = True
        retry_s = RETRY_S if is_ready else FIRST_RETRY_S
        left_s = min(RECHECK_S, *(retry_s if each is None else each for each in checks))
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
    """Write the API server's time into the Lease. Returns whether this succeeded."""
    try:
        now = datetime.fromtimestamp(api.now_s(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        api.patch(path, {"metadata": {"annotations": {RENEWED_ANNOTATION: now}}})
    except Exception as error:
        # A failed renewal must not stop the deadline.
        log.warning("%s is not renewed: %s", path, one_line(str(error)))
        return False
    return True


def _delete_first(paths: Sequence[str], api: ApiServer) -> bool:
    """Delete the objects at these paths that exist. Returns whether any of them still exists.
    Raises ApiRefusal, OSError."""
    is_there = False
    for path in paths:
        try:
            metadata = api.get(path).body["metadata"]
        except ApiRefusal as error:
            if error.status == 404:
                continue
            raise
        is_there = True
        if "deletionTimestamp" not in metadata:
            log.warning("time expired: deleting %s first", path)
            api.delete(path, uid=metadata["uid"])
    return is_there


def _delete_if_over(expiring: Expiring, api: ApiServer) -> float | None:
    """Delete the object if its time has expired. Returns the seconds until the next check; None if
    the object could not be read."""
    path, pause_s = expiring.path, None
    try:
        found = api.get(path)
        metadata = found.body["metadata"]
        uid = metadata["uid"]
        created_s = datetime.fromisoformat(metadata["creationTimestamp"]).timestamp()
        # The runner lowers the annotation when a queue has admitted the stack.
        written = str((metadata.get("annotations") or {}).get(TTL_ANNOTATION, ""))
        ttl_s = min(expiring.ttl_s, float(written)) if written.isdecimal() else expiring.ttl_s
        left_s = created_s + ttl_s - found.server_wall_s
        if left_s > 0:
            log.info("%s is deleted in %.0f s", path, left_s)
            return left_s
        pause_s = RETRY_S
        if left_s > -expiring.before_s and _delete_first(expiring.before, api):
            return WAIT_S
        log.warning("time expired: deleting %s", path)
        api.delete(path, uid=uid)
    except ApiRefusal as error:
        if error.status == 404 and expiring.is_optional:
            # An object created from now on is due no earlier than this.
            return expiring.ttl_s
        log.warning("the API server refuses access to %s: %s", path, error)
    except OSError as error:
        log.warning("cannot reach the API server: %s", one_line(str(error)))
    except Exception as error:
        # An incomplete response, another format, or the response of a proxy. The deadline must
        # continue, or the stack would stay for ever.
        text = one_line(f"{type(error).__name__}: {error}")
        log.warning("invalid response for %s: %s", path, text)
    return pause_s
