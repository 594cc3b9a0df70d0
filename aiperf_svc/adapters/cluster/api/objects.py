"""The objects of a cluster and their types: discovery, and metadata of all types at once."""

import asyncio
import re
from collections.abc import Iterator, Mapping

import msgspec

from aiperf_svc.adapters.cluster.api.connection import JSON, METADATA_LIST, Cluster, Refused
from aiperf_svc.domain.json_objects import Json

AGGREGATED = ",".join(
    f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
    for version in ("v2", "v2beta1")
)
"""Accept header for all types in two responses. Servers before 1.27 ignore it."""
EVENTS = frozenset({("", "events"), ("events.k8s.io", "events")})
"""Events, which describe other objects. They expire after an hour by themselves."""
PAGE = 500
"""Maximum number of objects in one response, as in kubectl."""


class ResourceType(msgspec.Struct, frozen=True, order=True):
    group: str
    """API group; empty for the core group."""
    version: str
    resource: str
    """Plural name, as used in paths."""
    kind: str
    is_namespaced: bool

    @property
    def name(self) -> str:
        """Name as kubectl writes it: `deployments.apps`."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    @property
    def api_version(self) -> str:
        """Version as manifests write it: `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None) -> str:
        """Return the path of the list of its objects, in one namespace or in all."""
        base = f"/{'apis' if self.group else 'api'}/{self.api_version}"
        scope = f"/namespaces/{namespace}" if namespace and self.is_namespaced else ""
        return f"{base}{scope}/{self.resource}"


class Catalog(msgspec.Struct, frozen=True):
    """The types that hold objects, and the groups that could not be read."""

    types: tuple[ResourceType, ...]
    unknown: tuple[str, ...]
    """API groups whose server does not respond."""


async def read_catalog(cluster: Cluster) -> Catalog:
    """Read all types that can be listed and deleted, except Events.

    Objects that cannot be deleted are computed by the server from other objects (PodMetrics,
    ComponentStatus). Raises Refused, Unreachable.
    """
    responses = [await cluster.get(path, accept=f"{AGGREGATED},application/json")
               for path in ("/api", "/apis")]  # fmt: skip
    if all(response.get("kind") == "APIGroupDiscoveryList" for response in responses):
        found, unknown = _aggregated(responses)
    else:
        found, unknown = await _one_by_one(cluster, *responses)
    types: dict[tuple[str, str], ResourceType] = {}
    for each, verbs in found:
        # The server lists versions in order of preference, and all versions serve the same objects.
        key = (each.group, each.resource)
        if {"list", "delete"} <= set(verbs) and key not in EVENTS:
            types.setdefault(key, each)
    return Catalog(types=tuple(types.values()), unknown=tuple(unknown))


Found = list[tuple[ResourceType, list[str]]]


def _aggregated(responses: list[Json]) -> tuple[Found, list[str]]:
    found: Found = []
    unknown = []
    for group in (item for response in responses for item in response["items"]):
        name = group["metadata"].get("name", "")
        for version in group["versions"]:
            if version.get("freshness") == "Stale":
                unknown.append(f"{name}/{version['version']}")
                continue
            found += [
                (
                    ResourceType(
                        name,
                        version["version"],
                        each["resource"],
                        each["responseKind"]["kind"],
                        each["scope"] == "Namespaced",
                    ),
                    each["verbs"],
                )
                for each in version.get("resources", ())
                if each.get("responseKind")
            ]
    return found, unknown


async def _one_by_one(cluster: Cluster, core: Json, groups: Json) -> tuple[Found, list[str]]:
    paths = [("", version, f"/api/{version}") for version in core["versions"]]
    paths += [
        (group["name"], version["version"], f"/apis/{version['groupVersion']}")
        for group in groups["groups"]
        for version in group["versions"]
    ]
    responses = await asyncio.gather(
        *(cluster.get(path) for _, _, path in paths), return_exceptions=True
    )
    found: Found = []
    unknown = []
    for (group, version, _), response in zip(paths, responses, strict=True):
        if isinstance(response, Refused):
            unknown.append(f"{group}/{version}")
        elif isinstance(response, BaseException):
            raise response
        else:
            found += _listed(group, version, response)
    return found, unknown


def _listed(group: str, version: str, response: Json) -> Iterator[tuple[ResourceType, list[str]]]:
    for each in response["resources"]:
        if "/" not in each["name"]:
            kind, is_namespaced = each["kind"], each["namespaced"]
            yield ResourceType(group, version, each["name"], kind, is_namespaced), each["verbs"]


class ObjectRef(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    namespace: str
    """Namespace of the object; empty for a cluster-scoped one."""
    name: str
    uid: str
    path: str
    """Path in the API."""
    labels: dict[str, str] = {}
    owners: tuple[str, ...] = ()
    """UIDs of its owners."""
    created: str = ""
    """Creation time in RFC 3339, by the API server's clock."""
    annotations: dict[str, str] = {}
    is_going: bool = False
    """True when its deletion has been requested."""
    finalizers: tuple[str, ...] = ()
    """Finalizers that still block its deletion."""
    detail: str = ""
    """Further reasons why it still exists."""

    def __str__(self) -> str:
        prefix = f"{self.namespace}/" if self.namespace else ""
        notes = [
            "being deleted" if self.is_going else "",
            f"finalizers {', '.join(self.finalizers)}" if self.finalizers else "",
            self.detail,
        ]
        state = "; ".join(note for note in notes if note)
        return f"{self.kind} {prefix}{self.name}" + (f" ({state})" if state else "")


class Listed(msgspec.Struct, frozen=True):
    """Objects of many types, and the types that could not be listed."""

    objects: tuple[ObjectRef, ...]
    not_listed: tuple[str, ...]
    """Types that could not be listed, each with the reason. They may have objects."""
    failed: tuple[str, ...] = ()
    """Types of these that the user may list: the API server failed."""


async def list_objects(
    cluster: Cluster,
    catalog: Catalog,
    *,
    namespace: str | None = None,
    or_namespace: str | None = None,
    selector: str = "",
) -> Listed:
    """List the objects of every type, in one namespace or everywhere.

    A type that the user may not list everywhere is listed in `or_namespace`. Raises Unreachable.
    """
    types = [each for each in catalog.types if each.is_namespaced or namespace is None]
    try:
        async with asyncio.TaskGroup() as group:
            lists = [
                group.create_task(_list_type(cluster, each, namespace, or_namespace, selector))
                for each in types
            ]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    found = [each.result() for each in lists]
    # Some objects are served under two groups.
    objects = {each.uid: each for listed in found for each in listed.objects}
    refused = [each for listed in found for each in listed.not_listed]
    unknown = [f"{group} (its API server does not respond)" for group in catalog.unknown]
    failed = [each for listed in found for each in listed.failed]
    return Listed(tuple(objects.values()), (*refused, *unknown), (*failed, *unknown))


async def _list_type(
    cluster: Cluster,
    kind: ResourceType,
    namespace: str | None,
    or_namespace: str | None,
    selector: str,
) -> Listed:
    try:
        return Listed(await _pages(cluster, kind, namespace, selector), ())
    except Refused as error:
        why = error
    if why.status == 403 and namespace is None and or_namespace and kind.is_namespaced:
        try:
            inside = await _pages(cluster, kind, or_namespace, selector)
        except Refused as error:
            why = error
        else:
            return Listed(inside, (f"{kind.name} outside namespace {or_namespace} (not allowed)",))
    if why.status == 404:
        # The type was removed since discovery, and all its objects with it.
        return Listed((), ())
    if why.status == 403:
        return Listed((), (f"{kind.name} (not allowed)",))
    failed = (f"{kind.name} ({why})",)
    return Listed((), failed, failed)


async def _pages(
    cluster: Cluster, kind: ResourceType, namespace: str | None, selector: str
) -> tuple[ObjectRef, ...]:
    params = {"limit": str(PAGE)}
    if selector:
        params["labelSelector"] = selector
    found: list[ObjectRef] = []
    accept = f"{METADATA_LIST},{JSON}"
    while True:
        response = await cluster.get(kind.path(namespace), accept=accept, **params)
        found += [object_ref(kind, each["metadata"]) for each in response.get("items") or ()]
        params["continue"] = response.get("metadata", {}).get("continue", "")
        if not params["continue"]:
            return tuple(found)


async def find_object(cluster: Cluster, path: str, **params: str) -> Json | None:
    """Return an object; None if it does not exist. Raises Refused, Unreachable."""
    try:
        return await cluster.get(path, **params)
    except Refused as error:
        if error.status == 404:
            return None
        raise


async def try_list(cluster: Cluster, path: str, **params: str) -> list[Json] | None:
    """Return the complete objects of a list; None if the API server refuses. Raises Unreachable."""
    try:
        items: list[Json] = (await cluster.get(path, **params))["items"]
    except Refused:
        return None
    return items


async def list_allowed(cluster: Cluster, path: str, **params: str) -> list[Json]:
    """Return the complete objects of a list; empty if the user may not list them. Raises
    Unreachable, and Refused if the API server fails."""
    try:
        items: list[Json] = (await cluster.get(path, **params))["items"]
    except Refused as error:
        if error.is_temporary:
            raise
        return []
    return items


def label_selector(labels: Mapping[str, str]) -> str:
    """Format labels as an API selector: `a=b,c=d`."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def selector_text(selector: Json) -> str:
    """Format the selector of a workload as an API selector: `a=b,c in (d,e),!f`."""
    terms = [label_selector(selector.get("matchLabels") or {})]
    for each in selector.get("matchExpressions") or ():
        key, values = each["key"], ",".join(each.get("values") or ())
        terms.append(
            {
                "In": f"{key} in ({values})",
                "NotIn": f"{key} notin ({values})",
                "Exists": key,
                "DoesNotExist": f"!{key}",
            }[each["operator"]]
        )
    return ",".join(filter(None, terms))


async def list_pods(
    cluster: Cluster, namespace: str, labels: Mapping[str, str]
) -> list[Json] | None:
    """Return the pods with these labels; None if the API server refuses. Raises Unreachable."""
    params = {"labelSelector": label_selector(labels)} if labels else {}
    return await try_list(cluster, f"/api/v1/namespaces/{namespace}/pods", **params)


def object_ref(kind: ResourceType, metadata: Json) -> ObjectRef:
    namespace = metadata.get("namespace", "")
    return ObjectRef(
        kind=kind.kind,
        namespace=namespace,
        name=metadata["name"],
        # Objects of some extension servers have no UID.
        uid=metadata.get("uid") or f"{kind.name}/{namespace}/{metadata['name']}",
        path=f"{kind.path(namespace)}/{metadata['name']}",
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        owners=tuple(each["uid"] for each in metadata.get("ownerReferences") or ()),
        created=metadata.get("creationTimestamp") or "",
        is_going="deletionTimestamp" in metadata,
        finalizers=tuple(metadata.get("finalizers") or ()),
    )


_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)(n|u|m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?")
_FACTORS = {
    None: 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "E": 1e18, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
    "Ei": 2.0**60,
}  # fmt: skip


def parse_quantity(text: str | float) -> float:
    """Parse a quantity into base units: cores, bytes, pieces. Raises ValueError."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        raise ValueError(f"{text!r} is not a Kubernetes quantity")
    return float(found[1]) * _FACTORS[found[2]]


def format_quantity(value: float, resource: str) -> str:
    """Format a quantity as users write it: `250m` cores, `1.5Gi` bytes, `3` pieces."""
    if "memory" in resource or "storage" in resource:
        for unit in ("Gi", "Mi", "Ki"):
            if value >= _FACTORS[unit]:
                return f"{value / _FACTORS[unit]:.4g}{unit}"
    if resource.endswith("cpu") and 0 < value < 1:
        return f"{round(value * 1000)}m"
    return f"{value:g}"
