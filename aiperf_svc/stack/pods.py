"""Kubernetes objects of a PodPlan: its template, a Deployment, Job or StatefulSets, and a Service
if the pod has a name."""

from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from aiperf_svc.config.units import format_size
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.identity import Identity
from aiperf_svc.plan.pods import (
    KEEP_ANNOTATIONS,
    OPT_OUT_ANNOTATIONS,
    OPT_OUT_LABELS,
    USER,
    JobPlan,
    PodPlan,
    PodSet,
    Volume,
)
from aiperf_svc.plan.ranks import NETWORK_FILE
from aiperf_svc.stack.containers import (
    AWAIT_MARGIN_S,
    MountedNames,
    container,
    preparation,
    readiness,
    startup,
)
from aiperf_svc.stack.placement import affinity, networks, spread, tolerations
from aiperf_svc.stack.scope import SKIP_AWAIT, Scope

core, apps, batch, meta = k8s.core.v1, k8s.apps.v1, k8s.batch.v1, k8s.meta.v1


def make_service(plan: PodPlan, scope: Scope, parent: pulumi.Resource) -> core.Service:
    """Create a headless Service, whose name resolves to the pod's own address."""
    return core.Service(
        plan.name,
        metadata=scope.metadata(plan.name, component=plan.name, annotations=SKIP_AWAIT),
        spec=core.ServiceSpecArgs(
            cluster_ip="None",
            # Peers connect before a pod is ready, because readiness does not depend on finding
            # peers.
            publish_not_ready_addresses=True,
            selector=scope.identity.selector(plan.name),
            ports=[
                core.ServicePortArgs(name=name, port=number, target_port=number, protocol="TCP")
                for name, number in plan.ports.items()
            ]
            or None,
        ),
        opts=scope.options(parent),
    )


def make_deployment(
    plan: PodPlan,
    scope: Scope,
    mounted: MountedNames,
    parent: pulumi.Resource,
    *,
    is_replaced: bool = False,
) -> apps.Deployment:
    """Create the Deployment of a pod. Pulumi waits until every replica is ready.

    `is_replaced`: a change creates another Deployment. After an update of a Deployment, Pulumi may
    mistake the readiness of the old pods for that of the new ones.
    """
    identity = scope.identity
    options = scope.options(
        parent,
        create_timeout_s=plan.ready_timeout_s + AWAIT_MARGIN_S,
        # The deadline pod runs until the Namespace is being deleted.
        is_deleted_first=not plan.calls_api,
    )
    if is_replaced:
        options = pulumi.ResourceOptions.merge(
            options,
            pulumi.ResourceOptions(replace_on_changes=["spec"], delete_before_replace=True),
        )
    return apps.Deployment(
        plan.name,
        metadata=scope.metadata(plan.name, component=plan.name),
        spec=apps.DeploymentSpecArgs(
            replicas=plan.replicas,
            # A surge could exceed a quota, and run two instances of a singleton.
            strategy=apps.DeploymentStrategyArgs(type=plan.rollout),
            progress_deadline_seconds=plan.ready_timeout_s,
            revision_history_limit=0,
            selector=meta.LabelSelectorArgs(match_labels=identity.selector(plan.name)),
            template=pod_template(plan, identity, mounted),
        ),
        opts=options,
    )


def make_job(
    plan: JobPlan, scope: Scope, mounted: MountedNames, parent: pulumi.Resource
) -> batch.Job:
    """Create an Indexed Job without running pods; the collector starts them."""
    pod = plan.pod
    replaced = pulumi.ResourceOptions(replace_on_changes=["spec"], delete_before_replace=True)
    return batch.Job(
        pod.name,
        metadata=scope.metadata(pod.name, component=pod.name, annotations=SKIP_AWAIT),
        spec=batch.JobSpecArgs(
            completion_mode="Indexed",
            completions=plan.completions,
            parallelism=0,
            backoff_limit_per_index=plan.retries,
            pod_failure_policy=_failure_policy(pod),
            template=pod_template(
                pod,
                scope.identity,
                mounted,
                restart_policy="Never",
                active_deadline_seconds=plan.deadline_s,
            ),
        ),
        opts=pulumi.ResourceOptions.merge(
            # The collector owns the fields that change while the Job runs.
            scope.options(parent, is_deleted_first=True, ignore_changes=("spec.parallelism",)),
            replaced,
        ),
    )


