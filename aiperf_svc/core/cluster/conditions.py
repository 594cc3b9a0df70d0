"""The state of nodes and pods, read from their objects. Uses the standard library only."""

from aiperf_svc.domain.json_objects import Json

INDEX_KEY = "batch.kubernetes.io/job-completion-index"


def conditions_of(found: Json) -> dict[str, Json]:
    """Return the conditions of an object by their types."""
    conditions = (found.get("status") or {}).get("conditions") or ()
    return {each["type"]: each for each in conditions}


def has_condition(found: Json, name: str) -> bool:
    """Return whether a condition of an object is true."""
    return conditions_of(found).get(name, {}).get("status") == "True"


def containers_of(pod: Json) -> list[Json]:
    """Return the states of the containers of a pod, without init containers."""
    return (pod.get("status") or {}).get("containerStatuses") or []


def all_containers_of(pod: Json) -> list[Json]:
    """Return the states of all containers of a pod, init containers first."""
    return [*((pod.get("status") or {}).get("initContainerStatuses") or ()), *containers_of(pod)]


def is_ready(found: Json) -> bool:
    return has_condition(found, "Ready")


def has_ended(pod: Json) -> bool:
    """Return whether all containers of a pod have ended for good."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def index_of(pod: Json) -> int:
    """Return the index of its Job that a pod runs."""
    metadata = pod["metadata"]
    found = metadata["labels"].get(INDEX_KEY) or metadata.get("annotations", {}).get(INDEX_KEY)
    return int(found)
