"""The pods of a stack: the server under test, the control plane and the worker pool, or the Jobs of
an experiment and their collector."""

from dataclasses import dataclass, replace

import pulumi
import pulumi_kubernetes as k8s

from aiperf_svc.plan.identity import ANCHOR
from aiperf_svc.plan.index_pods import COLLECTOR
from aiperf_svc.plan.pods import JobPlan, PodPlan
from aiperf_svc.stack.access import make_account, rule
from aiperf_svc.stack.containers import MountedNames
from aiperf_svc.stack.pods import (
    make_deployment,
    make_job,
    make_service,
    make_shared_claim,
    make_stateful_sets,
)
from aiperf_svc.stack.scope import Scope


@dataclass(frozen=True, kw_only=True)
class PodsArgs:
    """The pods, and the scopes to create them in."""

    pods: tuple[PodPlan, ...]
    scope: Scope
    base: Scope
    """Scope for objects without pods."""
    mounted: MountedNames


class Target(pulumi.ComponentResource):
    """Creates the target's Service and Deployment, and waits until the server is ready."""

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
    """The services that run once each, in five named pods or in one. Creates the Services first,
    then all Deployments at once, so no pod waits for another to be ready."""

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
    """Workers or the ranks of a tool, and record processors. Creates one Deployment for each kind
    of pod, and StatefulSets for pods with stable names. Pods connect to the control plane by the
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


@dataclass(frozen=True, kw_only=True)
class FanOutArgs:
    """The collector and the Jobs, and the scopes to create them in."""

    collector: PodPlan
    jobs: tuple[JobPlan, ...]
    scope: Scope
    base: Scope
    """Scope for objects without pods."""
    mounted: MountedNames


class FanOut(pulumi.ComponentResource):
    """Creates the collector with its Role, and the Jobs after the collector is ready."""

    collector: k8s.apps.v1.Deployment

    def __init__(
        self, name: str, args: FanOutArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("aiperf:stack:FanOut", name, None, opts)
        base = args.base
        needed = make_account(COLLECTOR, _rules(args), base, self)
        service = make_service(args.collector, base, self)
        self.collector = make_deployment(
            args.collector,
            args.scope.depends_on(*needed, service),
            replace(args.mounted, account=base.identity.name(COLLECTOR)),
            self,
            is_replaced=True,
        )
        after = args.scope.depends_on(self.collector)
        for job in args.jobs:
            make_job(job, after, args.mounted, self)
        self.register_outputs({})


def _rules(args: FanOutArgs) -> list[k8s.rbac.v1.PolicyRuleArgs]:
    """Return the rules that allow starting and stopping these Jobs, and reading why their pods do
    not run and when the stack deletes itself."""
    names = args.base.identity.name
    jobs = k8s.rbac.v1.PolicyRuleArgs(
        api_groups=["batch"],
        resources=["jobs"],
        resource_names=[names(job.pod.name) for job in args.jobs],
        verbs=["get", "patch"],
    )
    return [
        jobs,
        rule("", "pods", "list"),
        rule("", "configmaps", "get", name=names(ANCHOR)),
    ]