def _failure_policy(pod: PodPlan) -> batch.PodFailurePolicyArgs:
    """Return the policy for an index with a failed pod: a drain, or preemption by a pod of higher
    priority, does not count as an attempt; a refused config would be refused again."""
    disrupted = batch.PodFailurePolicyOnPodConditionsPatternArgs(
        type="DisruptionTarget", status="True"
    )
    refused = batch.PodFailurePolicyOnExitCodesRequirementArgs(
        container_name=pod.name, operator="In", values=[int(ExitCode.BAD_CONFIG)]
    )
    return batch.PodFailurePolicyArgs(
        rules=[
            batch.PodFailurePolicyRuleArgs(action="Ignore", on_pod_conditions=[disrupted]),
            batch.PodFailurePolicyRuleArgs(action="FailIndex", on_exit_codes=refused),
        ]
    )


def pod_template(
    plan: PodPlan,
    identity: Identity,
    mounted: MountedNames,
    pods: PodSet | None = None,
    labels: Mapping[str, str] | None = None,
    **rest: Any,
) -> core.PodTemplateSpecArgs:
    """Return the template of a pod, or of the pods of one set. `labels` are added, and `rest` is
    added to its spec."""
    return core.PodTemplateSpecArgs(
        metadata=meta.ObjectMetaArgs(
            labels={
                **OPT_OUT_LABELS,
                **identity.labels(plan.name),
                **plan.labels,
                **(labels or {}),
            },
            annotations={
                **OPT_OUT_ANNOTATIONS,
                **KEEP_ANNOTATIONS,
                **identity.annotations,
                **networks(plan.placement),
                **plan.annotations,
            },
        ),
        spec=_pod_spec(plan, identity, mounted, pods or PodSet(plan.name, plan.replicas), rest),
    )


def _pod_spec(
    plan: PodPlan,
    identity: Identity,
    mounted: MountedNames,
    pods: PodSet,
    rest: Mapping[str, Any],
) -> core.PodSpecArgs:
    first, *others = plan.containers
    placement, gpu = plan.placement, plan.total.gpu
    is_given = any(volume.kind == "existing-claim" for volume in plan.all_volumes)
    return core.PodSpecArgs(
        service_account_name=mounted.account,
        automount_service_account_token=plan.calls_api,
        enable_service_links=False,
        termination_grace_period_seconds=plan.grace_s,
        image_pull_secrets=[
            core.LocalObjectReferenceArgs(name=name) for name in plan.image.pull_secrets
        ]
        or None,
        host_network=placement.host_network or None,
        share_process_namespace=plan.shares_processes or None,
        dns_policy="ClusterFirstWithHostNet" if placement.host_network else None,
        runtime_class_name=gpu.runtime_class if gpu else None,
        priority_class_name=placement.priority_class,
        node_selector=placement.node_selector or None,
        tolerations=tolerations(placement),
        affinity=affinity(plan, identity, pods),
        scheduler_name=plan.scheduler,
        topology_spread_constraints=spread(plan, identity),
        security_context=core.PodSecurityContextArgs(
            run_as_non_root=not plan.run_as_root,
            run_as_user=0 if plan.run_as_root else USER,
            run_as_group=0 if plan.run_as_root else USER,
            fs_group=None if plan.run_as_root else USER,
            # Else each start would change the group of all files of a claim, even if it is right.
            fs_group_change_policy="OnRootMismatch" if is_given and not plan.run_as_root else None,
            seccomp_profile=core.SeccompProfileArgs(type="RuntimeDefault"),
            sysctls=[core.SysctlArgs(name=n, value=v) for n, v in plan.sysctls.items()] or None,
        ),
        containers=[
            container(
                first,
                plan,
                mounted,
                service_id=pods.service_id,
                ports=[
                    core.ContainerPortArgs(name=name, container_port=number, protocol="TCP")
                    for name, number in plan.ports.items()
                ]
                or None,
                readiness_probe=readiness(plan.probe),
                startup_probe=startup(plan),
            ),
            *(container(each, plan, mounted) for each in others),
        ],
        init_containers=[preparation(each, plan, mounted) for each in plan.preparations] or None,
        volumes=[
            _volume(volume, mounted, identity)
            for volume in plan.all_volumes
            # A StatefulSet adds the claims of its template.
            if volume.kind != "claim"
        ],
        **rest,
    )


