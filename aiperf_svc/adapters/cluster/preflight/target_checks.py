"""Checks the target before the stack is created: by its Service, if it has one, and with a pod that
connects to it.

The pod has the stack's image, the workers' placement and the label that the stack's NetworkPolicies
allow. It opens a connection, with a TLS session for https, and sends no request. Without a
namespace in which a pod may run, only the Service is judged. NetworkPolicies match the pods behind
a Service and their port, never the Service's own address, so the pods and port are read for the
config to name them.
"""

import ipaddress
from collections.abc import Sequence

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.api.objects import find_object, list_pods, try_list
from aiperf_svc.adapters.cluster.preflight.admission import PodNamespace
from aiperf_svc.adapters.cluster.preflight.images import IMAGE, image_works
from aiperf_svc.adapters.cluster.preflight.probe_pods import (
    WaitedPod,
    end_message,
    idle_pod,
    pod_name,
    run_pod,
)
from aiperf_svc.config.target import TargetPods
from aiperf_svc.config.urls import address_of
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.network import is_bare_name
from aiperf_svc.plan.stack import StackPlan

TARGET, BUCKET = "target", "bucket"
CONNECT_S = 10
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
"""Program of the pod; uses only the standard library. If it fails, the end of its standard error is
the pod's termination message."""


class TargetChecks(msgspec.Struct, frozen=True):
    """The checks of the target and, if a pod ran, of the services' image."""

    target: Check | None
    """None if the stack has no target."""
    image: Check | None = None


class ServiceAddress(msgspec.Struct, frozen=True):
    """Address of a Service, parsed from a host name."""

    namespace: str
    name: str
    is_full: bool = True
    """True for `name.namespace.svc…`. A host with two labels may or may not be a Service."""
    is_ip: bool = False
    """True if the host is the Service's cluster IP."""


def service_address(host: str) -> ServiceAddress | None:
    """Parse `name.namespace.svc…` or `name.namespace`; None for any other host. A bare name would
    be resolved in the stack's own namespace."""
    labels = host.split(".")
    is_full = labels[2:3] == ["svc"]
    if not is_full and len(labels) != 2:
        return None
    return ServiceAddress(namespace=labels[1], name=labels[0], is_full=is_full)


async def check_target(cluster: Cluster, plan: StackPlan, where: PodNamespace) -> TargetChecks:
    """Check the target, from a pod if possible. Raises Unreachable."""
    config = plan.config.inference
    if config is None:
        return TargetChecks(None)
    if plan.jobs:
        return TargetChecks(Check(TARGET, "ok", "each index of a Job has a server in its own pod"))
    host, port, _ = address_of(config.endpoint.first_hops[0])
    if plan.target is not None or plan.release is not None:
        return TargetChecks(Check(TARGET, "ok", f"{host}:{port} is created with the stack"))
    if where.existing is None and is_bare_name(host):
        return TargetChecks(_unqualified_host(plan, host))
    service = await _judged_service(cluster, plan, host, port)
    if service is not None and service.state == "failed":
        return TargetChecks(service)
    pod_namespace = await where.find()
    if pod_namespace is None:
        return TargetChecks(service or _unchecked_target(plan, host, port))
    waited = await run_pod(cluster, pod_namespace, probe_pod(plan, pod_name(plan)))
    if waited.pod is None:
        return _without_pod(waited, service)
    tried = judge_probe(plan, waited.pod)
    if tried.state == "ok" and service is not None and service.state == "warning":
        tried = service
    elif pod_namespace != where.existing:
        tried = msgspec.structs.replace(
            tried, detail=f"{tried.detail}, in namespace {pod_namespace}"
        )
    return TargetChecks(tried, image_works(plan))


def _without_pod(waited: WaitedPod, service: Check | None) -> TargetChecks:
    if not waited.is_image_missing:
        return TargetChecks(service or waited.problem(TARGET))
    detail = "no pod of the stack's image starts, so none could connect"
    return TargetChecks(Check(TARGET, "not checked", detail), waited.problem(IMAGE))


