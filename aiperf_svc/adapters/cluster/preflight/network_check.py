"""Checks a cluster's network with two pods in a separate namespace: whether NetworkPolicies are
enforced, and whether a pod can read the metrics pages of GPU exporters.

Afterwards the namespace is deleted, and a search by label finds remaining objects. If this process
is killed, a deadline in the namespace deletes it, as in every stack. Both pods run
`network_program.py`.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, Unreachable
from aiperf_svc.adapters.cluster.preflight import network_program
from aiperf_svc.adapters.cluster.preflight.probe_pods import (
    WaitedPod,
    end_message,
    remove_made,
    restricted_container,
    restricted_pod,
    wait_for_pod,
)
from aiperf_svc.adapters.cluster.preflight.rights import Right, denied
from aiperf_svc.adapters.cluster.teardown.inventory import StackObjects
from aiperf_svc.adapters.cluster.teardown.leaks import LeakReport, wait_until_gone
from aiperf_svc.config.placement import Placement
from aiperf_svc.core.cluster.conditions import has_ended
from aiperf_svc.core.cluster.facts import Exporter, ProbeResult
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import TTL_ANNOTATION, Identity
from aiperf_svc.plan.pods import ImagePlan, Requests

LISTENER, CONNECTOR = "listener", "connector"
DEADLINE = "deadline"
ALLOWED_PORT, FORBIDDEN_PORT = 9001, 9002
TTL_S = 300
"""Time after which the namespace deletes itself; a check takes a quarter of it."""
CONNECTOR_S = 60
"""Timeout of the pod that connects."""
READY_FILE = "/tmp/kept"
_MI = 2**20
SIZE = Requests(10, 64 * _MI, storage_bytes=26 * _MI, storage_limit_bytes=256 * _MI)
RBAC = "rbac.authorization.k8s.io"
START_S = 60.0
"""Timeout until the listening pod has an address."""
GONE_S = 60.0
"""Timeout until all objects are gone."""
NAMESPACES = "/api/v1/namespaces"


class NetworkObjects(msgspec.Struct, frozen=True, kw_only=True):
    identity: Identity
    namespace: str
    image: ImagePlan

    def manifest_of_namespace(self) -> Json:
        """Return the namespace. `gc` finds it by its annotation when its time has expired."""
        metadata = {
            "name": self.namespace,
            "labels": {**self._labels(), "pod-security.kubernetes.io/enforce": "restricted"},
            "annotations": {TTL_ANNOTATION: str(TTL_S)},
        }
        return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}

    def manifests(self) -> Iterator[tuple[str, Json]]:
        """Yield the path and the manifest of all objects in the namespace except the pods: the
        policy, and the deadline's rights to delete the namespace."""
        yield self._policy()
        yield self._inside("", "v1", "ServiceAccount", "serviceaccounts", DEADLINE)
        rule = {
            "apiGroups": [""],
            "resources": ["namespaces"],
            "resourceNames": [self.namespace],
            "verbs": ["get", "delete"],
        }
        yield self._inside(RBAC, "v1", "Role", "roles", DEADLINE, rules=[rule])
        yield self._inside(
            RBAC,
            "v1",
            "RoleBinding",
            "rolebindings",
            DEADLINE,
            roleRef={"apiGroup": RBAC, "kind": "Role", "name": DEADLINE},
            subjects=[{"kind": "ServiceAccount", "name": DEADLINE, "namespace": self.namespace}],
        )

    def listener(self, program: str) -> Json:
        """Return the pod that listens on both ports and enforces the deadline."""
        command = ["python", "-P", "-c", program, "listen", str(FORBIDDEN_PORT), str(ALLOWED_PORT)]
        listening = restricted_container(LISTENER, command, image=self.image, requests=SIZE)
        keep = ("python", "-P", "-m", "aiperf_svc", DEADLINE)
        keeping = restricted_container(DEADLINE, keep, image=self.image, requests=SIZE)
        environ = {
            "AIPERF_NAMESPACE": self.namespace,
            "AIPERF_DEADLINE_DELETES": "namespace",
            "AIPERF_TTL_SECONDS": str(TTL_S),
            "AIPERF_READY_FILE": READY_FILE,
        }
        keeping["env"] = [{"name": name, "value": value} for name, value in environ.items()]
        keeping["volumeMounts"] = [{"name": "tmp", "mountPath": "/tmp"}]
        pod = self._pod(LISTENER, [listening, keeping])
        # It ends with the namespace. If the runner does not delete the namespace, the deadline
        # does.
        del pod["spec"]["activeDeadlineSeconds"]
        pod["spec"] |= {
            "restartPolicy": "Always",
            "serviceAccountName": DEADLINE,
            "automountServiceAccountToken": True,
            "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "16Mi"}}],
        }
        return pod

    def connector(self, program: str, address: str, urls: Sequence[str]) -> Json:
        """Return the pod that connects to the other pod and reads the pages."""
        ports = (str(ALLOWED_PORT), str(FORBIDDEN_PORT))
        command = ["python", "-P", "-c", program, "connect", address, *ports, *urls]
        container = restricted_container(CONNECTOR, command, image=self.image, requests=SIZE)
        return self._pod(CONNECTOR, [container])

    def _pod(self, name: str, containers: Sequence[Json]) -> Json:
        return restricted_pod(
            name,
            containers,
            labels=self._labels(name),
            image=self.image,
            placement=Placement(),
            deadline_s=CONNECTOR_S,
        )

    def _policy(self) -> tuple[str, Json]:
        ports = [{"port": ALLOWED_PORT, "protocol": "TCP"}]
        spec = {
            "podSelector": {"matchLabels": self.identity.selector(LISTENER)},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": ports}],
        }
        group = "networking.k8s.io"
        return self._inside(group, "v1", "NetworkPolicy", "networkpolicies", LISTENER, spec=spec)

    def _inside(
        self, group: str, version: str, kind: str, resource: str, name: str, **rest: Any
    ) -> tuple[str, Json]:
        api = f"{group}/{version}" if group else version
        path = f"/{'apis' if group else 'api'}/{api}/namespaces/{self.namespace}/{resource}"
        metadata = {"name": name, "labels": self._labels()}
        return path, {"apiVersion": api, "kind": kind, "metadata": metadata, **rest}

    def _labels(self, component: str = "") -> dict[str, str]:
        return {**self.identity.labels(component), "app.kubernetes.io/managed-by": "aiperf-svc"}


