"""Checks a cluster's network with two pods in a namespace of their own: whether NetworkPolicies are
enforced, and whether a pod can read the pages of GPU exporters.

Everything is gone afterwards: the namespace is deleted, and what is left is looked for by label. If
this process is killed, a deadline in the namespace deletes it, as in every stack.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, Unreachable
from aiperf_svc.adapters.cluster.preflight import network_objects, network_program
from aiperf_svc.adapters.cluster.preflight.network_objects import NetworkObjects
from aiperf_svc.adapters.cluster.preflight.pod_wait import (
    WaitedPod,
    ended_words,
    has_ended,
    wait_for_pod,
)
from aiperf_svc.adapters.cluster.preflight.rights import Right, denied
from aiperf_svc.adapters.cluster.teardown.leaks import LeakReport, wait_until_gone
from aiperf_svc.core.cluster.facts import Exporter, ProbeResult
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line

START_S = 60.0
"""Longest time until the pod that listens has an address."""
GONE_S = 60.0
"""Longest time until everything is gone."""
NAMESPACES = "/api/v1/namespaces"


class Probed(msgspec.Struct, frozen=True):
    """What the pods have found, and what is left of them."""

    result: ProbeResult
    left: LeakReport | None = None
    """None if nothing was made."""


async def probe_network(
    cluster: Cluster,
    exporters: Sequence[Exporter],
    *,
    image: str,
    version: str,
    say: Callable[[str], None],
) -> Probed:
    """Run the pods and remove everything; `say` is told when the namespace is there. Raises
    EnvironmentProblem if the cluster stops responding."""
    objects = network_objects.plan_objects(secrets.token_hex(3), image=image, version=version)
    missing = await denied(cluster, _rights(objects.namespace))
    if missing:
        words = (
            f"takes a namespace of its own: not allowed to {', '.join(map(str, sorted(missing)))}"
        )
        return Probed(ProbeResult(not_tried=words))
    try:
        uid = await _make_namespace(cluster, objects)
    except Refused as error:
        return Probed(ProbeResult(not_tried=f"its namespace cannot be made: {error}"))
    reports: list[LeakReport] = []
    async with _removed_after(cluster, objects, uid=uid, reports=reports):
        say(f"two pods in namespace {objects.namespace} try the network")
        try:
            result = await _run(cluster, objects, exporters)
        except Refused as error:
            result = ProbeResult(not_tried=f"what it takes cannot be made: {error}")
    return Probed(result, reports[0])


async def _make_namespace(cluster: Cluster, objects: NetworkObjects) -> str:
    """Make the namespace and return its UID. Raises Refused, Unreachable."""
    try:
        made = await cluster.post(NAMESPACES, objects.manifest_of_namespace())
    except (Unreachable, asyncio.CancelledError):
        # It may have been made all the same.
        await asyncio.shield(cluster.delete(f"{NAMESPACES}/{objects.namespace}"))
        raise
    return str(made["metadata"]["uid"])


@asynccontextmanager
async def _removed_after(
    cluster: Cluster, objects: NetworkObjects, *, uid: str, reports: list[LeakReport]
) -> AsyncIterator[None]:
    """Delete the namespace whatever happens, and add a report of what is left. A first Ctrl-C waits
    for that, a second one only for the request."""
    path = f"{NAMESPACES}/{objects.namespace}"
    try:
        yield
    finally:
        await asyncio.shield(cluster.delete(path, uid=uid))
        reports.append(
            await wait_until_gone(
                cluster,
                stack=objects.identity.stack,
                namespace=objects.namespace,
                namespace_uid=uid,
                before=None,
                own=(uid,),
                timeout_s=GONE_S,
            )
        )


async def _run(
    cluster: Cluster, objects: NetworkObjects, exporters: Sequence[Exporter]
) -> ProbeResult:
    inside = f"{NAMESPACES}/{objects.namespace}"
    for path, manifest in objects.manifests():
        await cluster.post(path, manifest)
    pods = f"{inside}/pods"
    program = await asyncio.to_thread(Path(network_program.__file__).read_text)
    await cluster.post(pods, objects.listener(program))
    listening = await wait_for_pod(
        cluster,
        f"{pods}/{network_objects.LISTENER}",
        until=lambda pod: bool(pod.get("status", {}).get("podIP")),
        longest_s=START_S,
    )
    if listening.pod is None:
        return ProbeResult(not_tried=_not_started(listening))
    address = listening.pod["status"]["podIP"]
    urls = [each.url for each in exporters]
    await cluster.post(pods, objects.connector(program, address, urls))
    ended = await wait_for_pod(
        cluster,
        f"{pods}/{network_objects.CONNECTOR}",
        until=has_ended,
        longest_s=network_objects.CONNECTOR_S,
    )
    if ended.pod is None:
        return ProbeResult(not_tried=_not_started(ended))
    if ended.pod["status"]["phase"] == "Failed":
        return ProbeResult(not_tried=f"the pod that tries has failed: {ended_words(ended.pod)}")
    return _read(await cluster.text(f"{pods}/{network_objects.CONNECTOR}/log"))


def _not_started(waited: WaitedPod) -> str:
    return f"a pod does not start: {waited.failure or 'it takes too long'}"


def _read(log: str) -> ProbeResult:
    try:
        found = msgspec.json.decode(log, type=ProbeResult)
    except msgspec.DecodeError as error:
        raise EnvironmentProblem(f"the network's probe printed no result: {error}") from error
    pages = {
        url: msgspec.structs.replace(page, failure=one_line(page.failure))
        for url, page in found.pages.items()
    }
    return ProbeResult(
        allowed=one_line(found.allowed), forbidden=one_line(found.forbidden), pages=pages
    )


def _rights(namespace: str) -> tuple[Right, ...]:
    """Return the rights without which nothing may be made: what is made must also go."""
    return (
        Right("", "namespaces", "create"),
        Right("", "namespaces", "get", name=namespace),
        Right("", "namespaces", "delete", name=namespace),
    )
