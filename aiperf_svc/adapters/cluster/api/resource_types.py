"""Every type of object that a cluster can hold, as its API server tells."""

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused

AGGREGATED = ",".join(
    f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
    for version in ("v2", "v2beta1")
)
"""Everything in two responses; servers before 1.27 ignore it and respond as they always did."""
EVENTS = frozenset({("", "events"), ("events.k8s.io", "events")})
"""What the cluster says about objects: kept for an hour whatever becomes of them."""


class ResourceType(msgspec.Struct, frozen=True, order=True):
    """One type of object."""

    group: str
    """Empty: the core group."""
    version: str
    resource: str
    """Plural, as in paths."""
    kind: str
    is_namespaced: bool

    @property
    def name(self) -> str:
        """As kubectl says it: `deployments.apps`."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    @property
    def api_version(self) -> str:
        """As manifests say it: `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None) -> str:
        """Of the list of its objects: in a namespace, or all of them."""
        base = f"/{'apis' if self.group else 'api'}/{self.api_version}"
        place = f"/namespaces/{namespace}" if namespace and self.is_namespaced else ""
        return f"{base}{place}/{self.resource}"


class Catalog(msgspec.Struct, frozen=True):
    """The types that hold objects, and what the server could not say."""

    types: tuple[ResourceType, ...]
    unknown: tuple[str, ...]
    """API groups whose server does not respond."""


async def read_catalog(cluster: Cluster) -> Catalog:
    """All types that can be listed and deleted, Events left out.

    What cannot be deleted is no object of its own: the server computes it from others (PodMetrics,
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
