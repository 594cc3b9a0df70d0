"""Kubernetes objects of pods with stable names: StatefulSets, and the claims of their volumes."""

import pulumi
import pulumi_kubernetes as k8s

from aiperf_svc.config.units import format_size
from aiperf_svc.plan.pods import PodPlan, PodSet, Volume
from components.containers import AWAIT_MARGIN_S, MountedNames
from components.pods import pod_template
from components.scope import SKIP_AWAIT, Scope

core, apps, meta = k8s.core.v1, k8s.apps.v1, k8s.meta.v1


def make_stateful_sets(
    plan: PodPlan, scope: Scope, mounted: MountedNames, parent: pulumi.Resource
) -> None:
    """Create the StatefulSets of a pod, which Pulumi awaits until every replica is ready."""
    for each in plan.sets:
        _make_stateful_set(plan, each, scope, mounted, parent)


def make_shared_claim(
    plan: PodPlan, scope: Scope, parent: pulumi.Resource
) -> tuple[core.PersistentVolumeClaim, ...]:
    """Create the claim that all replicas mount, if there is one. It may wait for its first pod."""
    return tuple(
        core.PersistentVolumeClaim(
            volume.name,
            metadata=scope.metadata(volume.name, component=plan.name, annotations=SKIP_AWAIT),
            spec=_claim_spec(volume, "ReadWriteMany"),
            opts=scope.options(parent),
        )
        for volume in plan.all_volumes
        if volume.kind == "shared-claim"
    )


def _make_stateful_set(
    plan: PodPlan, pods: PodSet, scope: Scope, mounted: MountedNames, parent: pulumi.Resource
) -> apps.StatefulSet:
    identity = scope.identity
    claims = [
        core.PersistentVolumeClaimArgs(
            metadata=meta.ObjectMetaArgs(
                name=volume.name,
                labels=identity.labels(plan.name),
                annotations=identity.annotations or None,
            ),
            spec=_claim_spec(volume, "ReadWriteOnce"),
        )
        for volume in plan.all_volumes
        if volume.kind == "claim"
    ]
    options = scope.options(
        parent,
        create_timeout_s=plan.ready_timeout_s + AWAIT_MARGIN_S,
        is_deleted_first=True,
    )
    return apps.StatefulSet(
        pods.name,
        metadata=scope.metadata(pods.name, component=plan.name),
        spec=apps.StatefulSetSpecArgs(
            replicas=pods.replicas,
            service_name=identity.name(plan.name),
            pod_management_policy="Parallel",
            revision_history_limit=0,
            selector=meta.LabelSelectorArgs(
                match_labels={**identity.selector(plan.name), **_own_label(plan, pods)}
            ),
            template=pod_template(plan, identity, mounted, pods, _own_label(plan, pods)),
            volume_claim_templates=claims or None,
            persistent_volume_claim_retention_policy=(
                apps.StatefulSetPersistentVolumeClaimRetentionPolicyArgs(
                    when_deleted="Delete", when_scaled="Delete"
                )
            ),
        ),
        # An update would replace one pod after the other, and keep what the last run wrote.
        opts=pulumi.ResourceOptions.merge(
            options,
            pulumi.ResourceOptions(replace_on_changes=["spec"], delete_before_replace=True),
        ),
    )


def _own_label(plan: PodPlan, pods: PodSet) -> dict[str, str]:
    """Return the label that tells the pods of one set from those of another."""
    return {"aiperf.dev/set": pods.name} if len(plan.sets) > 1 else {}


def _claim_spec(volume: Volume, mode: str) -> core.PersistentVolumeClaimSpecArgs:
    return core.PersistentVolumeClaimSpecArgs(
        access_modes=[mode],
        storage_class_name=volume.source or None,
        resources=core.VolumeResourceRequirementsArgs(
            requests={"storage": format_size(volume.size_bytes)}
        ),
    )
