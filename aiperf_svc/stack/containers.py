"""Containers of a pod: environment, resources, probes and security."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from aiperf_svc.config.units import format_cpu, format_size
from aiperf_svc.plan.pods import NETWORK, USER, ContainerPlan, PodPlan, Probe, Requests
from aiperf_svc.plan.release import READINESS

core = k8s.core.v1

STORAGE = "ephemeral-storage"
SERVICE_ID = "AIPERF_SERVICE_ID"
AWAIT_MARGIN_S = 30
"""Additional time that Pulumi waits after Kubernetes, which reports why it gives up."""


@dataclass(frozen=True, kw_only=True)
class MountedNames:
    """Names of the account, the ConfigMaps and the Secrets that pods mount or read."""

    account: pulumi.Input[str]
    config_map: pulumi.Input[str] = ""
    shared_env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that the services share."""
    environment: pulumi.Input[str] = ""
    """ConfigMap with these variables."""
    secrets: tuple[tuple[str, pulumi.Input[str]], ...] = ()
    """Pairs of `keys`, `target`, `upload` or `workload` and the name of the Secret."""

    def secret(self, which: str) -> pulumi.Input[str]:
        """Return the name of a Secret."""
        return dict(self.secrets)[which]


def preparation(plan: ContainerPlan, pod: PodPlan, mounted: MountedNames) -> core.ContainerArgs:
    """Return an init container, or a sidecar that starts before the pod's containers."""
    sidecar = {"restart_policy": "Always"} if plan.is_sidecar else {}
    return container(plan, pod, mounted, **sidecar)


def container(
    plan: ContainerPlan, pod: PodPlan, mounted: MountedNames, *, service_id: str = "", **rest: Any
) -> core.ContainerArgs:
    """Return a container. `service_id` replaces the pod's name as the id of its service; `rest`
    contains additional arguments."""
    is_other_user = plan.run_as_root != pod.run_as_root
    # All of them or none: a container of a workload has none.
    shared = mounted.shared_env if mounted.shared_env.items() <= plan.env.items() else {}
    source = core.ConfigMapEnvSourceArgs(name=mounted.environment)
    return core.ContainerArgs(
        name=plan.name,
        image=plan.image.name,
        image_pull_policy=plan.image.pull_policy,
        command=list(plan.command) or None,
        args=list(plan.args) or None,
        env_from=[core.EnvFromSourceArgs(config_map_ref=source)] if shared else None,
        env=_env(plan, mounted, shared, service_id),
        resources=_resources(plan.requests),
        # The last output of a courier or a preparation shows why its pod does not start. The last
        # output of the pod that waits for a release shows what is missing.
        termination_message_policy="FallbackToLogsOnError"
        if pod.sets or pod.name == READINESS or plan.name.startswith(NETWORK)
        else None,
        volume_mounts=[
            core.VolumeMountArgs(
                name=volume.name,
                mount_path=volume.path,
                read_only=volume.is_read_only or volume.kind in ("config", "keys") or None,
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


def _env(
    plan: ContainerPlan, mounted: MountedNames, shared: Mapping[str, str], service_id: str
) -> list[core.EnvVarArgs]:
    own = {SERVICE_ID: service_id} if service_id else {}
    values = {name: value for name, value in plan.env.items() if name not in shared} | own
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
    limit, storage, limits = requests.cpu_limit_millis, {}, {}
    if requests.storage_limit_bytes:
        storage = {STORAGE: format_size(requests.storage_bytes)}
        limits = {STORAGE: format_size(requests.storage_limit_bytes)}
    return core.ResourceRequirementsArgs(
        requests={"cpu": format_cpu(requests.cpu_millis), **memory, **gpus, **storage},
        limits={**({"cpu": format_cpu(limit)} if limit else {}), **memory, **gpus, **limits},
    )


def readiness(probe: Probe | None) -> core.ProbeArgs | None:
    """Return a readiness probe with a short period, so a ready pod soon counts as ready. There is
    no liveness probe: a restarted singleton fails its run, and a busy one must not be killed."""
    if probe is None:
        return None
    if probe.path:
        action = core.HTTPGetActionArgs(path=probe.path, port=probe.port)
        return core.ProbeArgs(http_get=action, period_seconds=2, timeout_seconds=5)
    opened = core.TCPSocketActionArgs(port=probe.port)
    return core.ProbeArgs(tcp_socket=opened, period_seconds=2, timeout_seconds=5)


def startup(plan: PodPlan) -> core.ProbeArgs | None:
    """Return a startup probe for a file. Kubernetes stops it once the file exists, which saves CPU:
    each command in a pod uses CPU of the node."""
    if plan.ready_file is None:
        return None
    return core.ProbeArgs(
        exec_=core.ExecActionArgs(command=["cat", plan.ready_file]),
        period_seconds=1,
        timeout_seconds=5,
        # The Deployment fails first, so the pod remains and its log shows the reason.
        failure_threshold=plan.ready_timeout_s + AWAIT_MARGIN_S,
    )