async def check_bucket(cluster: Cluster, plan: StackPlan, where: PodNamespace) -> Check | None:
    """Check from a pod whether the results' bucket can be reached; None if there is none. Raises
    Unreachable."""
    s3 = plan.config.artifacts.s3
    if s3 is None:
        return None
    url = s3.endpoint_url or f"https://s3.{s3.region}.amazonaws.com"
    host, port, _ = address_of(url)
    is_unknown = where.existing is None and is_bare_name(host)
    pod_namespace = None if is_unknown else await where.find()
    if pod_namespace is None:
        detail = f"no pod could connect to {host}:{port}, which takes the results"
        return Check(BUCKET, "not checked", detail)
    pod = _connecting_pod(plan, pod_name(plan), url, verify=True)
    waited = await run_pod(cluster, pod_namespace, pod)
    if waited.pod is None:
        return waited.problem(BUCKET)
    if waited.pod["status"]["phase"] == "Succeeded":
        return Check(BUCKET, "ok", f"a pod can reach {host}:{port}, which takes the results")
    return Check(
        BUCKET,
        "failed",
        f"a pod cannot reach {host}:{port}, which takes the results: {end_message(waited.pod)}",
        "check artifacts.s3.endpoint_url, and the NetworkPolicies and firewalls between them",
    )


def probe_pod(plan: StackPlan, name: str) -> Json:
    """Return the manifest of a pod that tries the target."""
    # The workers verify a custom CA or server name; with these, the probe skips verification.
    tls = plan.inference.endpoint.tls
    verify = tls.verify and not tls.ca_file and not tls.ca and not tls.server_name
    return _connecting_pod(plan, name, plan.inference.endpoint.first_hops[0], verify=verify)


def _connecting_pod(plan: StackPlan, name: str, url: str, *, verify: bool) -> Json:
    host, port, is_tls = address_of(url)
    flags = ("yes" if is_tls else "", "yes" if verify else "")
    return idle_pod(plan, name, PROGRAM, host, str(port), *flags, str(CONNECT_S))


def judge_probe(plan: StackPlan, pod: Json) -> Check:
    host, port, _ = address_of(plan.inference.endpoint.first_hops[0])
    if pod["status"]["phase"] == "Succeeded":
        return Check(TARGET, "ok", f"a pod can reach {host}:{port}")
    return Check(
        TARGET,
        "failed",
        f"a pod cannot reach {host}:{port}: {end_message(pod)}",
        "check endpoint.url, that the server is up, and the NetworkPolicies and firewalls between "
        "them",
    )


async def _find_service(cluster: Cluster, host: str) -> ServiceAddress | None:
    """Return the Service that a host names, or whose cluster IP it is. None for other hosts, and if
    the user may not list Services or the API server is older than 1.31. Raises Unreachable."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return service_address(host)
    selector = f"spec.clusterIP={address}"
    for each in await try_list(cluster, "/api/v1/services", fieldSelector=selector) or ():
        found = each["metadata"]
        return ServiceAddress(namespace=found["namespace"], name=found["name"], is_ip=True)
    return None


async def find_target_pods(cluster: Cluster, url: str) -> TargetPods | None:
    """Return the pods behind a URL whose host is a Service of the cluster. None if the host is not
    a Service, may not be read, or does not select pods. Raises Unreachable."""
    host, port, _ = address_of(url)
    where = await _find_service(cluster, host)
    if where is None:
        return None
    try:
        service, slices = await _read_service(cluster, where)
    except Refused:
        return None
    found = target_pods(where, port, service["spec"], slices) if service else None
    if found is None:
        return None
    pods = await list_pods(cluster, found.namespace, found.labels) or ()
    is_on_host = any(pod["spec"].get("hostNetwork") for pod in pods)
    return found.model_copy(update={"host_network": True}) if is_on_host else found


async def _judged_service(cluster: Cluster, plan: StackPlan, host: str, port: int) -> Check | None:
    """Check the target's Service; None if the host is not a Service."""
    where = await _find_service(cluster, host)
    if where is None:
        return None
    try:
        service, slices = await _read_service(cluster, where)
    except Refused as error:
        # Most hosts with two labels are outside the cluster. A request for a namespace that does
        # not exist is refused too.
        return Check(TARGET, "not checked", str(error)) if where.is_full else None
    if service is None and not where.is_full:
        return None
    return judge_service(where, port, plan, service, slices)


async def _read_service(cluster: Cluster, where: ServiceAddress) -> tuple[Json | None, list[Json]]:
    """Read a Service, or None if it does not exist, and its EndpointSlices. Raises Refused,
    Unreachable."""
    inside = f"namespaces/{where.namespace}"
    service = await find_object(cluster, f"/api/v1/{inside}/services/{where.name}")
    if service is None:
        return None, []
    selector = f"kubernetes.io/service-name={where.name}"
    path = f"/apis/discovery.k8s.io/v1/{inside}/endpointslices"
    slices: list[Json] = (await cluster.get(path, labelSelector=selector))["items"]
    return service, slices


def _unqualified_host(plan: StackPlan, host: str) -> Check:
    detail = f"{host} is a name within the stack's own namespace, which does not exist yet"
    remedy = f"write the Service as {host}.NAMESPACE.svc in endpoint.url"
    return Check(TARGET, "failed" if plan.policies else "not checked", detail, remedy)


