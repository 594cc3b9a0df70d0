"""Checks a target before the stack is made: by its Service if it has one, and by a pod that
connects to it.

A pod can be run only in a namespace that exists. If the stack's namespace does not exist yet, the
pod runs in the context's own namespace or `default`, provided that it admits the pod and has no
NetworkPolicies, which could distort the result.
"""

from typing import Any

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.preflight.admission import try_admission
from aiperf_svc.adapters.cluster.preflight.rights import denied, probe_rights
from aiperf_svc.adapters.cluster.preflight.target_probe import (
    IMAGE,
    NAME,
    probe_image,
    probe_target,
)
from aiperf_svc.adapters.cluster.preflight.target_service import (
    ServiceAddress,
    judge_service,
    service_address,
    target_pods,
)
from aiperf_svc.config.target import TargetPods
from aiperf_svc.config.urls import address_of
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.plan.network import is_bare_name
from aiperf_svc.plan.stack import StackPlan

Json = dict[str, Any]


class TargetChecks(msgspec.Struct, frozen=True):
    """The checks of the target and, if a pod was run, of the services' image."""

    target: Check | None
    """None if the stack has no target."""
    image: Check | None = None


async def check_target(cluster: Cluster, plan: StackPlan, *, namespace: str | None) -> TargetChecks:
    """Check the target, from a pod where that is possible. `namespace` None: it does not exist yet.
    Raises Unreachable."""
    config = plan.config.inference
    if config is None:
        return TargetChecks(None)
    if plan.jobs:
        return TargetChecks(Check(NAME, "ok", "each index of a Job has a server in its own pod"))
    host, port, _ = address_of(config.endpoint.first_hops[0])
    if plan.target is not None:
        return TargetChecks(Check(NAME, "ok", f"{host}:{port} is made with the stack"))
    if namespace is None and is_bare_name(host):
        return TargetChecks(_unqualified_host(plan, host))
    service = await _judged_service(cluster, plan, host, port)
    if service is not None and service.state == "failed":
        return TargetChecks(service)
    place = await pod_namespace(cluster, plan, namespace)
    if place is None:
        return TargetChecks(service or _not_tried(plan, host, port))
    tried = await probe_target(cluster, plan, namespace=place)
    if tried.name == IMAGE:
        words = "no pod of the stack's image starts, so none could try it"
        return TargetChecks(Check(NAME, "not checked", words), tried)
    if tried.state == "not checked":
        return TargetChecks(service or tried)
    name = plan.deadline.image.name
    image = Check(IMAGE, "ok", f"{name} has been run by a node of the cluster")
    if tried.state == "ok" and service is not None and service.state == "warning":
        return TargetChecks(service, image)
    if place != namespace:
        detail = f"{tried.detail}, in namespace {place}"
        tried = msgspec.structs.replace(tried, detail=detail)
    return TargetChecks(tried, image)


async def check_image(cluster: Cluster, plan: StackPlan, *, namespace: str | None) -> Check | None:
    """Check with a pod that does nothing whether a node can run the services' image. None if no pod
    may be made. `namespace` as for `check_target`. Raises Unreachable."""
    place = await pod_namespace(cluster, plan, namespace)
    return await probe_image(cluster, plan, namespace=place) if place else None


async def find_target_pods(cluster: Cluster, url: str) -> TargetPods | None:
    """Return the pods behind a URL whose host is a Service of the cluster. None if the host is no
    Service, may not be read, or does not select pods. Raises Unreachable."""
    host, port, _ = address_of(url)
    where = service_address(host)
    if where is None:
        return None
    try:
        service, slices = await _read_service(cluster, where)
    except Refused:
        return None
    return target_pods(where, port, service["spec"], slices) if service else None


async def _judged_service(cluster: Cluster, plan: StackPlan, host: str, port: int) -> Check | None:
    """Check the target's Service; None if the host is not a Service."""
    where = service_address(host)
    if where is None:
        return None
    try:
        service, slices = await _read_service(cluster, where)
    except Refused as error:
        # Most hosts of two labels are outside the cluster; such a namespace is refused as well.
        return Check(NAME, "not checked", str(error)) if where.is_full else None
    if service is None and not where.is_full:
        return None
    return judge_service(NAME, where, port, plan, service, slices)


async def _read_service(cluster: Cluster, where: ServiceAddress) -> tuple[Json | None, list[Json]]:
    """Read a Service, None if there is none, and its EndpointSlices. Raises Refused,
    Unreachable."""
    place = f"namespaces/{where.namespace}"
    try:
        service = await cluster.get(f"/api/v1/{place}/services/{where.name}")
    except Refused as error:
        if error.status != 404:
            raise
        return None, []
    selector = f"kubernetes.io/service-name={where.name}"
    path = f"/apis/discovery.k8s.io/v1/{place}/endpointslices"
    slices: list[Json] = (await cluster.get(path, labelSelector=selector))["items"]
    return service, slices


async def pod_namespace(cluster: Cluster, plan: StackPlan, namespace: str | None) -> str | None:
    """Return a namespace in which a pod may try something: the stack's own if it exists. None if
    there is none."""
    if namespace is not None:
        return None if await denied(cluster, probe_rights(namespace)) else namespace
    for name in dict.fromkeys((cluster.api.namespace, "default")):
        path = f"/apis/networking.k8s.io/v1/namespaces/{name}/networkpolicies"
        try:
            policies = (await cluster.get(path, limit="1"))["items"]
        except Refused:
            continue
        if not policies and (await try_admission(cluster, plan, namespace=name)).state == "ok":
            return str(name)
    return None


def _unqualified_host(plan: StackPlan, host: str) -> Check:
    words = f"{host} is a name within the stack's own namespace, which is made anew"
    remedy = f"write the Service as {host}.NAMESPACE.svc in endpoint.url"
    return Check(NAME, "failed" if plan.policies else "not checked", words, remedy)


def _not_tried(plan: StackPlan, host: str, port: int) -> Check:
    image = plan.deadline.image.name
    program = f"import socket; socket.create_connection(('{host}', {port}), 10)"
    return Check(
        NAME,
        "not checked",
        f"no pod could try {host}:{port}: that takes the rights to create, get and delete pods in "
        "the stack's namespace, or while there is none in the context's own or default",
        f"try it yourself: kubectl run try-target --rm -i --restart=Never --image={image} "
        f'--command -- python -c "{program}"',
    )
