"""The cluster under the end-to-end tests: which one, what is in it, what a stack left in it."""

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
"""Longest time until a stack that comes up has an object."""
GONE_S = 60.0
"""Longest time in which the cluster's own garbage collection must have followed a deletion."""
EVENTS = ("events", "events.events.k8s.io")
"""What the cluster says about objects; kept for an hour whatever becomes of them."""
FAKE_NODE = "aiperf.dev/fake-node"
"""Label and taint of a node that only says that it runs pods."""
FEWER_COLLECTIONS = {"GOGC": "400"}
"""Of garbage in Pulumi and kubectl, which otherwise spend a fifth of their time on it."""


class NoClusterError(Exception):
    """One line: why there is no cluster to test on, and how to have one."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Reached by kubectl; `environ` has what kubectl and Pulumi need."""

    context: str
    environ: Mapping[str, str]
    is_ours: bool
    """Made by tests/cluster, so that images can be loaded into it."""
    _types: dict[bool, list[str]] = field(default_factory=dict, repr=False, compare=False)

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 60.0) -> str:
        """What kubectl prints."""
        command = ("kubectl", "--context", self.context, *arguments)
        return run(command, environ=self.environ, stdin=stdin, timeout_s=timeout_s)

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        """Make these objects."""
        items = {"apiVersion": "v1", "kind": "List", "items": manifests}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(items))

    def objects(self, *arguments: str) -> list[dict[str, Any]]:
        """Objects as the server knows them: `objects("pods", "-n", "default")`."""
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", *arguments, "-o", "json"))[
            "items"
        ]
        return found

    def wait_for_objects(self, *arguments: str) -> list[dict[str, Any]]:
        """Until there are such objects; these."""
        deadline = time.monotonic() + MADE_S
        while not (found := self.objects(*arguments)):
            # kubectl takes its time.
            assert time.monotonic() < deadline, f"no {' '.join(arguments)}"
        return found

    def add_image(
        self, name: str, recipe: Path, context: Path | None = None, *arguments: str
    ) -> None:
        """Build an image from a Containerfile and its context, by default its folder, with further
        arguments of the build, and load it onto the nodes. Fails with what the tool reports. Layers
        are kept in the cache of tests/cluster."""
        with tempfile.TemporaryDirectory() as folder:
            archive = f"{folder}/image.tar"
            build = (str(TOOLS / "build-image"), str(recipe), str(context or recipe.parent), name)
            run((*build, archive, *arguments), environ=self.environ, timeout_s=BUILD_S)
            run((str(TOOLS / "load-image"), archive), environ=self.environ, timeout_s=LOAD_S)

    def nodes(self) -> list[str]:
        """Names of the nodes that run pods."""
        found = self.objects("nodes", "-l", f"!{FAKE_NODE}")
        return sorted(node["metadata"]["name"] for node in found)

    def host_address(self) -> str:
        """This machine's address on its link to the first node."""
        addresses = self.objects("nodes")[0]["status"]["addresses"]
        (node,) = (each["address"] for each in addresses if each["type"] == "InternalIP")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # Nothing is sent: the kernel chooses a route.
            probe.connect((node, 9))
            found: str = probe.getsockname()[0]
        return found

    def types(self, *, namespaced: bool) -> list[str]:
        """Every type of Kubernetes itself that can be listed. Tests add others, and remove them."""
        if namespaced not in self._types:
            flag = f"--namespaced={str(namespaced).lower()}"
            found = self.kubectl("api-resources", "--verbs=list", flag, "-o", "name").split()
            self._types[namespaced] = [
                name for name in found if name.partition(".")[2] in BUILT_IN and name not in EVENTS
            ]
        return self._types[namespaced]

    def pods_of(self, stack: str, component: str = "") -> list[dict[str, Any]]:
        """The stack's pods, or a component's of it, as the server knows them."""
        label = f"{STACK_LABEL}={stack}"
        label += f",{COMPONENT_LABEL}={component}" if component else ""
        return self.objects("pods", "-A", "-l", label)

    def lose_pod(self, stack: str, component: str) -> str:
        """Kill one of a component's pods at once, as a lost node does; its Deployment makes
        another one. Its name."""
        metadata = self.pods_of(stack, component)[0]["metadata"]
        name: str = metadata["name"]
        at_once = ("--grace-period=0", "--force")
        self.kubectl("delete", "pod", name, "-n", metadata["namespace"], *at_once)
        return name

    def of_stack(self, stack: str) -> list[str]:
        """Every object that carries the stack's label, of every type and in every namespace."""
        label = ("-l", f"{STACK_LABEL}={stack}")
        inside = self.objects(",".join(self.types(namespaced=True)), "-A", *label)
        outside = self.objects(",".join(self.types(namespaced=False)), *label)
        return sorted({said(found) for found in (*inside, *outside)})

    def of_namespace(self, namespace: str) -> dict[str, str]:
        """Every object in a namespace, whatever its labels, with its UID."""
        types = ",".join(self.types(namespaced=True))
        return {
            said(found): found["metadata"].get("uid", "")
            for found in self.objects(types, "-n", namespace)
        }

    def left_of(self, stack: str) -> list[str]:
        """What is left of a stack when the cluster has had time to follow its deletion."""
        deadline = time.monotonic() + GONE_S
        while (left := self.of_stack(stack)) and time.monotonic() < deadline:
            pass  # Listing everything takes about a second: no need to wait longer.
        return left

    def namespace_uids(self) -> set[str]:
        """UIDs of all namespaces: one that was made again under its name is another one."""
        return {found["metadata"]["uid"] for found in self.objects("namespaces")}

    def remove(self, stack: str) -> None:
        """Delete by label, after a test that failed."""
        label = ("-l", f"{STACK_LABEL}={stack}")
        self.kubectl("delete", "namespace", *label, "--wait=false")
        self.kubectl(
            "delete", "configmaps,deployments,jobs,services,secrets,serviceaccounts,"
            "networkpolicies,poddisruptionbudgets,roles,rolebindings,ingresses", "-A", *label,
            "--wait=false",
        )  # fmt: skip


