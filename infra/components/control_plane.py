"""The single services: five pods with names, or one."""

from dataclasses import dataclass

import pulumi

from aiperf_svc.plan.pods import PodPlan
from components.place import Place
from components.pods import MountedNames, make_deployment, make_service


@dataclass(frozen=True, kw_only=True)
class ControlPlaneArgs:
    """The single services and their surroundings."""

    pods: tuple[PodPlan, ...]
    place: Place
    base: Place
    """For what has no pods."""
    mounted: MountedNames


class ControlPlane(pulumi.ComponentResource):
    """Services first, all Deployments at once after them: no pod waits for another to be ready."""

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
