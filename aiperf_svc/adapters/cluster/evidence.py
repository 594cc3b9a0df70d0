"""Saves the state of a failed stack before anything is deleted: events, statuses, descriptions and
the ends of the logs. Values of Secrets are never saved."""

import asyncio
from pathlib import Path

import yaml

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.api.objects import ResourceType, read_catalog
from aiperf_svc.core.cluster.conditions import all_containers_of
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.foreign_text import lines, one_line
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import STACK_LABEL

LOG_LINES = 2_000
LOG_BYTES = 2**20
"""Maximum number of bytes saved of a log, taken from its end."""
EVENT_LIMIT = 4096
"""Maximum number of characters of an event or container message; a termination message may have as
many bytes."""
LOGGED_PODS = 64
"""Maximum number of pods whose logs are saved, failing ones first. The workers of a large stack log
much the same."""
NO_LOG = "unable to retrieve container logs"
"""Response of the kubelet, with status 200, when it has just removed that container."""
NOT_SAVED = "not-saved.txt"
HIDDEN = "(hidden)"


async def save_evidence(
    cluster: Cluster, *, namespace: str, stack: str, folder: Path
) -> tuple[Path, ...]:
    """Save everything about a stack into `folder`, and return the files written.

    What cannot be read is listed in not-saved.txt and does not stop the rest, so a failure does not
    delay the teardown. Raises OSError if the folder cannot be written.
    """
    saving = _Saving(cluster, namespace, stack, folder)
    await saving.all()
    return tuple(sorted(saving.written))


async def save_logs(
    cluster: Cluster, *, namespace: str, stack: str, folder: Path
) -> tuple[str, ...]:
    """Save the end of each pod's log into `folder`/logs. Return a line for each unreadable log.
    Raises OSError if the folder cannot be written."""
    return await _Saving(cluster, namespace, stack, folder).logs()