def said(found: Mapping[str, Any]) -> str:
    """An object in words."""
    metadata = found["metadata"]
    return f"{metadata.get('namespace', '-')}/{found['kind']}/{metadata['name']}"


def find_cluster(
    *, fewest_nodes: int = 1, environ: Mapping[str, str] = os.environ
) -> Cluster | None:
    """The cluster that E2E_CONTEXT names, else the one of tests/cluster if it is up with as many
    nodes, else None: `start_cluster` can have one up.

    A KUBECONFIG alone says where contexts are found and chooses none: the tests never touch a
    cluster that nobody named. Raises NoClusterError when there is none and can be none.
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
    """Has the cluster of tests/cluster up, in the place of one that is up with fewer nodes.
    `stop_cluster` takes it down."""
    run((str(TOOLS / "up"), "--nodes", str(nodes)), environ=environ, timeout_s=UP_S)
    found = _own_cluster(environ)
    assert found is not None, "tests/cluster/up has ended well, and there is no cluster"
    return found


def stop_cluster(environ: Mapping[str, str] = os.environ) -> None:
    """Takes it down, and looks that nothing of it is left on this machine."""
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
    # The shell that is to read these lines resolves their quotes and the old PATH.
    script = f"{exports.out}\nenv -0"
    printed = run(("bash", "-c", script), environ=environ, timeout_s=SHORT_S)
    own = dict(line.split("=", 1) for line in printed.split("\0") if "=" in line)
    if not Path(own["KUBECONFIG"]).exists():
        return None
    context = run(("kubectl", "config", "current-context"), environ=own, timeout_s=SHORT_S)
    found = Cluster(context=context.strip(), environ=FEWER_COLLECTIONS | own, is_ours=True)
    return None if _silence(found) else found


def _silence(cluster: Cluster) -> str:
    """Why the API server does not respond; empty when it does."""
    command = ("kubectl", "--context", cluster.context, "get", "--raw", "/readyz")
    ended = attempt(command, environ=cluster.environ, timeout_s=SHORT_S)
    return _line(ended.errors or "no reason given") if ended.code else ""


def _line(said: str) -> str:
    return " ".join(said.split())
