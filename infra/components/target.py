"""The server under test, if the stack deploys it."""

from dataclasses import dataclass

import pulumi

from aiperf_svc.plan.pods import PodPlan
from components.containers import MountedNames
from components.place import Place
from components.pods import make_deployment, make_service


@dataclass(frozen=True, kw_only=True)
class TargetArgs:
    """The server's pod, and the places to create it in."""

    pod: PodPlan
    place: Place
    base: Place
    """Place for objects without pods."""
    mounted: MountedNames


class Target(pulumi.ComponentResource):
    """Creates the target's Service and Deployment, and awaits that the server is ready."""

    def __init__(
        self, name: str, args: TargetArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("aiperf:stack:Target", name, None, opts)
        service = make_service(args.pod, args.base, self)
        self.deployment = make_deployment(
            args.pod, args.place.depends_on(service), args.mounted, self, is_replaced=True
        )
        self.register_outputs({})
