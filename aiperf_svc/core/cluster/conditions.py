"""The state of nodes and pods, as their objects have it. Uses the standard library only."""

from aiperf_svc.domain.json_objects import Json


def has_condition(found: Json, name: str) -> bool:
    """Return whether a condition of an object is true."""
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(each["type"] == name and each["status"] == "True" for each in conditions)


def is_ready(found: Json) -> bool:
    return has_condition(found, "Ready")


def has_ended(pod: Json) -> bool:
    """Return whether all containers of a pod have ended for good."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
