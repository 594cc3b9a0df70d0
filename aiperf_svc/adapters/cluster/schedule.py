"""The CronJob that runs a stack on a schedule, and the objects that its pod needs.

The pod is the runner: it has the stack file, the state in a bucket, and the rights that preflight
requires. No object has the stack's label, so neither the leak check nor `gc` counts it as part of
the stack.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.api.objects import find_object
from aiperf_svc.adapters.cluster.preflight.admission import path_of
from aiperf_svc.adapters.cluster.preflight.probe_pods import CONTAINER_SECURITY, POD_SECURITY
from aiperf_svc.adapters.cluster.preflight.rights import (
    Right,
    granted_rights,
    namespace_of,
    needed_rights,
    port_forward_rights,
    probe_rights,
    proxy_rights,
    watch_rights,
)
from aiperf_svc.core.cluster.conditions import has_ended
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.lifetime import seconds
from aiperf_svc.plan.pods import KEEP_ANNOTATIONS, OPT_OUT_ANNOTATIONS, OPT_OUT_LABELS, USER
from aiperf_svc.plan.queue import WORKLOADS
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.plan.target import watched_pods

POD_USER = re.compile(r"pod\.(?P<namespace>[a-z0-9-]+)\.(?P<uid>[0-9a-f-]{36})")
"""User name of a runner in a pod. Pulumi writes it into its locks, so a later runner can ask the
API server whether the pod that holds a lock still exists."""
FOLDER = "/etc/aiperf-stack"
WORK = "/work"
"""Writable folder of the runner's pod: home, Pulumi's home, and results before the upload."""
LATE_S = 600
"""Maximum delay of a start. A start that would be later is skipped."""
MARGIN_S = 900
"""Time for preflight, collection and removal beyond the stacks' time to live."""
GRACE_MARGIN_S = 120
"""Time for the leak check beyond the removal, after SIGTERM."""
HISTORY = 3
"""Number of ended Jobs to keep, with the logs of their pods."""
FIELD = re.compile(r"[0-9*,/?-]+|[A-Za-z]{3}([,-][A-Za-z]{3})*")
CRON_FIELDS = {"minute": 59, "hour": 23, "day": 31, "month": 12, "weekday": 6}
"""The fields of a CronJob's schedule and their largest values. Sunday is 0."""
SCHEMES = ("s3", "gs", "azblob", "http", "https")
"""Backends whose state outlives the pod."""


class Owned(Protocol):
    """A lock of Pulumi's state."""

    @property
    def user(self) -> str:
        """User of the process that holds it."""

    @property
    def host(self) -> str:
        """Name of its machine or pod."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a schedule's manifests besides the plan of the stack."""

    cron: str
    time_zone: str | None
    image: str
    """Image of the runner: `images/runner`."""
    backend: str
    """URL of Pulumi's state."""
    secret: str
    """Secret with the passphrase of the state and the keys of the buckets."""
    namespace: str
    """Namespace of the runner."""
    longest_s: int
    """Longest time until the last stack has removed itself."""
    environ: Mapping[str, str] = {}
    """Further environment variables of the runner, none of them secret."""


def check_cron(text: str) -> None:
    """Raise ConfigError unless a text has the five fields of a CronJob's schedule."""
    fields = text.split()
    if text.startswith("@") and len(fields) == 1:
        return
    if len(fields) != 5 or not all(map(FIELD.fullmatch, fields)):
        raise ConfigError(
            f'--cron: {text!r}: expected five fields, minute hour day month weekday: "0 3 * * *" '
            "is every night at three"
        )
    for field, (name, maximum) in zip(fields, CRON_FIELDS.items(), strict=True):
        above = [each for each in re.findall(r"\d+", field) if int(each) > maximum]
        if above:
            raise ConfigError(f"--cron: {text!r}: {name} {above[0]}: expected at most {maximum}")