class _Saving:
    def __init__(self, cluster: Cluster, namespace: str, stack: str, folder: Path) -> None:
        self._cluster, self._namespace, self._stack = cluster, namespace, stack
        self._folder = folder
        self.written: list[Path] = []
        self._problems: list[str] = []

    async def all(self) -> None:
        pods = await self._list(f"/api/v1/namespaces/{self._namespace}/pods")
        await asyncio.gather(self._events(), self._descriptions(), self._logs(pods))
        if pods:
            self._write("containers.txt", "".join(map(container_lines, pods)))
        if self._problems:
            self._write(NOT_SAVED, "\n".join(self._problems) + "\n")

    async def logs(self) -> tuple[str, ...]:
        await self._logs(await self._list(f"/api/v1/namespaces/{self._namespace}/pods"))
        return tuple(self._problems)

    async def _events(self) -> None:
        path = f"/api/v1/namespaces/{self._namespace}/events"
        events = await self._list(path, labelled=False)
        ours = [each for each in events if _is_about(each, self._stack, self._namespace)]
        if ours:
            self._write("events.txt", "".join(map(event_line, sorted(ours, key=_event_time))))

    async def _descriptions(self) -> None:
        try:
            catalog = await read_catalog(self._cluster)
        except EnvironmentProblem as problem:
            self._problems.append(f"descriptions: {problem}")
            return
        await asyncio.gather(
            *(self._describe(each) for each in catalog.types if each.is_namespaced)
        )
        try:
            path = f"/api/v1/namespaces/{self._namespace}"
            self._write(f"objects/namespace-{self._namespace}.yaml",
                        described(await self._cluster.get(path)))  # fmt: skip
        except EnvironmentProblem as problem:
            self._problems.append(f"namespace {self._namespace}: {problem}")

    async def _describe(self, kind: ResourceType) -> None:
        for each in await self._list(kind.path(self._namespace)):
            whole = {"apiVersion": kind.api_version, "kind": kind.kind, **each}
            name = f"objects/{kind.kind.lower()}-{each['metadata']['name']}.yaml"
            self._write(name, described(whole))

    async def _logs(self, pods: list[Json]) -> None:
        chosen = sorted(pods, key=is_fine)[:LOGGED_PODS]
        if len(chosen) < len(pods):
            self._problems.append(
                f"logs of {len(pods) - len(chosen)} more pods: only {LOGGED_PODS} pods are saved, "
                "failing ones first"
            )
        wanted = [
            (pod["metadata"]["name"], container["name"], is_previous)
            for pod in chosen
            for container in all_containers_of(pod)
            for is_previous in (False, True)
            if not is_previous or container.get("restartCount")
        ]
        await asyncio.gather(*(self._log(*each) for each in wanted))

    async def _log(self, pod: str, container: str, is_previous: bool) -> None:
        params = {"container": container, "tailLines": str(LOG_LINES), "timestamps": "true"}
        params |= {"limitBytes": str(LOG_BYTES), "previous": str(is_previous).lower()}
        path = f"/api/v1/namespaces/{self._namespace}/pods/{pod}/log"
        name = f"logs/{pod}.{container}{'.previous' if is_previous else ''}.log"
        try:
            content = await self._cluster.text(path, **params)
        except EnvironmentProblem as problem:
            self._problems.append(f"{name}: {problem}")
            return
        if content.startswith(NO_LOG):
            self._problems.append(f"{name}: {content.strip()}")
        elif content:
            self._write(name, content)

    async def _list(self, path: str, *, labelled: bool = True) -> list[Json]:
        params = {"labelSelector": f"{STACK_LABEL}={self._stack}"} if labelled else {}
        try:
            items: list[Json] = (await self._cluster.get(path, **params))["items"]
        except EnvironmentProblem as problem:
            self._problems.append(f"{path}: {problem}")
            return []
        return items

    def _write(self, name: str, content: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # A foreign image may log control characters, and users read the log in a terminal.
        path.write_text(lines(content))
        self.written.append(path)


def described(found: Json) -> str:
    """Format an object as YAML, without secret values and without fields that only controllers
    use."""
    metadata = {k: v for k, v in found["metadata"].items() if k != "managedFields"}
    shown = {**found, "metadata": metadata}
    if found.get("kind") == "Secret":
        # Tools repeat an object's complete content in annotations.
        metadata.pop("annotations", None)
        for field in ("data", "stringData"):
            if field in shown:
                shown[field] = dict.fromkeys(shown[field] or {}, HIDDEN)
    text: str = yaml.safe_dump(shown, sort_keys=False, width=100)
    return text


def event_line(event: Json) -> str:
    about = event.get("involvedObject") or {}
    message = one_line(event.get("message") or "", limit=EVENT_LIMIT)
    count = event.get("count") or (event.get("series") or {}).get("count") or 1
    return (
        f"{_event_time(event)}  {event.get('type', '')}  {event.get('reason', '')}  "
        f"{about.get('kind', '')}/{about.get('name', '')}  x{count}  {message}\n"
    )


def container_lines(pod: Json) -> str:
    """Format a pod's phase and the state of each of its containers."""
    status = pod.get("status", {})
    found = [
        f"{pod['metadata']['name']}  {status.get('phase', '?')}  "
        f"node {pod.get('spec', {}).get('nodeName', '-')}  "
        f"{one_line(status.get('message') or '')}".rstrip()
    ]
    for each in all_containers_of(pod):
        states = [
            f"{label}{state}: " + ", ".join(f"{k}={v}" for k, v in (details or {}).items())
            for label, source in (("", "state"), ("before that ", "lastState"))
            for state, details in (each.get(source) or {}).items()
        ]
        found.append(
            f"    {each['name']}  ready={each.get('ready')}  restarts={each.get('restartCount')}  "
            f"{each.get('image')}"
        )
        found += [f"        {one_line(state, limit=EVENT_LIMIT)}".rstrip() for state in states]
    return "\n".join(found) + "\n"


def is_fine(pod: Json) -> bool:
    """Return whether a pod runs, is ready, and has never been restarted."""
    statuses = all_containers_of(pod)
    return bool(statuses) and all(
        each.get("ready") and not each.get("restartCount") for each in statuses
    )


def _is_about(event: Json, stack: str, namespace: str) -> bool:
    """Return whether an event is about a stack's object: the object's name or the stack's own
    namespace contains the stack's name."""
    name = (event.get("involvedObject") or {}).get("name", "")
    return f"-{stack}-" in f"-{name}-" or f"-{stack}-" in f"-{namespace}-"


def _event_time(event: Json) -> str:
    series = (event.get("series") or {}).get("lastObservedTime")
    times = (series, event.get("lastTimestamp"), event.get("eventTime"))
    return str(next(filter(None, times), event["metadata"].get("creationTimestamp", "")))
