"""The cluster for end-to-end tests: its choice, its objects, and what a stack left in it."""

import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiperf_svc.plan.identity import COMPONENT_LABEL, STACK_LABEL
from aiperf_svc.plan.release import BUILT_IN
from tests.support.stack.commands import PROJECT, attempt, run

TOOLS = PROJECT / "tests" / "cluster"
UP_S, DOWN_S, SHORT_S = 180.0, 120.0, 20.0
BUILD_S, LOAD_S = 900.0, 300.0
MADE_S = 120.0
"""Time limit for a starting stack to create an object."""
GONE_S = 60.0
"""Time limit for the cluster's garbage collection after a deletion."""
EVENTS = ("events", "events.events.k8s.io")
"""Events, which the cluster keeps for an hour after their objects are gone."""
FAKE_NODE = "aiperf.dev/fake-node"
"""Label and taint of a fake node, which only claims to run pods."""
FEWER_COLLECTIONS = {"GOGC": "400"}
"""Fewer garbage collections in Pulumi and kubectl, which otherwise take a fifth of their time."""


class NoClusterError(Exception):
    """No cluster is available. The message is one line with the reason and the remedy."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster reached through kubectl. `environ` configures kubectl and Pulumi."""

    context: str
    environ: Mapping[str, str]
    is_ours: bool
    """Whether tests/cluster created it, so that images can be loaded into it."""
    _types: dict[bool, list[str]] = field(default_factory=dict, repr=False, compare=False)

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 60.0) -> str:
        """Run kubectl and return its output."""
        command = ("kubectl", "--context", self.context, *arguments)
        return run(command, environ=self.environ, stdin=stdin, timeout_s=timeout_s)

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        """Create these objects."""
        items = {"apiVersion": "v1", "kind": "List", "items": manifests}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(items))

    def objects(self, *arguments: str) -> list[dict[str, Any]]:
        """Return objects from the server: `objects("pods", "-n", "default")`."""
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", *arguments, "-o", "json"))[
            "items"
        ]
        return found

    def wait_for_objects(self, *arguments: str) -> list[dict[str, Any]]:
        """Wait until such objects exist and return them."""
        deadline = time.monotonic() + MADE_S
        while not (found := self.objects(*arguments)):
            # Each kubectl call takes long enough to need no sleep.
            assert time.monotonic() < deadline, f"no {' '.join(arguments)}"
        return found

    def add_image(
        self, name: str, recipe: Path, context: Path | None = None, *arguments: str
    ) -> None:
        """Build an image from a Containerfile and load it onto the nodes. The context is the file's
        folder by default. Fails with the tool's output. Layers are kept in the cache of
        tests/cluster."""
        with tempfile.TemporaryDirectory() as folder:
            archive = f"{folder}/image.tar"
            build = (str(TOOLS / "build-image"), str(recipe), str(context or recipe.parent), name)
            run((*build, archive, *arguments), environ=self.environ, timeout_s=BUILD_S)
            run((str(TOOLS / "load-image"), archive), environ=self.environ, timeout_s=LOAD_S)

    def nodes(self) -> list[str]:
        """Return the names of the nodes that run pods."""
        found = self.objects("nodes", "-l", f"!{FAKE_NODE}")
        return sorted(node["metadata"]["name"] for node in found)

    def host_address(self) -> str:
        """Return this machine's address on its link to the first node."""
        addresses = self.objects("nodes")[0]["status"]["addresses"]
        (node,) = (each["address"] for each in addresses if each["type"] == "InternalIP")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # A UDP connect sends nothing; it only selects a route.
            probe.connect((node, 9))
            found: str = probe.getsockname()[0]
        return found

    def types(self, *, namespaced: bool) -> list[str]:
        """Return every built-in type that can be listed. Tests add and remove other types."""
        if namespaced not in self._types:
            flag = f"--namespaced={str(namespaced).lower()}"
            found = self.kubectl("api-resources", "--verbs=list", flag, "-o", "name").split()
            self._types[namespaced] = [
                name for name in found if name.partition(".")[2] in BUILT_IN and name not in EVENTS
            ]
        return self._types[namespaced]

    def pods_of(self, stack: str, component: str = "") -> list[dict[str, Any]]:
        """Return the pods of the stack, or of one component."""
        label = f"{STACK_LABEL}={stack}"
        label += f",{COMPONENT_LABEL}={component}" if component else ""
        return self.objects("pods", "-A", "-l", label)

    def lose_pod(self, stack: str, component: str) -> str:
        """Kill a pod of a component immediately, like a lost node. Its Deployment creates another.
        Return the name of the killed pod."""
        metadata = self.pods_of(stack, component)[0]["metadata"]
        name: str = metadata["name"]
        at_once = ("--grace-period=0", "--force")
        self.kubectl("delete", "pod", name, "-n", metadata["namespace"], *at_once)
        return name

    def of_stack(self, stack: str) -> list[str]:
        """Return every object with the stack's label, of any type in any namespace."""
        label = ("-l", f"{STACK_LABEL}={stack}")
        inside = self.objects(",".join(self.types(namespaced=True)), "-A", *label)
        outside = self.objects(",".join(self.types(namespaced=False)), *label)
        return sorted({describe(found) for found in (*inside, *outside)})

    def of_namespace(self, namespace: str) -> dict[str, str]:
        """Return the UID of every object in a namespace, whatever its labels."""
        types = ",".join(self.types(namespaced=True))
        return {
            describe(found): found["metadata"].get("uid", "")
            for found in self.objects(types, "-n", namespace)
        }

    def left_of(self, stack: str) -> list[str]:
        """Return the stack's remaining objects once the cluster has had time to delete them."""
        deadline = time.monotonic() + GONE_S
        while (left := self.of_stack(stack)) and time.monotonic() < deadline:
            pass  # Listing everything takes about a second, so no sleep is needed.
        return left

    def namespace_uids(self) -> set[str]:
        """Return the UIDs of all namespaces. A recreated namespace has another UID."""
        return {found["metadata"]["uid"] for found in self.objects("namespaces")}

    def remove(self, stack: str) -> None:
        """Delete by label after a failed test."""
        label = ("-l", f"{STACK_LABEL}={stack}")
        self.kubectl("delete", "namespace", *label, "--wait=false")
        self.kubectl(
            "delete", "configmaps,deployments,jobs,services,secrets,serviceaccounts,"
            "networkpolicies,poddisruptionbudgets,roles,rolebindings,ingresses", "-A", *label,
            "--wait=false",
        )  # fmt: skip


