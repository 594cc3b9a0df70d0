"""Waits in a pod of the stack until a release is ready: all its rules hold, and all its pools have
their replicas. The workers then wait for a first completion through its URL.

The services start after this pod is ready, whoever runs `pulumi up`. On a timeout the program exits
with one line about what is missing, which becomes the pod's termination message.

Uses only the standard library, like the deadline's pod.
"""

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aiperf_svc.adapters.cluster.api.pod_client import (
    ACCOUNT_DIR,
    ApiRefusal,
    ApiServer,
    start_program,
    url_of_api,
)
from aiperf_svc.core.cluster.conditions import conditions_of, containers_of, is_ready
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import Json

ASK_AGAIN_S = 1.0
"""Seconds between two checks of all objects."""
SHOWN = 3
"""Maximum number of problems in the last line."""

log = logging.getLogger(__name__)


def run_readiness(environ: Mapping[str, str] = os.environ) -> int:
    """Wait for the release in the environment variables, then for SIGTERM; return an exit code.
    Raises EnvironmentProblem if the release is not ready in time, or outside a pod of a stack."""
    stopped = start_program()
    try:
        wanted = json.loads(environ["AIPERF_READINESS"])
        namespace, ready = environ["AIPERF_NAMESPACE"], Path(environ["AIPERF_READY_FILE"])
        api = ApiServer(url_of_api(environ), account=ACCOUNT_DIR)
    except KeyError as error:
        raise EnvironmentProblem(
            f"{error.args[0]} is not set; a release is waited for only in a pod of a stack"
        ) from error
    except OSError as error:
        raise EnvironmentProblem(f"no service account in {ACCOUNT_DIR}: {error}") from error
    if wait_until_ready(wanted, namespace, api, wait=stopped.wait):
        ready.touch()
        stopped.wait()
    return int(ExitCode.OK)


def wait_until_ready(
    wanted: Mapping[str, Any],
    namespace: str,
    api: ApiServer,
    *,
    wait: Callable[[float], bool],
    mono_s: Callable[[], float] = time.monotonic,
) -> bool:
    """Return whether the release is ready: False if `wait(seconds)` returned true first. Raises
    EnvironmentProblem on a timeout."""
    end_mono_s, last_text = mono_s() + wanted["timeout_s"], ""
    while True:
        missing = problems(wanted, namespace, api)
        if not missing:
            log.info("the release is ready")
            return True
        more = f"; {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        text = "; ".join(missing[:SHOWN]) + more
        if mono_s() >= end_mono_s:
            raise EnvironmentProblem(
                f"not ready after {wanted['timeout_s']} s (deployment.target.ready_timeout): {text}"
            )
        if text != last_text:
            log.info("waiting: %s", text)
            last_text = text
        if wait(ASK_AGAIN_S):
            return False


def problems(wanted: Mapping[str, Any], namespace: str, api: ApiServer) -> list[str]:
    """Return the problems that keep the release from being ready, one text each."""
    checks: list[Callable[[], str]] = [
        *(lambda r=rule: rule_problem(r, _get(api, r["path"].format(namespace=namespace)))
          for rule in wanted["rules"]),
        *(lambda p=pool: pool_problem(p, _pods(api, namespace, p["labels"]))
          for pool in wanted["pools"]),
    ]  # fmt: skip
    found = []
    for check in checks:
        try:
            found.append(check())
        except ApiRefusal as error:
            found.append(f"the API server refuses the request: {error}")
        except OSError as error:
            found.append(f"the API server cannot be reached: {one_line(str(error))}")
    return [each for each in found if each]


def _get(api: ApiServer, path: str) -> Json | None:
    try:
        return api.get(path).body
    except ApiRefusal as error:
        if error.status == 404:
            return None
        raise


def _pods(api: ApiServer, namespace: str, labels: Mapping[str, str]) -> list[Json]:
    selector = quote(",".join(f"{key}={value}" for key, value in labels.items()))
    listed = api.get(f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}").body
    items: list[Json] = listed["items"]
    return items


def rule_problem(rule: Mapping[str, Any], found: Json | None) -> str:
    """Return the reason why a rule does not hold; empty if it does. `found` is None if the object
    does not exist."""
    words, field, value = rule["words"], rule["field"], rule["value"]
    if found is None:
        return f"{words} does not exist"
    if rule["test"] == "field":
        current = value_at(found, field)
        if current is None or (value is not None and as_text(current) != value):
            expected = f"; expected {value}" if value is not None else ""
            state = "not set" if current is None else as_text(current)
            return f"{words}: {field} is {state}{expected}"
        return ""
    condition = conditions_of(found).get(field)
    if condition is None:
        return f"{words} has no condition {field}"
    if condition.get("status") == value:
        return ""
    why = one_line(condition.get("message") or condition.get("reason") or "")
    return f"{words}: {field} is {condition.get('status')}" + (f" ({why})" if why else "")


def value_at(found: Any, path: str) -> Any:
    """Return the value at a path such as `.status.replicas[0].ready`; None if it is not set."""
    for name, index in re.findall(r"\.([A-Za-z0-9_-]+)|\[(\d+)\]", path):
        if name:
            found = found.get(name) if isinstance(found, Mapping) else None
        else:
            is_there = isinstance(found, list) and int(index) < len(found)
            found = found[int(index)] if is_there else None
    return found


def as_text(value: Any) -> str:
    """Return a value in the format of a rule: JSON, with text unquoted."""
    return value if isinstance(value, str) else json.dumps(value)


def pool_problem(pool: Mapping[str, Any], pods: Iterable[Json]) -> str:
    """Return the reason why a pool is not ready; empty if it is."""
    present = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    ready = [pod for pod in present if is_ready(pod)]
    if len(ready) >= pool["replicas"]:
        return ""
    reasons = (pod_reason(pod) for pod in present if not is_ready(pod))
    why = next((each for each in reasons if each), "")
    text = f"pool {pool['name']}: {len(ready)} of {pool['replicas']} pods ready"
    return f"{text} ({why})" if why else text


def pod_reason(pod: Json) -> str:
    """Return the reason why a pod is not ready, if Kubernetes reports one."""
    name = pod["metadata"]["name"]
    for each in containers_of(pod):
        state = each.get("state") or {}
        last = (each.get("lastState") or {}).get("terminated") or {}
        waiting = state.get("waiting") or {}
        if last and waiting:
            return f"pod {name}: {waiting.get('reason')}, exit code {last.get('exitCode')}"
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            text = one_line(waiting.get("message") or "")
            return f"pod {name}: {waiting['reason']}" + (f": {text}" if text else "")
    placed = conditions_of(pod).get("PodScheduled", {})
    if placed.get("status", "True") == "True":
        return ""
    return f"pod {name}: {one_line(placed.get('message') or placed.get('reason') or '')}"
