"""The target of kind release: the objects of a chart, of manifests or of a custom resource, and a
pod that becomes ready when they serve."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.target import Target
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.release import (
    NAMESPACE,
    READINESS,
    CreationStage,
    ReleasePlan,
    is_custom,
    name_of,
    stage_of,
    watched_objects,
)
from aiperf_svc.stack.access import make_account, rule
from aiperf_svc.stack.containers import AWAIT_MARGIN_S, MountedNames
from aiperf_svc.stack.pods import make_deployment
from aiperf_svc.stack.scope import PROVIDER, SKIP_AWAIT, Scope

SECRET_FIELDS = ("data", "stringData")
"""Fields of a Secret with its values."""


@dataclass(frozen=True, kw_only=True)
class ReleaseArgs:
    """The plan of the release, and the scopes to create it in."""

    plan: ReleasePlan
    target: Target
    scope: Scope
    base: Scope
    """Scope for objects without pods."""
    mounted: MountedNames


class Release(pulumi.ComponentResource):
    """Creates the objects, Services for reading the metrics pages of its pools, and the pod that
    waits until all rules hold and all pools have their replicas."""

    def __init__(
        self, name: str, args: ReleaseArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("aiperf:stack:Release", name, None, opts)
        for pool, settings in args.target.pools.items():
            if settings.port is not None:
                self._pages(pool, settings.labels, settings.port, args.base)
        made = [*self._objects(args), *self._helm(args)]
        needed = make_account(READINESS, self._rules(args), args.base, self)
        self.gate = make_deployment(
            args.plan.gate,
            args.scope.depends_on(*needed, *made),
            replace(args.mounted, account=args.base.identity.name(READINESS)),
            self,
            is_replaced=True,
        )
        self.register_outputs({})

    def _objects(self, args: ReleaseArgs) -> list[pulumi.Resource]:
        made: dict[CreationStage, list[pulumi.Resource]] = {stage: [] for stage in CreationStage}
        one_by_one = (e for e in args.plan.objects if name_of(e) not in args.plan.installed)
        for each in one_by_one:
            stage = stage_of(each)
            scope = args.scope if stage is CreationStage.PODS else args.base
            before = [one for earlier, found in made.items() if earlier < stage for one in found]
            made[stage].append(self._object(each, args, scope.depends_on(*before)))
        return [one for found in made.values() for one in found]

    def _object(self, manifest: Json, args: ReleaseArgs, scope: Scope) -> pulumi.Resource:
        name = f"{manifest['kind']}-{manifest['metadata']['name']}".lower()
        is_global = name_of(manifest) in args.plan.cluster_scoped
        makes_pods = stage_of(manifest) is CreationStage.PODS
        original = manifest["metadata"]
        # The readiness of a Service depends on pods that are created after it.
        unawaited = SKIP_AWAIT if manifest["kind"] in ("Service", "Ingress") else {}
        notes = {**scope.identity.annotations, **PROVIDER, **unawaited}
        owners = _namespace_owner(scope) if is_global else list(scope.owners)
        metadata: Json = {
            **_placed(original, scope.namespace),
            "annotations": {**notes, **_placed(original.get("annotations") or {}, scope.namespace)},
            **({"ownerReferences": owners} if owners else {}),
        }
        if not is_global:
            metadata["namespace"] = scope.namespace
        rest = {k: v for k, v in manifest.items() if k not in ("metadata", "status")}
        group, _, version = manifest["apiVersion"].rpartition("/")
        token = f"kubernetes:{group or 'core'}/{version}:{manifest['kind']}"
        timeout_s = args.plan.gate.ready_timeout_s + AWAIT_MARGIN_S
        options = pulumi.ResourceOptions.merge(
            # A custom resource is deleted while its operator can still remove its finalizers.
            scope.options(
                self,
                create_timeout_s=timeout_s,
                is_deleted_first=is_custom(manifest) or makes_pods or is_global,
            ),
            pulumi.ResourceOptions(
                # A visit of an experiment in blocks differs only by an annotation.
                replace_on_changes=["spec", "metadata.annotations"] if makes_pods else None,
                delete_before_replace=True,
            ),
        )
        props = {**_placed(rest, scope.namespace), "metadata": metadata}
        if manifest["kind"] == "Secret":
            # Like the SDK's class for Secrets. Else the state would hold the values in plain text.
            props |= {k: pulumi.Output.secret(v) for k, v in props.items() if k in SECRET_FIELDS}
        return pulumi.CustomResource(token, name, props, options)

    def _helm(self, args: ReleaseArgs) -> list[pulumi.Resource]:
        """Install the charts that have hooks enabled."""
        scope = args.scope
        # The runner deletes the namespace first, after which Helm would find no release.
        options = scope.options(self, create_timeout_s=args.plan.gate.ready_timeout_s)
        return [
            k8s.helm.v3.Release(
                f"release-{source.name}",
                name=source.name,
                chart=chart,
                version=source.version,
                namespace=scope.namespace,
                values=_placed(source.values, scope.namespace),
                skip_crds=True,
                timeout=args.target.ready_timeout // SECOND_NS,
                repository_opts=k8s.helm.v3.RepositoryOptsArgs(repo=source.repo)
                if source.repo
                else None,
                opts=options,
            )
            for source, chart in zip(args.target.sources, args.plan.charts, strict=True)
            if chart
        ]

    def _pages(self, pool: str, labels: Mapping[str, str], port: int, scope: Scope) -> None:
        """Create a headless Service whose name resolves to the addresses of all pods of a pool."""
        name = f"pool-{pool}"
        k8s.core.v1.Service(
            name,
            metadata=scope.metadata(name, annotations=SKIP_AWAIT),
            spec=k8s.core.v1.ServiceSpecArgs(
                cluster_ip="None",
                selector=dict(labels),
                ports=[k8s.core.v1.ServicePortArgs(name="metrics", port=port, target_port=port)],
            ),
            opts=scope.options(self),
        )

    def _rules(self, args: ReleaseArgs) -> list[k8s.rbac.v1.PolicyRuleArgs]:
        """Return the rules that allow reading the objects of `ready` and the pods of the pools."""
        read = watched_objects(args.target, args.plan.objects)
        return [
            rule("", "pods", "list"),
            *(rule(group, resource, "get", name=name) for group, resource, name in read),
        ]


def _namespace_owner(scope: Scope) -> list[k8s.meta.v1.OwnerReferenceArgs]:
    """Return the stack's own Namespace as the owner: Kubernetes deletes a cluster-scoped object
    with it, even if the runner does not delete the Namespace."""
    space = scope.deleted_with
    assert isinstance(space, k8s.core.v1.Namespace)
    return [
        k8s.meta.v1.OwnerReferenceArgs(
            api_version="v1",
            kind="Namespace",
            name=space.metadata.apply(lambda metadata: str(metadata.name)),
            uid=space.metadata.apply(lambda metadata: str(metadata.uid)),
        )
    ]


def _placed(value: Any, namespace: pulumi.Input[str]) -> Any:
    """Return a value with the placeholder namespace replaced by the stack's namespace."""
    if isinstance(value, str) and NAMESPACE in value:
        return pulumi.Output.from_input(namespace).apply(
            lambda name: value.replace(NAMESPACE, name)
        )
    if isinstance(value, dict):
        return {key: _placed(each, namespace) for key, each in value.items()}
    if isinstance(value, list):
        return [_placed(each, namespace) for each in value]
    return value