def plan_objects(suffix: str, *, image: str, version: str) -> NetworkObjects:
    """Plan the objects of a check under unique names."""
    identity = Identity(stack=f"check-{suffix}", run_id=f"check-{suffix}", version=version)
    plan = ImagePlan(image, "IfNotPresent")
    return NetworkObjects(identity=identity, namespace=f"aiperf-check-{suffix}", image=plan)


class Probed(msgspec.Struct, frozen=True):
    """The result of the pods, and the objects left of them."""

    result: ProbeResult
    left: LeakReport | None = None
    """None if nothing was created."""


async def probe_network(
    cluster: Cluster,
    exporters: Sequence[Exporter],
    *,
    image: str,
    version: str,
    say: Callable[[str], None],
) -> Probed:
    """Run the pods and remove everything. `say` is called when the namespace exists. Raises
    EnvironmentProblem if the cluster stops responding."""
    objects = plan_objects(secrets.token_hex(3), image=image, version=version)
    missing = await denied(cluster, _rights(objects.namespace))
    if missing:
        lacking = ", ".join(map(str, sorted(missing)))
        detail = f"this check needs a namespace of its own, and you may not {lacking}"
        return Probed(ProbeResult(not_tried=detail))
    try:
        uid = await _make_namespace(cluster, objects)
    except Refused as error:
        return Probed(ProbeResult(not_tried=f"cannot create its namespace: {error}"))
    reports: list[LeakReport] = []
    async with _remove_after(cluster, objects, uid=uid, reports=reports):
        say(f"two pods in namespace {objects.namespace} check the network")
        try:
            result = await _run(cluster, objects, exporters)
        except Refused as error:
            result = ProbeResult(not_tried=f"cannot create its objects: {error}")
    return Probed(result, reports[0])


async def _make_namespace(cluster: Cluster, objects: NetworkObjects) -> str:
    """Create the namespace and return its UID. Raises Refused, Unreachable, and EnvironmentProblem
    if the namespace may remain."""
    try:
        made = await cluster.post(NAMESPACES, objects.manifest_of_namespace())
    except (Refused, Unreachable, asyncio.CancelledError) as error:
        # The namespace may exist although the API server failed or did not respond.
        if isinstance(error, asyncio.CancelledError) or error.is_temporary:
            await asyncio.shield(remove_made(cluster, f"{NAMESPACES}/{objects.namespace}"))
        raise
    return str(made["metadata"]["uid"])


@asynccontextmanager
async def _remove_after(
    cluster: Cluster, objects: NetworkObjects, *, uid: str, reports: list[LeakReport]
) -> AsyncIterator[None]:
    """Delete the namespace in all cases, and report remaining objects. After one Ctrl-C it still
    waits for the whole removal, after a second one only for the request."""
    path = f"{NAMESPACES}/{objects.namespace}"
    try:
        yield
    finally:
        await asyncio.shield(remove_made(cluster, path, uid=uid))
        wanted = StackObjects(
            stack=objects.identity.stack,
            namespace=objects.namespace,
            namespace_uid=uid,
            own=(uid,),
        )
        reports.append(await wait_until_gone(cluster, wanted, timeout_s=GONE_S))


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
        f"{pods}/{LISTENER}",
        until=lambda pod: bool(pod.get("status", {}).get("podIP")),
        longest_s=START_S,
    )
    if listening.pod is None:
        return ProbeResult(not_tried=_start_failure(listening))
    address = listening.pod["status"]["podIP"]
    urls = [each.url for each in exporters]
    await cluster.post(pods, objects.connector(program, address, urls))
    ended = await wait_for_pod(
        cluster,
        f"{pods}/{CONNECTOR}",
        until=has_ended,
        longest_s=CONNECTOR_S,
    )
    if ended.pod is None:
        return ProbeResult(not_tried=_start_failure(ended))
    if ended.pod["status"]["phase"] == "Failed":
        return ProbeResult(not_tried=f"the pod that connects failed: {end_message(ended.pod)}")
    return _read(await cluster.text(f"{pods}/{CONNECTOR}/log"))


def _start_failure(waited: WaitedPod) -> str:
    return f"a pod does not start: {waited.failure or 'it takes too long'}"


def _read(log: str) -> ProbeResult:
    try:
        found = msgspec.json.decode(log, type=ProbeResult)
    except msgspec.DecodeError as error:
        raise EnvironmentProblem(
            f"the pod of the network check printed no result: {error}"
        ) from error
    pages = {
        url: msgspec.structs.replace(page, failure=one_line(page.failure))
        for url, page in found.pages.items()
    }
    return ProbeResult(
        allowed=one_line(found.allowed), forbidden=one_line(found.forbidden), pages=pages
    )


def _rights(namespace: str) -> tuple[Right, ...]:
    """Return the rights needed before anything is created, including those for the removal."""
    return (
        Right("", "namespaces", "create"),
        Right("", "namespaces", "get", name=namespace),
        Right("", "namespaces", "delete", name=namespace),
    )
