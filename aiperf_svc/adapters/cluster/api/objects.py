"""Objects by name and UID, and lists of them: metadata only, all types at once."""

import asyncio
from typing import Any

import msgspec

from aiperf_svc.adapters.cluster.api.connection import JSON, METADATA_LIST, Cluster, Refused
from aiperf_svc.adapters.cluster.api.resource_types import Catalog, ResourceType

PAGE = 500
"""Most objects in one response, as kubectl requests them."""


class ObjectRef(msgspec.Struct, frozen=True, kw_only=True):
    """Reference to one object of the cluster."""

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
    """Further text on why it still exists."""

    def __str__(self) -> str:
        place = f"{self.namespace}/" if self.namespace else ""
        notes = [
            "being deleted" if self.is_going else "",
            f"finalizers {', '.join(self.finalizers)}" if self.finalizers else "",
            self.detail,
        ]
        said = "; ".join(note for note in notes if note)
        return f"{self.kind} {place}{self.name}" + (f" ({said})" if said else "")


class Listed(msgspec.Struct, frozen=True):
    """Objects of many types, and the types that could not be listed."""

    objects: tuple[ObjectRef, ...]
    not_listed: tuple[str, ...]
    """Types that could not be listed, each with the reason. Nothing is known about their
    objects."""


async def list_objects(
    cluster: Cluster,
    catalog: Catalog,
    *,
    namespace: str | None = None,
    or_namespace: str | None = None,
    selector: str = "",
) -> Listed:
    """List the objects of every type, in one namespace or everywhere.

    A type that may not be listed everywhere is listed in `or_namespace`. Raises Unreachable.
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
    return Listed(tuple(objects.values()), (*refused, *unknown))


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
        # The type itself has gone since it was listed, and all its objects with it.
        return Listed((), ())
    words = "not allowed" if why.status == 403 else str(why)
    return Listed((), (f"{kind.name} ({words})",))


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


def object_ref(kind: ResourceType, metadata: dict[str, Any]) -> ObjectRef:
    """Make the reference of an object from its metadata."""
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