def _volume(volume: Volume, mounted: MountedNames, identity: Identity) -> core.VolumeArgs:
    limit = format_size(volume.size_bytes) if volume.size_bytes else None
    if volume.kind == "config":
        source = core.ConfigMapVolumeSourceArgs(name=mounted.config_map)
        return core.VolumeArgs(name=volume.name, config_map=source)
    if volume.kind == "keys":
        secret = core.SecretVolumeSourceArgs(
            secret_name=mounted.secret("keys"),
            default_mode=0o440,
            items=[core.KeyToPathArgs(key=name, path=name) for name in volume.items],
        )
        return core.VolumeArgs(name=volume.name, secret=secret)
    if volume.kind == "annotations":
        file = core.DownwardAPIVolumeFileArgs(
            path=NETWORK_FILE,
            field_ref=core.ObjectFieldSelectorArgs(
                field_path=f"metadata.annotations['{volume.source}']"
            ),
        )
        info = core.DownwardAPIVolumeSourceArgs(items=[file])
        return core.VolumeArgs(name=volume.name, downward_api=info)
    if volume.kind == "shared-claim":
        claim = core.PersistentVolumeClaimVolumeSourceArgs(claim_name=identity.name(volume.name))
        return core.VolumeArgs(name=volume.name, persistent_volume_claim=claim)
    if volume.kind == "existing-claim":
        known = core.PersistentVolumeClaimVolumeSourceArgs(
            claim_name=volume.source, read_only=volume.is_read_only or None
        )
        return core.VolumeArgs(name=volume.name, persistent_volume_claim=known)
    if volume.kind == "image":
        files = core.ImageVolumeSourceArgs(reference=volume.source, pull_policy="IfNotPresent")
        return core.VolumeArgs(name=volume.name, image=files)
    if volume.kind == "host-path":
        # Never created, because it would remain on the node.
        host_path = core.HostPathVolumeSourceArgs(path=volume.source, type="Directory")
        return core.VolumeArgs(name=volume.name, host_path=host_path)
    medium = "Memory" if volume.kind == "memory" else None
    folder = core.EmptyDirVolumeSourceArgs(medium=medium, size_limit=limit)
    return core.VolumeArgs(name=volume.name, empty_dir=folder)


def make_stateful_sets(
    plan: PodPlan, scope: Scope, mounted: MountedNames, parent: pulumi.Resource
) -> None:
    """Create the StatefulSets of a pod. Pulumi waits until every replica is ready."""
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
        # An update would replace one pod after another, and keep the files of the last run.
        opts=pulumi.ResourceOptions.merge(
            options,
            pulumi.ResourceOptions(replace_on_changes=["spec"], delete_before_replace=True),
        ),
    )


def _own_label(plan: PodPlan, pods: PodSet) -> dict[str, str]:
    """Return the label that distinguishes the pods of one set from those of another."""
    return {"aiperf.dev/set": pods.name} if len(plan.sets) > 1 else {}


def _claim_spec(volume: Volume, mode: str) -> core.PersistentVolumeClaimSpecArgs:
    return core.PersistentVolumeClaimSpecArgs(
        access_modes=[mode],
        storage_class_name=volume.source or None,
        resources=core.VolumeResourceRequirementsArgs(
            requests={"storage": format_size(volume.size_bytes)}
        ),
    )