def check_backend(url: str) -> None:
    """Raise ConfigError unless the state outlives the runner's pod."""
    if urlsplit(url).scheme not in SCHEMES:
        raise ConfigError(
            f"--state: {url!r}: the pod of the runner has no disk that outlives it; expected a "
            "bucket, such as s3://BUCKET/state, or Pulumi's own service (PULUMI_BACKEND_URL)"
        )


def manifests(plans: Sequence[StackPlan], stack_file: str, schedule: Schedule) -> list[Json]:
    """Return the objects of a schedule, in the order of their creation. `plans` contains the plan
    of the file, which determines the names, then the plans of all its stacks and shapes, whose
    objects may differ. `stack_file` is the file's content. Raises ConfigError if the results would
    be lost with the pod, and for the reasons of `stack_rights`."""
    plan = plans[0]
    if plan.config.artifacts.s3 is None:
        raise ConfigError(
            "artifacts.s3: a scheduled run has no disk that outlives its pod; name a bucket for "
            "the results"
        )
    stack = plan.identity.stack
    name = f"schedule-{stack}"
    labels = {
        **plan.config.deployment.labels,
        "app.kubernetes.io/name": "aiperf-svc",
        "app.kubernetes.io/component": "schedule",
        "app.kubernetes.io/instance": stack,
        "app.kubernetes.io/managed-by": "aiperf-svc",
    }

    def manifest(
        version: str, kind: str, *, name: str = name, is_cluster_wide: bool = False, **rest: Any
    ) -> Json:
        metadata: Json = {"name": name, "labels": labels}
        if plan.config.deployment.annotations:
            metadata["annotations"] = plan.config.deployment.annotations
        if not is_cluster_wide:
            metadata["namespace"] = schedule.namespace
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}

    rbac = "rbac.authorization.k8s.io/v1"
    account = {"kind": "ServiceAccount", "name": name, "namespace": schedule.namespace}

    def binding(role: str, *, is_cluster_wide: bool = False, in_namespace: str = "") -> Json:
        kind = "ClusterRoleBinding" if is_cluster_wide else "RoleBinding"
        reference = {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole" if is_cluster_wide else "Role",
            "name": role,
        }
        found = manifest(
            rbac,
            kind,
            name=role,
            is_cluster_wide=is_cluster_wide,
            roleRef=reference,
            subjects=[account],
        )
        if in_namespace:
            found["metadata"]["namespace"] = in_namespace
        return found

    # Cluster-scoped names contain the namespace: two namespaces may schedule a stack of this name.
    prefix = f"aiperf-{schedule.namespace}-{name}"
    roles: list[Json] = []
    for where, rights in sorted(_by_namespace(plans).items()):
        # In other namespaces, names contain the runner's namespace for the same reason.
        role = name if where == namespace_of(plan) else prefix
        kind = "Role" if where else "ClusterRole"
        granting = manifest(
            rbac, kind, name=role, is_cluster_wide=not where, rules=rules_of(rights)
        )
        if where:
            granting["metadata"]["namespace"] = where
        roles += [granting, binding(role, is_cluster_wide=not where, in_namespace=where)]
    reader = f"{prefix}-reads"
    own_pods = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    return [
        manifest("v1", "ServiceAccount"),
        *roles,
        # To check whether the pods of earlier runners, which hold locks, still exist.
        manifest(rbac, "Role", name=f"{name}-pods", rules=own_pods),
        binding(f"{name}-pods"),
        manifest(rbac, "ClusterRole", name=reader, is_cluster_wide=True, rules=_reads(plan)),
        binding(reader, is_cluster_wide=True),
        manifest("v1", "ConfigMap", data={f"Pulumi.{stack}.yaml": stack_file}),
        manifest("batch/v1", "CronJob", spec=_cron_job(plan, schedule, name, labels)),
    ]


