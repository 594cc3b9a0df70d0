"""The types of objects that a cluster's API server lists."""

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused

AGGREGATED = ",".join(
    f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
    for version in ("v2", "v2beta1")
)
"""Accept header that brings all types in two responses. Servers before 1.27 ignore it."""
EVENTS = frozenset({("", "events"), ("events.k8s.io", "events")})
"""Events, which describe other objects. They expire after an hour by themselves."""


class ResourceType(msgspec.Struct, frozen=True, order=True):
    """A type of objects."""

    group: str
    """API group; empty: the core group."""
    version: str
    resource: str
    """Plural name, as in paths."""
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
        """Return the path of the list of its objects, in a namespace or everywhere."""
        base = f"/{'apis' if self.group else 'api'}/{self.api_version}"
        place = f"/namespaces/{namespace}" if namespace and self.is_namespaced else ""
        return f"{base}{place}/{self.resource}"


class Catalog(msgspec.Struct, frozen=True):
    """The types that hold objects, and the groups that could not be read."""

    types: tuple[ResourceType, ...]
    unknown: tuple[str, ...]
    """API groups whose server does not respond."""


async def read_catalog(cluster: Cluster) -> Catalog:
    """Read all types that can be listed and deleted, except Events.

    Objects that cannot be deleted are computed by the server from others (PodMetrics,
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
        # Versions come in the server's order of preference, and all serve the same objects.
        key = (each.group, each.resource)
        if {"list", "delete"} <= set(verbs) and key not in EVENTS:
            types.setdefault(key, each)
    return Catalog(types=tuple(types.values()), unknown=tuple(unknown))


Found = list[tuple[ResourceType, list[str]]]


def _aggregated(responses: list[dict[str, Any]]) -> tuple[Found, list[str]]:
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


async def _one_by_one(
    cluster: Cluster, core: dict[str, Any], groups: dict[str, Any]
) -> tuple[Found, list[str]]:
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


def _listed(
    group: str, version: str, response: dict[str, Any]
) -> Iterator[tuple[ResourceType, list[str]]]:
    for each in response["resources"]:
        if "/" not in each["name"]:
            kind, is_namespaced = each["kind"], each["namespaced"]
            yield ResourceType(group, version, each["name"], kind, is_namespaced), each["verbs"]
