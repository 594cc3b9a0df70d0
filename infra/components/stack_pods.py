"""The pods of a stack: the server under test, the control plane, and the worker pool."""

from dataclasses import dataclass

import pulumi

from aiperf_svc.plan.pods import PodPlan
from components.containers import MountedNames
from components.pods import make_deployment, make_service
from components.scope import Scope
from components.stateful_pods import make_shared_claim, make_stateful_sets


@dataclass(frozen=True, kw_only=True)
class PodsArgs:
    """The pods, and the scopes to create them in."""

    pods: tuple[PodPlan, ...]
    scope: Scope
    base: Scope
    """Scope for objects without pods."""
    mounted: MountedNames


class Target(pulumi.ComponentResource):
    """Creates the target's Service and Deployment, and awaits that the server is ready."""

    def __init__(
        self, name: str, args: PodsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("aiperf:stack:Target", name, None, opts)
        (pod,) = args.pods
        service = make_service(pod, args.base, self)
        self.deployment = make_deployment(
            pod, args.scope.depends_on(service), args.mounted, self, is_replaced=True
        )
        self.register_outputs({})


class ControlPlane(pulumi.ComponentResource):
    """The services that run once each, in five named pods or in one. Creates the Services, then all
    Deployments at once, so that no pod waits for another to be ready."""

    def __init__(
        self, name: str, args: PodsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("aiperf:stack:ControlPlane", name, None, opts)
        self.services = {
            pod.name: make_service(pod, args.base, self) for pod in args.pods if pod.has_service
        }
        scope = args.scope.depends_on(*self.services.values())
        self.deployments = {
            pod.name: make_deployment(pod, scope, args.mounted, self) for pod in args.pods
        }
        self.register_outputs({})


class WorkerPool(pulumi.ComponentResource):
    """Workers, or the ranks of a tool, and record processors. Creates one Deployment for each kind
    of pod, and the StatefulSets of pods with stable names. Pods connect to the control plane by the
    names of its Services."""

    def __init__(
        self, name: str, args: PodsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("aiperf:stack:WorkerPool", name, None, opts)
        for pod in args.pods:
            if not pod.sets:
                make_deployment(pod, args.scope, args.mounted, self)
                continue
            needed = (
                make_service(pod, args.base, self),
                *make_shared_claim(pod, args.base, self),
            )
            scope = args.scope.depends_on(*needed)
            make_stateful_sets(pod, scope, args.mounted, self)
        self.register_outputs({})
