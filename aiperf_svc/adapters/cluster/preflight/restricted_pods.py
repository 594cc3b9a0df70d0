"""The manifest of a pod that checks something: allowed by Pod Security `restricted`, without a
token, gone by itself after a while."""

from collections.abc import Mapping, Sequence
from typing import Any

from aiperf_svc.config.placement import Placement
from aiperf_svc.config.units import format_cpu, format_size
from aiperf_svc.plan.identity import TTL_ANNOTATION
from aiperf_svc.plan.pods import ImagePlan, Requests

USER = 65_532
"""User of the pod, the same as in a stack's own pods."""
Json = dict[str, Any]


def restricted_pod(
    name: str,
    containers: Sequence[Json],
    *,
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    image: ImagePlan,
    placement: Placement,
    deadline_s: int,
) -> Json:
    """Return the manifest of a pod that runs once."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {**labels, "sidecar.istio.io/inject": "false"},
            # `gc` removes what a killed runner could not.
            "annotations": {
                **(annotations or {}),
                "linkerd.io/inject": "disabled",
                TTL_ANNOTATION: str(deadline_s),
            },
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": deadline_s,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "imagePullSecrets": [{"name": each} for each in image.pull_secrets],
            "nodeSelector": placement.node_selector,
            "tolerations": [
                {k: v for k, v in each.model_dump().items() if v} for each in placement.tolerations
            ],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": list(containers),
        },
    }


def restricted_container(
    name: str, command: Sequence[str], *, image: ImagePlan, requests: Requests
) -> Json:
    """Return a container whose last words are its message if it fails."""
    memory, limit = {"memory": format_size(requests.memory_bytes)}, requests.cpu_limit_millis
    disk, most = format_size(requests.storage_bytes), format_size(requests.storage_limit_bytes)
    return {
        "name": name,
        "image": image.name,
        "imagePullPolicy": image.pull_policy,
        "command": list(command),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {
            "requests": {
                "cpu": format_cpu(requests.cpu_millis),
                **memory,
                "ephemeral-storage": disk,
            },
            "limits": {
                **({"cpu": format_cpu(limit)} if limit else {}),
                **memory,
                "ephemeral-storage": most,
            },
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
