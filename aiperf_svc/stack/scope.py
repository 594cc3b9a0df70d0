"""The properties that objects of a stack share: namespace, labels, owner, provider, order."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import pulumi
import pulumi_kubernetes as k8s

from aiperf_svc.plan.identity import Identity

SKIP_AWAIT = {"pulumi.com/skipAwait": "true"}
"""Annotations of objects whose readiness depends on objects that are created later."""
PROVIDER = {
    "pulumi.com/deletionPropagationPolicy": "background",
    "pulumi.com/patchFieldManager": "aiperf-svc",
}
"""Annotations of every object for the provider.

Background deletion: an object disappears as soon as its deletion is requested, and Kubernetes then
removes its dependents. By the provider's default the object stays until its dependents are gone,
and the provider may miss its end: docs/decisions/0031-how-a-stack-is-deleted.md.

One field manager: by default each resource has a random one, which is kept in the state. If `up` is
killed while it creates an object, the state does not have it. The next `up` would use another
manager, and would be refused where a value has changed, which is always the case for keys and the
labels of a new run."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The namespace, provider and order in which a component creates its objects."""

    identity: Identity
    namespace: pulumi.Input[str]
    provider: k8s.Provider
    delete_timeout_s: int
    owners: tuple[k8s.meta.v1.OwnerReferenceArgs, ...] = ()
    """Owners of every object in an existing namespace: the anchor, which owns everything."""
    deleted_with: pulumi.Resource | None = None
    """Resource whose deletion deletes everything else: the stack's own Namespace. Objects with pods
    are deleted first, so the pods end while Kubernetes empties the namespace."""
    after: tuple[pulumi.Resource, ...] = ()
    """Resources that are created before and deleted after the objects."""

    def depends_on(self, *resources: pulumi.Resource) -> Self:
        """Return the same scope for objects that also depend on `resources`."""
        return replace(self, after=(*self.after, *resources))

    def metadata(
        self,
        name: str,
        *,
        component: str = "",
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> k8s.meta.v1.ObjectMetaArgs:
        """Return the metadata of an object. Its name is `name` with the stack's name added."""
        return self.named(
            self.identity.name(name), component=component, annotations=annotations, labels=labels
        )

    def named(
        self,
        name: str,
        *,
        component: str = "",
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> k8s.meta.v1.ObjectMetaArgs:
        """Return the metadata of an object whose full name is `name`. `labels` are added."""
        return k8s.meta.v1.ObjectMetaArgs(
            name=name,
            namespace=self.namespace,
            labels={**(labels or {}), **self.identity.labels(component)},
            annotations={**self.identity.annotations, **PROVIDER, **(annotations or {})},
            owner_references=list(self.owners) or None,
        )

    def options(
        self,
        parent: pulumi.Resource,
        *,
        create_timeout_s: int = 0,
        ignore_changes: tuple[str, ...] = (),
        is_deleted_first: bool = False,
    ) -> pulumi.ResourceOptions:
        """Return the resource options of an object that belongs to `parent`."""
        create = f"{create_timeout_s}s" if create_timeout_s else None
        return pulumi.ResourceOptions(
            parent=parent,
            provider=self.provider,
            depends_on=list(self.after),
            deleted_with=None if is_deleted_first else self.deleted_with,
            ignore_changes=list(ignore_changes) or None,
            custom_timeouts=pulumi.CustomTimeouts(
                create=create, update=create, delete=f"{self.delete_timeout_s}s"
            ),
        )
