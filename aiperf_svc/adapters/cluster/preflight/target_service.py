"""Checks a target that is a Service of the cluster by what the cluster reports, for when no pod can
try it yet. Pure.

NetworkPolicies never see a Service's own address, only its pods and their port. These are read here
so that the config can name them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from aiperf_svc.config.target import TargetPods
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.plan.stack import StackPlan

Object = Mapping[str, Any]


class ServiceAddress(msgspec.Struct, frozen=True):
    """Address of a Service, parsed from a host name."""

    namespace: str
    name: str
    is_full: bool = True
    """True for `name.namespace.svc…`. Whether a host of two labels is a Service, only the cluster
    knows."""


def service_address(host: str) -> ServiceAddress | None:
    """Parse `name.namespace.svc…` or `name.namespace`; None for any other host. A bare name would
    belong to the stack's own namespace."""
    labels = host.split(".")
    is_full = labels[2:3] == ["svc"]
    if not is_full and len(labels) != 2:
        return None
    return ServiceAddress(namespace=labels[1], name=labels[0], is_full=is_full)


def judge_service(
    name: str,
    address: ServiceAddress,
    port: int,
    plan: StackPlan,
    service: Object | None,
    slices: Sequence[Object],
) -> Check:
    """Check whether the Service exists, offers the port, and has ready pods."""
    said = f"Service {address.name} in namespace {address.namespace}"
    if service is None:
        return Check(
            name, "failed", f"there is no {said}", "check endpoint.url, and that the server is up"
        )
    spec = service["spec"]
    offered = {each["port"] for each in spec.get("ports") or ()}
    if port not in offered and spec.get("clusterIP") != "None":
        ports = ", ".join(map(str, sorted(offered))) or "none"
        words = f"{said} has no port {port}; it has {ports}"
        return Check(name, "failed", words, "correct the port in endpoint.url")
    ready = sum(map(_is_ready, (e for each in slices for e in each.get("endpoints") or ())))
    if not ready:
        words = f"no pod behind {said} is ready"
        return Check(name, "failed", words, "start the server, and wait until it is ready")
    target = plan.config.deployment.target
    if plan.policies and target.pods is None and not target.egress_cidrs:
        narrower = _narrower(address, port, spec, slices)
        if not address.is_full and pod_ports(port, spec, slices) != {port}:
            return Check(
                name,
                "failed",
                f"{said} leads to another port of its pods than {port}, the only one that the "
                "stack's NetworkPolicies open for a host of two labels",
                f"name its pods: {narrower}, or write the host as "
                f"{address.name}.{address.namespace}.svc",
            )
        reach = "every pod of that namespace" if address.is_full else f"port {port} of every pod"
        words = f"{ready} pods behind {said} are ready; workers may reach {reach}"
        return Check(name, "warning", words, f"narrow it: {narrower}")
    return Check(name, "ok", f"{ready} pods behind {said} are ready; no pod has tried them yet")


def _is_ready(endpoint: Object) -> bool:
    ready = (endpoint.get("conditions") or {}).get("ready")
    return ready is None or bool(ready)


def target_pods(
    address: ServiceAddress, port: int, spec: Object, slices: Sequence[Object]
) -> TargetPods | None:
    """Return what the config could say about the pods behind this Service. None if the Service
    selects none by label, or if not all have the same port."""
    numbers, selector = pod_ports(port, spec, slices), spec.get("selector")
    if not selector or len(numbers) != 1:
        return None
    return TargetPods(namespace=address.namespace, labels=dict(selector), port=numbers.pop())


def pod_ports(port: int, spec: Object, slices: Sequence[Object]) -> set[int]:
    """Return the ports of the pods to which the Service's port leads."""
    return {
        int(each["port"])
        for listed in slices
        for each in listed.get("ports") or ()
        if each.get("port") and _port_name(spec, port) in (None, each.get("name") or "")
    }


def _narrower(address: ServiceAddress, port: int, spec: Object, slices: Sequence[Object]) -> str:
    """Return `deployment.target.pods` for this Service, as one line of YAML."""
    numbers = pod_ports(port, spec, slices)
    parts = [f"namespace: {address.namespace}"]
    if selector := spec.get("selector"):
        labels = ", ".join(f'"{key}": "{value}"' for key, value in selector.items())
        parts.append(f"labels: {{{labels}}}")
    if len(numbers) == 1:
        parts.append(f"port: {numbers.pop()}")
    return f"deployment.target.pods: {{{', '.join(parts)}}}"


def _port_name(spec: Object, port: int) -> str | None:
    return next(
        (each.get("name") or "" for each in spec.get("ports") or () if each["port"] == port), None
    )
