"""The control plane: the services that run once each, in five named pods or in one."""

from dataclasses import dataclass

import pulumi

from aiperf_svc.plan.pods import PodPlan
from components.containers import MountedNames
from components.place import Place
from components.pods import make_deployment, make_service


@dataclass(frozen=True, kw_only=True)
class ControlPlaneArgs:
    """The pods of the control plane, and the places to create them in."""

    pods: tuple[PodPlan, ...]
    place: Place
    base: Place
    """Place for objects without pods."""
    mounted: MountedNames


class ControlPlane(pulumi.ComponentResource):
    """Creates the Services, then all Deployments at once, so no pod waits for another to be
    ready."""

    def __init__(
        self, name: str, args: ControlPlaneArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("aiperf:stack:ControlPlane", name, None, opts)
        self.services = {
            pod.name: make_service(pod, args.base, self) for pod in args.pods if pod.has_service
        }
        place = args.place.depends_on(*self.services.values())
        self.deployments = {
            pod.name: make_deployment(pod, place, args.mounted, self) for pod in args.pods
        }
        self.register_outputs({})
