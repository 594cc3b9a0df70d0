"""Finds the pod behind a Service."""

from typing import Any

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused

ENDED = ("Succeeded", "Failed")


async def pod_of_service(cluster: Cluster, namespace: str, service: str) -> str:
    """Return the name of the pod to talk to, preferably a running one. Raises Refused,
    Unreachable."""
    place = f"/api/v1/namespaces/{namespace}"
    found = await cluster.get(f"{place}/services/{service}")
    selector = found["spec"].get("selector") or {}
    wanted = ",".join(f"{key}={value}" for key, value in selector.items())
    pods = (await cluster.get(f"{place}/pods", labelSelector=wanted))["items"] if wanted else []
    candidates = sorted(filter(_may_respond, pods), key=_rank)
    if not candidates:
        raise Refused(
            f"no pod is behind service {service} in namespace {namespace}",
            status=404,
            reason="NotFound",
        )
    return str(candidates[-1]["metadata"]["name"])


def _may_respond(pod: dict[str, Any]) -> bool:
    is_going = "deletionTimestamp" in pod["metadata"]
    return not is_going and pod.get("status", {}).get("phase") not in ENDED


def _rank(pod: dict[str, Any]) -> tuple[bool, str]:
    running = pod.get("status", {}).get("phase") == "Running"
    return running, pod["metadata"]["creationTimestamp"]