def describe(found: Mapping[str, Any]) -> str:
    """Return a short description of an object."""
    metadata = found["metadata"]
    return f"{metadata.get('namespace', '-')}/{found['kind']}/{metadata['name']}"


def find_cluster(
    *, fewest_nodes: int = 1, environ: Mapping[str, str] = os.environ
) -> Cluster | None:
    """Return the cluster of E2E_CONTEXT, or else the running cluster of tests/cluster if it has
    enough nodes. Return None if `start_cluster` can start one.

    KUBECONFIG alone chooses no context: tests never touch a cluster that was not named explicitly.
    Raises NoClusterError if there is no cluster and none can be started.
    """
    context = environ.get("E2E_CONTEXT")
    if not context:
        own = _own_cluster(environ)
        return own if own and len(own.nodes()) >= fewest_nodes else None
    missing = [name for name in ("kubectl", "pulumi") if not shutil.which(name)]
    if missing:
        raise NoClusterError(f"E2E_CONTEXT is set, and {' and '.join(missing)} not on PATH")
    found = Cluster(context=context, environ=FEWER_COLLECTIONS | environ, is_ours=False)  # type: ignore[operator]
    silence = _silence(found)
    if silence:
        raise NoClusterError(f"cluster {context} of E2E_CONTEXT does not respond: {silence}")
    if len(found.nodes()) < fewest_nodes:
        raise NoClusterError(
            f"cluster {context} of E2E_CONTEXT has fewer than {fewest_nodes} nodes"
        )
    return found


def start_cluster(*, nodes: int = 1, environ: Mapping[str, str] = os.environ) -> Cluster:
    """Start the cluster of tests/cluster, replacing a running one with fewer nodes."""
    run((str(TOOLS / "up"), "--nodes", str(nodes)), environ=environ, timeout_s=UP_S)
    found = _own_cluster(environ)
    assert found is not None, "tests/cluster/up succeeded, but there is no cluster"
    return found


def stop_cluster(environ: Mapping[str, str] = os.environ) -> None:
    """Stop the cluster and check that nothing of it is left on this machine."""
    down = str(TOOLS / "down")
    run((down,), environ=environ, timeout_s=DOWN_S)
    run((down, "--check"), environ=environ, timeout_s=SHORT_S)


def _own_cluster(environ: Mapping[str, str]) -> Cluster | None:
    remedy = "name another cluster with E2E_CONTEXT"
    possible = attempt((str(TOOLS / "possible"),), environ=environ, timeout_s=SHORT_S)
    if possible.code:
        raise NoClusterError(f"no cluster to test on: {_line(possible.errors)}; {remedy}")
    exports = attempt((str(TOOLS / "env"),), environ=environ, timeout_s=SHORT_S)
    if exports.code:
        raise NoClusterError(f"no cluster to test on: {_line(exports.errors)}; or {remedy}")
    # The shell that evaluates these lines resolves their quotes and the old PATH.
    script = f"{exports.out}\nenv -0"
    printed = run(("bash", "-c", script), environ=environ, timeout_s=SHORT_S)
    own = dict(line.split("=", 1) for line in printed.split("\0") if "=" in line)
    if not Path(own["KUBECONFIG"]).exists():
        return None
    context = run(("kubectl", "config", "current-context"), environ=own, timeout_s=SHORT_S)
    found = Cluster(context=context.strip(), environ=FEWER_COLLECTIONS | own, is_ours=True)
    return None if _silence(found) else found


def _silence(cluster: Cluster) -> str:
    """Return why the API server does not respond, or an empty text."""
    command = ("kubectl", "--context", cluster.context, "get", "--raw", "/readyz")
    ended = attempt(command, environ=cluster.environ, timeout_s=SHORT_S)
    return _line(ended.errors or "no reason given") if ended.code else ""


def _line(text: str) -> str:
    return " ".join(text.split())
