"""The worker pool: workers, or the ranks of a workload, and record processors."""

from dataclasses import dataclass

import pulumi

from aiperf_svc.plan.pods import PodPlan
from components.containers import MountedNames
from components.place import Place
from components.pods import make_deployment, make_service
from components.stateful_pods import make_shared_claim, make_stateful_sets


@dataclass(frozen=True, kw_only=True)
class WorkerPoolArgs:
    """The pods of the pool, and the places to create them in."""

    pods: tuple[PodPlan, ...]
    place: Place
    base: Place
    """Place for objects without pods."""
    mounted: MountedNames


class WorkerPool(pulumi.ComponentResource):
    """Creates one Deployment for each kind of pod, and the StatefulSets of pods with stable names.
    Pods connect to the control plane by the names of its Services."""

    def __init__(
        self, name: str, args: WorkerPoolArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("aiperf:stack:WorkerPool", name, None, opts)
        for pod in args.pods:
            if not pod.sets:
                make_deployment(pod, args.place, args.mounted, self)
                continue
            needed = (
                make_service(pod, args.base, self),
                *make_shared_claim(pod, args.base, self),
            )
            place = args.place.depends_on(*needed)
            make_stateful_sets(pod, place, args.mounted, self)
        self.register_outputs({})
