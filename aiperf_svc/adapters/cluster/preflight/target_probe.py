"""Checks from a pod whether the target can be reached: a short-lived pod of the stack's own image,
with the workers' placement and the label that the stack's NetworkPolicies let through.

It opens a connection, and a TLS session for https; it sends no request. If the target is made with
the stack, the pod does nothing: that it runs shows that the image can be pulled.
"""

import asyncio
import secrets
from typing import Any

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, Unreachable
from aiperf_svc.adapters.cluster.preflight.pod_wait import ended_words, has_ended, wait_for_pod
from aiperf_svc.adapters.cluster.preflight.restricted_pods import (
    restricted_container,
    restricted_pod,
)
from aiperf_svc.config.urls import address_of
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.plan.network import PREFLIGHT
from aiperf_svc.plan.stack import StackPlan

NAME, IMAGE = "target", "image"
WRONG_IMAGE = "name an image of this program in deployment.image.name"
CONNECT_S = 10
DEADLINE_S = 90
"""Deadline of the pod itself, so that it ends even if the runner is gone."""
POLL_S = 0.5
PROGRAM = """
import socket, ssl, sys, time
host, port, tls, verify, wait = sys.argv[1], int(sys.argv[2]), *sys.argv[3:5], float(sys.argv[5])
began = time.monotonic()
try:
    with socket.create_connection((host, port), wait) as way:
        peer = way.getpeername()[0]
        if tls:
            context = ssl.create_default_context()
            if not verify:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with context.wrap_socket(way, server_hostname=host):
                pass
except ssl.SSLCertVerificationError as error:
    sys.exit(f"its certificate is not trusted: {error.verify_message}")
except OSError as error:
    sys.exit(str(error) or type(error).__name__)
print(f"{peer} responded in {(time.monotonic() - began) * 1000:.1f} ms")
"""
"""Program of the pod, for the standard library only. The end of its standard error is the pod's
message if it fails."""


def probe_pod(plan: StackPlan, name: str) -> dict[str, Any]:
    """Return the manifest of a pod that tries the target."""
    host, port, is_tls = address_of(plan.inference.endpoint.first_hops[0])
    # A custom CA or server name is for the workers to check; the probe then skips verification.
    tls = plan.inference.endpoint.tls
    verify = tls.verify and not tls.ca_file and not tls.ca and not tls.server_name
    flags = ["yes" if is_tls else "", "yes" if verify else ""]
    pod = idle_pod(plan, name)
    arguments = [host, str(port), *flags, str(CONNECT_S)]
    pod["spec"]["containers"][0]["command"] = ["python", "-P", "-c", PROGRAM, *arguments]
    return pod


def idle_pod(plan: StackPlan, name: str) -> dict[str, Any]:
    """Return the manifest of a pod that ends as soon as it runs: `restricted`, with the resources
    of the deadline's pod, the smallest of the stack. A LimitRange and quota that admit that pod
    admit this one."""
    worker = plan.load_pod
    container = restricted_container(
        PREFLIGHT, ("python", "-P", "-c", ""), image=worker.image, requests=plan.deadline.requests
    )
    return restricted_pod(
        name,
        [container],
        labels=plan.identity.labels(PREFLIGHT),
        annotations=plan.identity.annotations,
        image=worker.image,
        placement=worker.placement,
        deadline_s=DEADLINE_S,
    )


async def probe_target(cluster: Cluster, plan: StackPlan, *, namespace: str) -> Check:
    """Run the pod in an existing namespace, and remove it. Raises Unreachable."""
    check, pod = await run_pod(cluster, namespace, probe_pod(plan, pod_name(plan)))
    return judge_probe(plan, pod) if pod else check


async def probe_image(cluster: Cluster, plan: StackPlan, *, namespace: str) -> Check:
    """Check whether a pod of the image runs in an existing namespace. Raises Unreachable."""
    check, pod = await run_pod(cluster, namespace, idle_pod(plan, pod_name(plan)))
    if pod is None:
        return msgspec.structs.replace(check, name=IMAGE)
    return judge_idle(plan, pod)


async def run_pod(
    cluster: Cluster, namespace: str, pod: dict[str, Any]
) -> tuple[Check, dict[str, Any] | None]:
    """Run a pod until it has ended and return it, else a check that says why not."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    its_path = f"{path}/{pod['metadata']['name']}"
    may_exist = True
    try:
        try:
            await cluster.post(path, pod)
        except Refused as error:
            may_exist = False
            words = f"the pod that would try it cannot be made: {error}"
            return Check(NAME, "not checked", words), None
        return await _wait(cluster, its_path)
    finally:
        # Remove the pod also if the caller is cancelled or the response was lost.
        if may_exist:
            await asyncio.shield(_remove(cluster, its_path))


async def _wait(cluster: Cluster, path: str) -> tuple[Check, dict[str, Any] | None]:
    found = await wait_for_pod(cluster, path, until=has_ended, longest_s=DEADLINE_S)
    if found.pod is not None:
        return Check(NAME, "ok", "it has ended"), found.pod
    if found.is_image_missing:
        return Check(IMAGE, "failed", found.failure), None
    if found.failure:
        words = f"the pod that would try it does not start: {found.failure}"
        return Check(NAME, "not checked", words), None
    words = f"the pod that would try it did not end in {DEADLINE_S} s"
    return Check(NAME, "not checked", words), None


def pod_name(plan: StackPlan) -> str:
    """Return a name for a pod that checks something."""
    return f"{plan.identity.name(PREFLIGHT)}-{secrets.token_hex(3)}"


async def _remove(cluster: Cluster, path: str) -> None:
    try:
        await cluster.delete(path, grace_s=0)
    except Unreachable:
        await asyncio.sleep(POLL_S)
        await cluster.delete(path, grace_s=0)


def judge_idle(plan: StackPlan, pod: dict[str, Any]) -> Check:
    """Check what a pod that does nothing has shown of its image."""
    name = plan.deadline.image.name
    if pod["status"]["phase"] == "Succeeded":
        return Check(IMAGE, "ok", f"{name} has been run by a node of the cluster")
    why = ended_words(pod)
    return Check(IMAGE, "failed", f"{name}: Python does not start in it: {why}", WRONG_IMAGE)


def judge_probe(plan: StackPlan, pod: dict[str, Any]) -> Check:
    """Check what a probe pod that has ended says."""
    host, port, _ = address_of(plan.inference.endpoint.first_hops[0])
    if pod["status"]["phase"] == "Succeeded":
        return Check(NAME, "ok", f"{host}:{port} can be reached from a pod")
    return Check(
        NAME,
        "failed",
        f"{host}:{port} cannot be reached from a pod: {ended_words(pod)}",
        "check endpoint.url, that the server is up, and which NetworkPolicies and firewalls are "
        "between",
    )