READS: list[Json] = [
    {
        "apiGroups": [""],
        "resources": ["namespaces"],
        "resourceNames": ["kube-system"],
        "verbs": ["get"],
    },
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]},
    {
        "apiGroups": ["scheduling.k8s.io"],
        "resources": ["priorityclasses"],
        "verbs": ["list"],
    },
]
"""Cluster-wide rights: to identify the cluster, and for optional checks of preflight."""


def _reads(plan: StackPlan) -> list[Json]:
    """Return the rules in READS. Add pods of other namespaces if the stack waits for room, and the
    addresses of the API server if the deadline's pod may reach nothing else."""
    deployment, rules = plan.config.deployment, [*READS]
    if deployment.wait_for_room:
        rules.append({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]})
    if deployment.api_server_cidrs or not deployment.network_policies:
        return rules
    return rules + [
        {
            "apiGroups": [group],
            "resources": [resource],
            "resourceNames": ["kubernetes"],
            "verbs": ["get"],
        }
        for group, resource in (("", "services"), ("discovery.k8s.io", "endpointslices"))
    ]


def _by_namespace(plans: Iterable[StackPlan]) -> dict[str, list[Right]]:
    """Return the rights by the namespace of the Role that grants them. The empty key stands for a
    ClusterRole. It also covers the stack's own namespace, which does not exist before the run."""
    found: defaultdict[str, list[Right]] = defaultdict(list)
    for plan in plans:
        is_guest, own = plan.config.deployment.namespace.mode == "existing", namespace_of(plan)
        for right in stack_rights(plan):
            is_made = right.namespace == own and not is_guest
            found["" if is_made else right.namespace].append(right)
    return found


def stack_rights(plan: StackPlan) -> tuple[Right, ...]:
    """Return the rights to create, watch, measure and remove the stack. Raises ConfigError if the
    pods to watch are unknown."""
    namespace, config = namespace_of(plan), plan.config.inference
    watched = None
    if config is not None and config.scaling is not None:
        watched = watched_pods(config, plan.identity, namespace)
    looks = [Right("", each, "list", namespace) for each in ("resourcequotas", "limitranges")]
    if plan.queue is not None:
        looks.append(Right(WORKLOADS[0], "localqueues", "list", namespace))
    return (
        Right("", "namespaces", "get", namespace),
        *needed_rights(plan),
        *granted_rights(plan),
        *port_forward_rights(plan),
        *proxy_rights(plan),
        *probe_rights(namespace),
        *looks,
        *(watch_rights(watched.namespace) if watched is not None else ()),
    )


def rules_of(rights: Iterable[Right]) -> list[Json]:
    """Return the rules of a Role with these rights. Resources of one group with the same verbs
    share a rule."""
    verbs: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for right in rights:
        verbs[right.group, right.resource].add(right.verb)
    shared: defaultdict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for (group, resource), some in sorted(verbs.items()):
        shared[group, tuple(sorted(some))].append(resource)
    return [
        {"apiGroups": [group], "resources": resources, "verbs": list(some)}
        for (group, some), resources in shared.items()
    ]


