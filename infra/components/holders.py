"""Refuses to change a stack that somebody else works on, also for plain `pulumi up`."""

import asyncio
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pulumi

from aiperf_svc.adapters.cluster.api.connection import connect
from aiperf_svc.adapters.cluster.ownership import HOLDER, holder_of
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.plan.stack import StackPlan
from components.settings import Cluster


def refuse_if_held(
    plan: StackPlan, cluster: Cluster, environ: Mapping[str, str] = os.environ
) -> None:
    """Raise RunError if a process works on a stack of this name. A cluster that does not respond is
    left to the provider, which reports it. `aiperf-svc run` has looked before it called Pulumi."""
    if HOLDER in environ or cluster.render_to or pulumi.runtime.is_dry_run():
        return
    wanted = plan.config.deployment.namespace

    async def look() -> str:
        async with connect(kubeconfig=cluster.kubeconfig, context=cluster.context) as api:
            return await holder_of(
                api,
                plan.identity.stack,
                namespace=wanted.name if wanted.mode == "existing" else None,
            )

    try:
        # Pulumi's own event loop runs in this thread.
        with ThreadPoolExecutor(1) as thread:
            held = thread.submit(asyncio.run, look()).result()
    except EnvironmentProblem:
        return
    if held:
        raise pulumi.RunError(f"{held}; wait for it. Nothing was changed")
