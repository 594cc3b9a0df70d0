"""The worker pool: Deployments of workers and of record processors."""

from dataclasses import dataclass

import pulumi

from aiperf_svc.plan.pods import PodPlan
from components.place import Place
from components.pods import MountedNames, make_deployment


@dataclass(frozen=True, kw_only=True)
class WorkerPoolArgs:
    """The pods of the pool, and the place to create them in."""

    pods: tuple[PodPlan, ...]
    place: Place
    mounted: MountedNames


class WorkerPool(pulumi.ComponentResource):
    """Creates one Deployment for each kind of pod. Pods connect to the control plane by the names
    of its Services."""

    def __init__(
        self, name: str, args: WorkerPoolArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("aiperf:stack:WorkerPool", name, None, opts)
        for pod in args.pods:
            make_deployment(pod, args.place, args.mounted, self)
        self.register_outputs({})