def _cron_job(plan: StackPlan, schedule: Schedule, name: str, labels: Mapping[str, str]) -> Json:
    deployment = plan.config.deployment
    removal_s = seconds(deployment.delete_timeout)
    pull_secrets = [{"name": each} for each in deployment.image.pull_secrets]
    pod: Json = {
        "serviceAccountName": name,
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        # After SIGTERM the runner removes the stack.
        "terminationGracePeriodSeconds": removal_s + GRACE_MARGIN_S,
        "securityContext": {**POD_SECURITY, "fsGroup": USER},
        **({"imagePullSecrets": pull_secrets} if pull_secrets else {}),
        "containers": [_runner_container(plan, schedule, name)],
        "volumes": [
            {"name": "stack", "configMap": {"name": name}},
            {"name": "work", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    zone = {"timeZone": schedule.time_zone} if schedule.time_zone else {}
    # With a mesh sidecar the Job would not end, and a removed node would end the run.
    metadata = {
        "labels": {**labels, **OPT_OUT_LABELS},
        "annotations": {**deployment.annotations, **OPT_OUT_ANNOTATIONS, **KEEP_ANNOTATIONS},
    }
    return {
        "schedule": schedule.cron,
        **zone,
        # Two runs at a time would compete for the same pods and nodes.
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": LATE_S,
        "successfulJobsHistoryLimit": HISTORY,
        "failedJobsHistoryLimit": HISTORY,
        "jobTemplate": {
            # Copies, because YAML would replace repeated objects by aliases.
            "metadata": {"labels": dict(labels), "annotations": dict(deployment.annotations)},
            "spec": {
                # A failed run is not repeated: the next scheduled run is the retry.
                "backoffLimit": 0,
                "activeDeadlineSeconds": schedule.longest_s + removal_s + MARGIN_S,
                "template": {"metadata": metadata, "spec": pod},
            },
        },
    }


def _runner_container(plan: StackPlan, schedule: Schedule, name: str) -> Json:
    env: list[Json] = [
        {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        # Without an entry in the passwd file, Pulumi takes the user name for its locks from here.
        {"name": "USER", "value": f"pod.{schedule.namespace}.$(POD_UID)"},
        {"name": "AIPERF_OWNER", "value": f"cronjob.{schedule.namespace}.{name}"},
        {"name": "HOME", "value": WORK},
        {"name": "PULUMI_HOME", "value": f"{WORK}/.pulumi"},
        {"name": "PULUMI_BACKEND_URL", "value": schedule.backend},
        {"name": "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION", "value": "true"},
        {"name": "PULUMI_SKIP_UPDATE_CHECK", "value": "true"},
        *({"name": key, "value": value} for key, value in schedule.environ.items()),
    ]
    return {
        "name": "runner",
        "image": schedule.image,
        "imagePullPolicy": plan.config.deployment.image.pull_policy,
        "args": ["run", f"{FOLDER}/Pulumi.{plan.identity.stack}.yaml", "--yes"],
        "workingDir": WORK,
        "env": env,
        "envFrom": [{"secretRef": {"name": schedule.secret}}],
        "resources": {
            "requests": {"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "1Gi"},
            "limits": {"memory": "2Gi", "ephemeral-storage": "20Gi"},
        },
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            {"name": "stack", "mountPath": FOLDER, "readOnly": True},
            {"name": "work", "mountPath": WORK},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


async def apply(cluster: Cluster, objects: Sequence[Json]) -> list[str]:
    """Create or update the objects, after a dry run of all of them. Return a line for each. Raises
    EnvironmentProblem if the cluster refuses any; then nothing is changed."""
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for each in objects:
        try:
            await _apply(cluster, each, dryRun="All")
        except Refused as error:
            reasons[str(error)].append(each["kind"])
    if reasons:
        lines = (f"{', '.join(kinds)}: {why}" for why, kinds in reasons.items())
        raise EnvironmentProblem(
            f"the schedule is refused, nothing was changed: {'; '.join(lines)}"
        )
    return [await _apply(cluster, each) for each in objects]


async def _apply(cluster: Cluster, each: Json, **params: str) -> str:
    name = each["metadata"]["name"]
    path = path_of(each, each["metadata"].get("namespace"))
    is_new = await cluster.apply(f"{path}/{name}", each, **params)
    return f"{'created' if is_new else 'changed'} {each['kind']} {name}"


async def is_of_ended_pod(cluster: Cluster, lock: Owned) -> bool:
    """Return whether a lock belongs to a runner whose pod has ended or is gone. False if the lock
    belongs to another process, or the pod may not be read. Raises Unreachable."""
    found = POD_USER.fullmatch(lock.user)
    if found is None:
        return False
    path = f"/api/v1/namespaces/{found['namespace']}/pods/{lock.host}"
    try:
        pod = await find_object(cluster, path)
    except Refused:
        return False
    return pod is None or has_ended(pod) or pod["metadata"]["uid"] != found["uid"]
