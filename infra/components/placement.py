"""Kubernetes objects of a PodPlan: its template, a Deployment, and a Service if the pod has a
name."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from aiperf_svc.config.placement import Placement
from aiperf_svc.config.units import format_cpu, format_size
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.identity import Identity
from aiperf_svc.plan.pods import (
    GRACE_S,
    ContainerPlan,
    JobPlan,
    PodPlan,
    PodSet,
    Probe,
    Requests,
    Volume,
)
from aiperf_svc.plan.ranks import NETWORK_FILE
from components.place import SKIP_AWAIT, Place

USER = 65_532
"""Numeric user id, so that the kubelet can verify that it is not root."""
OPT_OUT_LABELS = {"sidecar.istio.io/inject": "false"}
OPT_OUT_ANNOTATIONS = {"linkerd.io/inject": "disabled"}
"""Keep service meshes out: a sidecar would keep pods alive and add latency to the measurement."""
KEEP_ANNOTATIONS = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""Keep autoscalers from removing nodes during a run."""
SPREAD_KEYS = {"hostname": "kubernetes.io/hostname", "zone": "topology.kubernetes.io/zone"}
STORAGE = "ephemeral-storage"
SERVICE_ID = "AIPERF_SERVICE_ID"
AWAIT_MARGIN_S = 30
"""Pulumi waits this much longer than Kubernetes, which reports the reason when it gives up."""

core, apps, batch, meta = k8s.core.v1, k8s.apps.v1, k8s.batch.v1, k8s.meta.v1


@dataclass(frozen=True, kw_only=True)
class MountedNames:
    """Names of the account, the ConfigMap and the Secrets that pods mount or read."""

    account: pulumi.Input[str]
    config_map: pulumi.Input[str] = ""
    secrets: tuple[tuple[str, pulumi.Input[str]], ...] = ()
    """Pairs of `keys`, `target`, `upload` or `workload` and the name of the Secret."""

    def secret(self, which: str) -> pulumi.Input[str]:
        """Return the name of a Secret."""
        return dict(self.secrets)[which]


def make_service(plan: PodPlan, place: Place, parent: pulumi.Resource) -> core.Service:
    """Create a headless Service, which names a pod's address without a virtual one in between."""
    return core.Service(
        plan.name,
        metadata=place.metadata(plan.name, component=plan.name, annotations=SKIP_AWAIT),
        spec=core.ServiceSpecArgs(
            cluster_ip="None",
            # Peers connect before readiness is known; ready never means "peers found".
            publish_not_ready_addresses=True,
            selector=place.identity.selector(plan.name),
            ports=[
                core.ServicePortArgs(name=name, port=number, target_port=number, protocol="TCP")
                for name, number in plan.ports.items()
            ]
            or None,
        ),
        opts=place.options(parent),
    )


def make_deployment(
    plan: PodPlan,
    place: Place,
    mounted: MountedNames,
    parent: pulumi.Resource,
    *,
    is_replaced: bool = False,
) -> apps.Deployment:
    """Create the Deployment of a pod, which Pulumi awaits until every replica is ready.

    `is_replaced`: a change makes another Deployment. Of one that is updated, Pulumi can take the
    readiness of the pods before for that of the new ones.
    """
    identity = place.identity
    options = place.options(
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
        metadata=place.metadata(plan.name, component=plan.name),
        spec=apps.DeploymentSpecArgs(
            replicas=plan.replicas,
            # A surge could exceed a quota, and run two instances of a singleton.
            strategy=apps.DeploymentStrategyArgs(type="Recreate"),
            progress_deadline_seconds=plan.ready_timeout_s,
            revision_history_limit=0,
            selector=meta.LabelSelectorArgs(match_labels=identity.selector(plan.name)),
            template=pod_template(plan, identity, mounted),
        ),
        opts=options,
    )


