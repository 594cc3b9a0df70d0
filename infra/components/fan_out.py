"""The Jobs of an experiment, and the collector that runs them."""

from dataclasses import dataclass, replace

import pulumi
import pulumi_kubernetes as k8s

from aiperf_svc.plan.identity import ANCHOR
from aiperf_svc.plan.index_pods import COLLECTOR
from aiperf_svc.plan.pods import JobPlan, PodPlan
from components.accounts import make_account, rule
from components.containers import MountedNames
from components.pods import make_deployment, make_job, make_service
from components.scope import Scope


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
    """Creates the collector with its Role, and the Jobs when it is ready to start them."""

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
    """Rules that allow starting and stopping these Jobs, and seeing why their pods do not run and
    when the stack deletes itself."""
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