def _unchecked_target(plan: StackPlan, host: str, port: int) -> Check:
    image = plan.deadline.image.name
    program = f"import socket; socket.create_connection(('{host}', {port}), 10)"
    return Check(
        TARGET,
        "not checked",
        f"no pod could connect to {host}:{port}: this needs the rights to create, get and delete "
        "pods in the stack's namespace or, if it does not exist yet, in the context's namespace or "
        "default",
        f"try it yourself: kubectl run try-target --rm -i --restart=Never --image={image} "
        f'--command -- python -c "{program}"',
    )


def judge_service(
    address: ServiceAddress,
    port: int,
    plan: StackPlan,
    service: Json | None,
    slices: Sequence[Json],
) -> Check:
    """Check whether the Service exists, offers the port, and has ready pods."""
    where = f"Service {address.name} in namespace {address.namespace}"
    if service is None:
        remedy = "check endpoint.url, and that the server is deployed"
        return Check(TARGET, "failed", f"there is no {where}", remedy)
    spec = service["spec"]
    offered = {each["port"] for each in spec.get("ports") or ()}
    if port not in offered and spec.get("clusterIP") != "None":
        ports = ", ".join(map(str, sorted(offered))) or "none"
        detail = f"{where} has no port {port}; it has {ports}"
        return Check(TARGET, "failed", detail, "correct the port in endpoint.url")
    ready = sum(map(_is_ready, (e for each in slices for e in each.get("endpoints") or ())))
    if not ready:
        detail = f"no pod of {where} is ready"
        return Check(TARGET, "failed", detail, "start the server, and wait until it is ready")
    target = plan.config.deployment.target
    if plan.policies and target.pods is None and not target.egress_cidrs:
        narrower = _pods_setting(address, port, spec, slices)
        if address.is_ip:
            detail = (
                f"{where} has this address, which most networks do not match in NetworkPolicies"
            )
            name = f"{address.name}.{address.namespace}.svc"
            return Check(TARGET, "warning", detail, f"name its pods: {narrower}, or write {name}")
        if not address.is_full and pod_ports(port, spec, slices) != {port}:
            return Check(
                TARGET,
                "failed",
                f"{where} forwards to another port of its pods than {port}, the only port that the "
                "stack's NetworkPolicies open for a host of two labels",
                f"name its pods: {narrower}, or write the host as "
                f"{address.name}.{address.namespace}.svc",
            )
        reach = "every pod of that namespace" if address.is_full else f"port {port} of every pod"
        detail = f"{ready} pods of {where} are ready; the NetworkPolicies let workers reach {reach}"
        return Check(TARGET, "warning", detail, f"restrict them: {narrower}")
    return Check(TARGET, "ok", f"{ready} pods of {where} are ready; no pod has tried to connect")


def _is_ready(endpoint: Json) -> bool:
    ready = (endpoint.get("conditions") or {}).get("ready")
    return ready is None or bool(ready)


def target_pods(
    address: ServiceAddress, port: int, spec: Json, slices: Sequence[Json]
) -> TargetPods | None:
    """Return the config that selects the pods of this Service. None if it selects none by label, or
    if not all pods have the same port."""
    numbers, selector = pod_ports(port, spec, slices), spec.get("selector")
    if not selector or len(numbers) != 1:
        return None
    return TargetPods(namespace=address.namespace, labels=dict(selector), port=numbers.pop())


def pod_ports(port: int, spec: Json, slices: Sequence[Json]) -> set[int]:
    """Return the pod ports to which the Service's port forwards."""
    return {
        int(each["port"])
        for listed in slices
        for each in listed.get("ports") or ()
        if each.get("port") and _port_name(spec, port) in (None, each.get("name") or "")
    }


def _pods_setting(address: ServiceAddress, port: int, spec: Json, slices: Sequence[Json]) -> str:
    """Return `deployment.target.pods` for this Service, as one line of YAML."""
    numbers = pod_ports(port, spec, slices)
    parts = [f"namespace: {address.namespace}"]
    if selector := spec.get("selector"):
        labels = ", ".join(f'"{key}": "{value}"' for key, value in selector.items())
        parts.append(f"labels: {{{labels}}}")
    if len(numbers) == 1:
        parts.append(f"port: {numbers.pop()}")
    return f"deployment.target.pods: {{{', '.join(parts)}}}"


def _port_name(spec: Json, port: int) -> str | None:
    return next(
        (each.get("name") or "" for each in spec.get("ports") or () if each["port"] == port), None
    )