def make_job(
    plan: JobPlan, place: Place, mounted: MountedNames, parent: pulumi.Resource
) -> batch.Job:
    """Create an Indexed Job, of which no pod runs until the collector lets it."""
    pod = plan.pod
    replaced = pulumi.ResourceOptions(replace_on_changes=["spec"], delete_before_replace=True)
    return batch.Job(
        pod.name,
        metadata=place.metadata(pod.name, component=pod.name, annotations=SKIP_AWAIT),
        spec=batch.JobSpecArgs(
            completion_mode="Indexed",
            completions=plan.completions,
            parallelism=0,
            backoff_limit_per_index=plan.retries,
            pod_failure_policy=_failure_policy(pod),
            template=pod_template(
                pod,
                place.identity,
                mounted,
                restart_policy="Never",
                active_deadline_seconds=plan.deadline_s,
            ),
        ),
        opts=pulumi.ResourceOptions.merge(
            # What is changed while the Job runs is the collector's.
            place.options(parent, is_deleted_first=True, ignore_changes=("spec.parallelism",)),
            replaced,
        ),
    )


def _failure_policy(pod: PodPlan) -> batch.PodFailurePolicyArgs:
    """Return what becomes of an index whose pod has failed: a drain, or a pod of higher priority,
    costs no attempt; a config that is refused is refused again."""
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
    """Return the template of a pod, or of the pods of one set; `labels` are added, and `rest` to
    its spec."""
    return core.PodTemplateSpecArgs(
        metadata=meta.ObjectMetaArgs(
            labels={
                **identity.labels(plan.name),
                **OPT_OUT_LABELS,
                **plan.labels,
                **(labels or {}),
            },
            annotations={
                **OPT_OUT_ANNOTATIONS,
                **KEEP_ANNOTATIONS,
                **_networks(plan.placement),
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
    return core.PodSpecArgs(
        service_account_name=mounted.account,
        automount_service_account_token=plan.calls_api,
        enable_service_links=False,
        termination_grace_period_seconds=GRACE_S,
        image_pull_secrets=[
            core.LocalObjectReferenceArgs(name=name) for name in plan.image.pull_secrets
        ]
        or None,
        host_network=placement.host_network or None,
        dns_policy="ClusterFirstWithHostNet" if placement.host_network else None,
        runtime_class_name=gpu.runtime_class if gpu else None,
        priority_class_name=placement.priority_class,
        node_selector=placement.node_selector or None,
        tolerations=_tolerations(placement),
        affinity=_affinity(plan, identity, pods),
        scheduler_name=plan.scheduler,
        topology_spread_constraints=_spread(plan, identity),
        security_context=core.PodSecurityContextArgs(
            run_as_non_root=not plan.run_as_root,
            run_as_user=0 if plan.run_as_root else USER,
            run_as_group=0 if plan.run_as_root else USER,
            fs_group=None if plan.run_as_root else USER,
            seccomp_profile=core.SeccompProfileArgs(type="RuntimeDefault"),
            sysctls=[core.SysctlArgs(name=n, value=v) for n, v in plan.sysctls.items()] or None,
        ),
        containers=[
            _container(
                first,
                plan,
                mounted,
                service_id=pods.service_id,
                ports=[
                    core.ContainerPortArgs(name=name, container_port=number, protocol="TCP")
                    for name, number in plan.ports.items()
                ]
                or None,
                readiness_probe=_readiness(plan.probe),
                startup_probe=_startup(plan),
            ),
            *(_container(each, plan, mounted) for each in others),
        ],
        init_containers=[_preparation(each, plan, mounted) for each in plan.preparations] or None,
        volumes=[
            _volume(volume, mounted, identity)
            for volume in plan.all_volumes
            # A StatefulSet adds the claims of its template.
            if volume.kind != "claim"
        ],
        **rest,
    )


def _preparation(plan: ContainerPlan, pod: PodPlan, mounted: MountedNames) -> core.ContainerArgs:
    beside = {"restart_policy": "Always"} if plan.is_beside else {}
    return _container(plan, pod, mounted, **beside)


def _container(
    plan: ContainerPlan, pod: PodPlan, mounted: MountedNames, *, service_id: str = "", **rest: Any
) -> core.ContainerArgs:
    """Return a container. `service_id` replaces the pod's name as the id of its service, `rest` is
    added."""
    is_other_user = plan.run_as_root != pod.run_as_root
    return core.ContainerArgs(
        name=plan.name,
        image=plan.image.name,
        image_pull_policy=plan.image.pull_policy,
        command=list(plan.command) or None,
        args=list(plan.args) or None,
        env=_env(plan, mounted, service_id),
        resources=_resources(plan.requests),
        # What a courier or a preparation says last is why its pod does not start.
        termination_message_policy="FallbackToLogsOnError" if pod.sets else None,
        volume_mounts=[
            core.VolumeMountArgs(
                name=volume.name,
                mount_path=volume.path,
                read_only=True if volume.kind in ("config", "keys") else None,
            )
            for volume in plan.volumes
        ],
        security_context=core.SecurityContextArgs(
            allow_privilege_escalation=False,
            read_only_root_filesystem=plan.read_only_root,
            capabilities=core.CapabilitiesArgs(drop=["ALL"], add=list(plan.capabilities) or None),
            run_as_non_root=not plan.run_as_root if is_other_user else None,
            run_as_user=_user(plan.run_as_root) if is_other_user else None,
            run_as_group=_user(plan.run_as_root) if is_other_user else None,
        ),
        **rest,
    )


def _user(is_root: bool) -> int:
    return 0 if is_root else USER


def _env(plan: ContainerPlan, mounted: MountedNames, service_id: str) -> list[core.EnvVarArgs]:
    own = {SERVICE_ID: service_id} if service_id else {}
    values = {**plan.env, **own}
    plain = [core.EnvVarArgs(name=name, value=value) for name, value in values.items()]
    fields = [
        core.EnvVarArgs(
            name=name,
            value_from=core.EnvVarSourceArgs(
                field_ref=core.ObjectFieldSelectorArgs(field_path=field)
            ),
        )
        for name, field in plan.field_env.items()
        if name not in own
    ]
    secrets = [
        core.EnvVarArgs(
            name=name,
            value_from=core.EnvVarSourceArgs(
                secret_key_ref=core.SecretKeySelectorArgs(
                    name=mounted.secret(source.secret), key=source.key
                )
            ),
        )
        for name, source in plan.secret_env.items()
    ]
    return [*plain, *fields, *secrets]


def _resources(requests: Requests) -> core.ResourceRequirementsArgs:
    memory = {"memory": format_size(requests.memory_bytes)}
    gpus = {requests.gpu.resource: str(requests.gpu.count)} if requests.gpu else {}
    gpus |= {name: str(number) for name, number in requests.devices.items()}
    limit, asked, most = requests.cpu_limit_millis, {}, {}
    if requests.storage_limit_bytes:
        asked = {STORAGE: format_size(requests.storage_bytes)}
        most = {STORAGE: format_size(requests.storage_limit_bytes)}
    return core.ResourceRequirementsArgs(
        requests={"cpu": format_cpu(requests.cpu_millis), **memory, **gpus, **asked},
        limits={**({"cpu": format_cpu(limit)} if limit else {}), **memory, **gpus, **most},
    )


def _readiness(probe: Probe | None) -> core.ProbeArgs | None:
    """Return a readiness probe with a short period, so that a ready pod soon counts as ready. There
    is no liveness probe: a restarted singleton fails its run, and a busy one must not be killed."""
    if probe is None:
        return None
    if probe.path:
        action = core.HTTPGetActionArgs(path=probe.path, port=probe.port)
        return core.ProbeArgs(http_get=action, period_seconds=2, timeout_seconds=5)
    opened = core.TCPSocketActionArgs(port=probe.port)
    return core.ProbeArgs(tcp_socket=opened, period_seconds=2, timeout_seconds=5)


def _startup(plan: PodPlan) -> core.ProbeArgs | None:
    """Return a startup probe for a file. It stops once the file exists: each command in a pod uses
    CPU of the node."""
    if plan.ready_file is None:
        return None
    return core.ProbeArgs(
        exec_=core.ExecActionArgs(command=["cat", plan.ready_file]),
        period_seconds=1,
        timeout_seconds=5,
        # The Deployment fails first, so the pod remains and its log shows the reason.
        failure_threshold=plan.ready_timeout_s + AWAIT_MARGIN_S,
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
    if volume.kind == "host-path":
        # Never made: it would stay on the node.
        there = core.HostPathVolumeSourceArgs(path=volume.source, type="Directory")
        return core.VolumeArgs(name=volume.name, host_path=there)
    medium = "Memory" if volume.kind == "memory" else None
    folder = core.EmptyDirVolumeSourceArgs(medium=medium, size_limit=limit)
    return core.VolumeArgs(name=volume.name, empty_dir=folder)


def _tolerations(placement: Placement) -> list[core.TolerationArgs] | None:
    return [
        core.TolerationArgs(
            key=t.key or None, operator=t.operator, value=t.value or None, effect=t.effect or None
        )
        for t in placement.tolerations
    ] or None


def _affinity(plan: PodPlan, identity: Identity, pods: PodSet) -> core.AffinityArgs | None:
    placement, node = plan.placement, None
    if placement.require_nodes or placement.prefer_nodes or pods.node:
        term = _node_term(placement.require_nodes, pods.node)
        is_required = placement.require_nodes or pods.node
        required = core.NodeSelectorArgs(node_selector_terms=[term]) if is_required else None
        preferred = [
            core.PreferredSchedulingTermArgs(weight=50, preference=_node_term({label: values}))
            for label, values in placement.prefer_nodes.items()
        ]
        node = core.NodeAffinityArgs(
            required_during_scheduling_ignored_during_execution=required,
            preferred_during_scheduling_ignored_during_execution=preferred or None,
        )
    apart = [
        core.WeightedPodAffinityTermArgs(
            weight=100,
            pod_affinity_term=core.PodAffinityTermArgs(
                topology_key=SPREAD_KEYS["hostname"],
                label_selector=meta.LabelSelectorArgs(match_labels=identity.selector(name)),
            ),
        )
        for name in placement.away_from
    ]
    each_other = core.PodAffinityTermArgs(
        topology_key=SPREAD_KEYS["hostname"],
        label_selector=meta.LabelSelectorArgs(match_labels=identity.selector(plan.name)),
    )
    is_apart, is_together = (plan.replicas_on == where for where in ("apart", "together"))
    if node is None and not apart and not is_apart and not is_together:
        return None
    away = core.PodAntiAffinityArgs(
        preferred_during_scheduling_ignored_during_execution=apart or None,
        required_during_scheduling_ignored_during_execution=[each_other] if is_apart else None,
    )
    near = core.PodAffinityArgs(required_during_scheduling_ignored_during_execution=[each_other])
    return core.AffinityArgs(
        node_affinity=node,
        pod_anti_affinity=away if apart or is_apart else None,
        pod_affinity=near if is_together else None,
    )


def _node_term(labels: dict[str, tuple[str, ...]], node: str = "") -> core.NodeSelectorTermArgs:
    """Return the term for node labels, and for the name of one node."""
    named = core.NodeSelectorRequirementArgs(key="metadata.name", operator="In", values=[node])
    return core.NodeSelectorTermArgs(
        match_expressions=[
            core.NodeSelectorRequirementArgs(key=label, operator="In", values=list(values))
            for label, values in labels.items()
        ]
        or None,
        match_fields=[named] if node else None,
    )


def _spread(plan: PodPlan, identity: Identity) -> list[core.TopologySpreadConstraintArgs] | None:
    if plan.replicas == 1 or plan.sets or plan.placement.spread == "none":
        return None
    return [
        core.TopologySpreadConstraintArgs(
            max_skew=1,
            topology_key=SPREAD_KEYS[plan.placement.spread],
            when_unsatisfiable="ScheduleAnyway",
            label_selector=meta.LabelSelectorArgs(match_labels=identity.selector(plan.name)),
        )
    ]


def _networks(placement: Placement) -> dict[str, str]:
    """Return the annotation of Multus. The plugins of the definition get `cni-args` as
    arguments."""
    if not placement.networks:
        return {}
    wanted = []
    for network in placement.networks:
        namespace, _, name = network.name.rpartition("/")
        entry: dict[str, Any] = {"name": name}
        if namespace:
            entry["namespace"] = namespace
        if network.mtu:
            entry["cni-args"] = {"mtu": network.mtu}
        wanted.append(entry)
    return {"k8s.v1.cni.cncf.io/networks": json.dumps(wanted)}
