"""The server under test, when the stack brings its own."""

from dataclasses import dataclass

import pulumi

from aiperf_svc.plan.pods import PodPlan
from components.place import Place
from components.pods import MountedNames, make_deployment, make_service


@dataclass(frozen=True, kw_only=True)
class TargetArgs:
    """The server and its surroundings."""

    pod: PodPlan
    place: Place
    base: Place
    """For what has no pods."""
    mounted: MountedNames


class Target(pulumi.ComponentResource):
    """The target's Service and Deployment, awaited until the server can work."""

    def __init__(
        self, name: str, args: TargetArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("aiperf:stack:Target", name, None, opts)
        service = make_service(args.pod, args.base, self)
        self.deployment = make_deployment(
            args.pod, args.place.depends_on(service), args.mounted, self
        )
        self.register_outputs({})
