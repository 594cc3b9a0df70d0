"""Small pods and Deployments as manifests that a `restricted` namespace admits."""

from typing import Any

from aiperf_svc.plan.identity import RUN_LABEL, STACK_LABEL

SECURITY = {"runAsNonRoot": True, "runAsUser": 65_532, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
MEMORY = {"memory": "128Mi"}


def pod(name: str, image: str, program: str = "", **spec: Any) -> dict[str, Any]:
    """Return a pod that runs a Python program. /data is writable."""
    container = spec.pop("container", {})
    return {
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": SECURITY,
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "command": ["python", "-uc", program],
                    "securityContext": CONTAINER_SECURITY,
                    "resources": {"requests": {"cpu": "10m", **MEMORY}, "limits": MEMORY},
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    **container,
                }
            ],
            "volumes": [{"name": "data", "emptyDir": {}}],
            **spec,
        },
    }


def of_stack(manifest: dict[str, Any], stack: str) -> dict[str, Any]:
    """Return the object with the labels of a run of the stack."""
    metadata = manifest["metadata"]
    labels = {**metadata.get("labels", {}), STACK_LABEL: stack, RUN_LABEL: "of-the-test"}
    return {**manifest, "metadata": {**metadata, "labels": labels}}


def deployment(manifest: dict[str, Any], stack: str) -> dict[str, Any]:
    """Return a Deployment of one such pod, both with the stack's label."""
    template = of_stack(manifest, stack)
    name = template["metadata"].pop("name")
    return of_stack(
        {
            "metadata": {"name": name},
            "spec": {"selector": {"matchLabels": {"app": name}}, "template": template},
        },
        stack,
    )
