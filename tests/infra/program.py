"""What tests of the Pulumi program render, and look for in what was rendered."""

from functools import cache
from typing import Any

from recording import Manifest, Recording, record

from aiperf_svc.plan.identity import COMPONENT_LABEL

STACK = "bench"


def benchmark(**deployment: Any) -> dict[str, Any]:
    """A short load on a mock server, with these keys of `deployment`."""
    return {
        "endpoint": {"url": "http://target", "model": "m"},
        "load": {"concurrency": 1000, "duration": "10s", "grace_period": "5s"},
        "deployment": {"target": {"kind": "mock"}, **deployment},
    }


def recorded(**deployment: Any) -> Recording:
    """The stack of that load."""
    return record(STACK, {"aiperf:benchmark": benchmark(**deployment)})


@cache
def usual_stack() -> Recording:
    """The stack with nothing but the default."""
    return recorded()


def pod_templates(recording: Recording) -> list[Manifest]:
    """The pods of all Deployments."""
    return [m["spec"]["template"] for m in recording.manifests if m["kind"] == "Deployment"]


def component_of(template: Manifest) -> str:
    """The component of a pod."""
    name: str = template["metadata"]["labels"][COMPONENT_LABEL]
    return name


def environment_of(template: Manifest) -> dict[str, dict[str, Any]]:
    """Variables of the one container of a pod, by name."""
    (container,) = template["spec"]["containers"]
    return {each["name"]: each for each in container.get("env", ())}


def config_file(recording: Recording) -> str:
    """The config that the services read."""
    config = next(m for m in recording.manifests if "config.yaml" in m.get("data", {}))
    text: str = config["data"]["config.yaml"]
    return text


def kinds_and_names(recording: Recording, urns: set[str]) -> set[tuple[str, str]]:
    """Kinds of those of these resources that are Kubernetes objects, and names in the program."""
    made = [recording.resources[urn] for urn in urns if urn in recording.objects]
    return {(one.type.rpartition(":")[2], one.name) for one in made}
