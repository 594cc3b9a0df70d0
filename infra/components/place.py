"""What the objects of a stack have in common: namespace, labels, owner, provider, order."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import pulumi
import pulumi_kubernetes as k8s

from aiperf_svc.plan.identity import Identity

SKIP_AWAIT = {"pulumi.com/skipAwait": "true"}
"""For objects whose readiness depends on objects that are made after them."""
DELETION = {"pulumi.com/deletionPropagationPolicy": "background"}
"""An object is gone as soon as its deletion is asked for, and Kubernetes removes what it owned. By
the provider's default it stays until then, for moments in which the provider may miss its end:
docs/decisions/0031-how-a-stack-is-deleted.md."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a component puts its objects."""

    identity: Identity
    namespace: pulumi.Input[str]
    provider: k8s.Provider
    delete_timeout_s: int
    owners: tuple[k8s.meta.v1.OwnerReferenceArgs, ...] = ()
    """In a namespace that stays: the anchor, whose deletion takes everything else with it."""
    deleted_with: pulumi.Resource | None = None
    """In a namespace of our own: the Namespace, whose deletion takes everything else with it. What
    has pods is deleted before, so that these end while Kubernetes waits to empty the namespace."""
    after: tuple[pulumi.Resource, ...] = ()
    """Objects are made after these and deleted before them."""

    def depends_on(self, *resources: pulumi.Resource) -> Self:
        """The same place, for objects that are made after `resources` too."""
        return replace(self, after=(*self.after, *resources))

    def metadata(
        self, name: str, *, component: str = "", annotations: Mapping[str, str] | None = None
    ) -> k8s.meta.v1.ObjectMetaArgs:
        """Metadata of the object called `name`; the stack's name is added to it."""
        return self.named(self.identity.name(name), component=component, annotations=annotations)

    def named(
        self, name: str, *, component: str = "", annotations: Mapping[str, str] | None = None
    ) -> k8s.meta.v1.ObjectMetaArgs:
        """Metadata of an object whose whole name is `name`."""
        return k8s.meta.v1.ObjectMetaArgs(
            name=name,
            namespace=self.namespace,
            labels=self.identity.labels(component),
            annotations={**DELETION, **(annotations or {})},
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
        """Options of an object that belongs to `parent`."""
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
