"""The objects that check a cluster's network: a namespace with a deadline, a policy, and two pods.
Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from aiperf_svc.adapters.cluster.preflight.restricted_pods import (
    restricted_container,
    restricted_pod,
)
from aiperf_svc.config.placement import Placement
from aiperf_svc.plan.identity import TTL_ANNOTATION, Identity
from aiperf_svc.plan.pods import ImagePlan, Requests

LISTENER, CONNECTOR = "listener", "connector"
DEADLINE = "deadline"
ALLOWED_PORT, FORBIDDEN_PORT = 9001, 9002
TTL_S = 300
"""Time after which the namespace deletes itself; a check takes a quarter of that."""
CONNECTOR_S = 60
"""Longest time for the pod that connects."""
READY_FILE = "/tmp/kept"
_MI = 2**20
SIZE = Requests(10, 64 * _MI, storage_bytes=26 * _MI, storage_limit_bytes=256 * _MI)
RBAC = "rbac.authorization.k8s.io"
Json = dict[str, Any]


class NetworkObjects(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of one check."""

    identity: Identity
    namespace: str
    image: ImagePlan

    def manifest_of_namespace(self) -> Json:
        """Return the namespace. Its annotation lets `gc` find it when its time is over."""
        metadata = {
            "name": self.namespace,
            "labels": {**self._labels(), "pod-security.kubernetes.io/enforce": "restricted"},
            "annotations": {TTL_ANNOTATION: str(TTL_S)},
        }
        return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}

    def manifests(self) -> Iterator[tuple[str, Json]]:
        """Yield the path and the manifest of everything inside that is no pod: the policy, and what
        lets the deadline delete the namespace."""
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
        """Return the pod that listens at both ports and keeps the deadline."""
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
        # It ends with the namespace, which it deletes if nobody else does.
        del pod["spec"]["activeDeadlineSeconds"]
        pod["spec"] |= {
            "restartPolicy": "Always",
            "serviceAccountName": DEADLINE,
            "automountServiceAccountToken": True,
            "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "16Mi"}}],
        }
        return pod

    def connector(self, program: str, address: str, urls: Sequence[str]) -> Json:
        """Return the pod that connects to the other's address and reads the pages."""
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
    """Plan the objects of a check, with names that nothing else has."""
    identity = Identity(stack=f"check-{suffix}", run_id=f"check-{suffix}", version=version)
    plan = ImagePlan(image, "IfNotPresent")
    return NetworkObjects(identity=identity, namespace=f"aiperf-check-{suffix}", image=plan)
