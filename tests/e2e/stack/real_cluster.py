"""The cluster under the end-to-end tests: which one, what is in it, what a stack left in it."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiperf_svc.plan.identity import STACK_LABEL

PROJECT = Path(__file__).parents[3]
TOOLS = PROJECT / "tests" / "cluster"
INTERRUPTED_S = 20.0
"""Longest time for a command that was interrupted."""
GONE_S = 60.0
"""Longest time in which the cluster's own garbage collection must have followed a deletion."""
EVENTS = ("events", "events.events.k8s.io")
"""What the cluster says about objects; kept for an hour whatever becomes of them."""


class NoClusterError(Exception):
    """One line: why there is no cluster to test on, and how to have one."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Reached by kubectl; `environ` has what kubectl and Pulumi need."""

    context: str
    environ: Mapping[str, str]
    is_ours: bool
    """Made by tests/cluster, so that images can be loaded into it."""

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 60.0) -> str:
        """What kubectl prints."""
        command = ("kubectl", "--context", self.context, *arguments)
        return run(command, environ=self.environ, stdin=stdin, timeout_s=timeout_s)

    def objects(self, *arguments: str) -> list[dict[str, Any]]:
        """Objects as the server knows them: `objects("pods", "-n", "default")`."""
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", *arguments, "-o", "json"))[
            "items"
        ]
        return found

    def types(self, *, namespaced: bool) -> list[str]:
        """Every type that can be listed."""
        flag = f"--namespaced={str(namespaced).lower()}"
        found = self.kubectl("api-resources", "--verbs=list", flag, "-o", "name").split()
        return [name for name in found if name not in EVENTS]

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
            "delete", "configmaps,deployments,services,secrets,serviceaccounts,networkpolicies,"
            "poddisruptionbudgets,roles,rolebindings,ingresses", "-A", *label, "--wait=false",
        )  # fmt: skip


def said(found: Mapping[str, Any]) -> str:
    """An object in words."""
    metadata = found["metadata"]
    return f"{metadata.get('namespace', '-')}/{found['kind']}/{metadata['name']}"


def find_cluster(environ: Mapping[str, str] = os.environ) -> Cluster:
    """The cluster that E2E_CONTEXT names, else the one of tests/cluster if it is up.

    A KUBECONFIG alone says where contexts are found and chooses none: the tests never touch a
    cluster that nobody named. Raises NoClusterError.
    """
    context = environ.get("E2E_CONTEXT")
    if context:
        missing = [name for name in ("kubectl", "pulumi") if not shutil.which(name)]
        if missing:
            raise NoClusterError(f"E2E_CONTEXT is set, and {' and '.join(missing)} not on PATH")
        found = Cluster(context=context, environ=dict(environ), is_ours=False)
    else:
        found = _own_cluster(environ)
    try:
        found.kubectl("get", "--raw", "/readyz", timeout_s=20.0)
    except AssertionError as error:
        reason = " ".join(str(error).split())
        raise NoClusterError(f"cluster {found.context} does not answer: {reason}") from error
    return found


def _own_cluster(environ: Mapping[str, str]) -> Cluster:
    remedy = "start one with tests/cluster/up, or name one with E2E_CONTEXT"
    try:
        exports = run((str(TOOLS / "env"),), environ=environ, timeout_s=20.0)
    except AssertionError as error:
        raise NoClusterError(f"no cluster to test on: {remedy}") from error
    # The shell that is to read these lines resolves their quotes and the old PATH.
    printed = run(("bash", "-c", f"{exports}\nenv -0"), environ=environ, timeout_s=20.0)
    own = dict(line.split("=", 1) for line in printed.split("\0") if "=" in line)
    kubeconfig = Path(own["KUBECONFIG"])
    if not kubeconfig.exists():
        raise NoClusterError(f"no cluster to test on: {remedy}")
    context = run(("kubectl", "config", "current-context"), environ=own, timeout_s=20.0).strip()
    return Cluster(context=context, environ=own, is_ours=True)


def run(
    command: tuple[str, ...],
    *,
    environ: Mapping[str, str],
    timeout_s: float,
    stdin: str | None = None,
    folder: Path = PROJECT,
) -> str:
    """Standard output of a command. Fails with all that it said when it fails or takes too long;
    its children end with it."""
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        env=dict(environ),
        cwd=folder,
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    words = f"`{' '.join(command)}`"
    try:
        out, errors = process.communicate(stdin, timeout=timeout_s)
    except BaseException:
        out, errors = _interrupt(process)
        print(f"{words} interrupted after {time.monotonic() - started:.0f} s\n{out}\n{errors}")
        raise
    assert process.returncode == 0, f"{words}: {process.returncode}\n{out}\n{errors}"
    return out


def _interrupt(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End a command as a user would, so that it can put its state in order; then whatever of its
    session is left. What it said."""
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(INTERRUPTED_S)
    # Plugins have process groups of their own, and one session with the command.
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            session = int(entry.read_text().rpartition(")")[2].split()[3])
            if session == process.pid:
                os.kill(int(entry.parent.name), signal.SIGKILL)
    return process.communicate()
