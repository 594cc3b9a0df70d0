"""Settings of the program: the stack's configuration and the cluster to use, unless another process
works on the stack there."""

import asyncio
import functools
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pulumi

import aiperf_svc
from aiperf_svc.adapters.cluster.api.connection import connect
from aiperf_svc.adapters.cluster.ownership import HOLDER, holder_of, owner_name
from aiperf_svc.adapters.pulumi.plan_file import PLAN, read_plan
from aiperf_svc.adapters.pulumi.rendering import render_release
from aiperf_svc.config.load_config import chosen_target
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.plan.stack import StackPlan, StackSettings
from aiperf_svc.workloads.previews.changes import Comparison
from aiperf_svc.workloads.previews.summary import as_text
from aiperf_svc.workloads.registry import parse_benchmark
from aiperf_svc.workloads.stacks import plan_stack

PROVIDER_VERSION = "4.18.1"
"""Version of Pulumi's Kubernetes provider, with which all tests on clusters run."""


_COPY = (
    "the Kubernetes provider writes copies of the kubeconfig, with the client's key, to "
    "{folder}/kubeconfig<number> and leaves them there; it writes none if KUBECONFIG and "
    "aiperf:kubeconfig are not set and ~/.kube/config is used; docs/stacks.md has the command that "
    "removes them"
)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The cluster to use. The state holds only the path of the kubeconfig, never its content."""

    kubeconfig: str | None
    """Path of the kubeconfig. None: `KUBECONFIG`, or the default path."""
    context: str | None
    identifier: str | None
    """Identifier of the cluster. The program refuses another cluster with this stack's state."""
    provider_version: str
    """Version of the provider's plugin, which the CLI downloads if it is missing."""
    render_to: str | None
    """Write manifests into this folder instead of talking to a cluster."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the components."""

    plan: StackPlan
    owner: str
    """Who makes the stack: `user@host`, or what AIPERF_OWNER names."""
    cluster: Cluster
    secrets: Mapping[str, Mapping[str, pulumi.Output[str]]]
    """Maps the name of a Secret to those values of the stack's configuration that the plan
    names."""
    warnings: tuple[str, ...] = ()
    summary: str = ""
    """What a reviewer needs of the plan; empty if the runner has shown it."""


def read_settings(config: pulumi.Config, environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings of this stack. Raises RunError with one message and no traceback.

    `AIPERF_IMAGE`, `AIPERF_WORKLOAD_IMAGE`, `AIPERF_CONTEXT`, `AIPERF_CLUSTER_IDENTIFIER`,
    `AIPERF_OWNER` and `AIPERF_RENDER_TO` belong to a machine or a build rather than to a committed
    file, so the environment may set them.
    """
    if pulumi.runtime.is_config_secret(f"{config.name}:benchmark"):
        raise pulumi.RunError(
            "aiperf:benchmark holds a `secure:` value, which would be shown in clear; keep the "
            "target's key under a name of its own: pulumi config set --secret aiperf:targetApiKey"
        )
    kubeconfig = config.get("kubeconfig")
    if kubeconfig and "\n" in kubeconfig:
        raise pulumi.RunError(
            "aiperf:kubeconfig holds the file's content, which would be kept in the state in "
            "clear; expected its path"
        )
    if config.get("clusters"):
        raise pulumi.RunError(
            "aiperf:clusters names several clusters, and `pulumi` makes one stack in one of them; "
            "`aiperf-svc run` makes a stack in each"
        )
    try:
        plan = _plan(config, environ)
    except (ConfigError, EnvironmentProblem) as error:
        raise pulumi.RunError(str(error)) from error
    # The runner has shown the plan, and removes what the provider leaves.
    by_runner = HOLDER in environ
    has_copy = not by_runner and bool(kubeconfig or environ.get("KUBECONFIG"))
    return Settings(
        plan=plan,
        owner=owner_name(environ),
        warnings=(_COPY.format(folder=tempfile.gettempdir()),) if has_copy else (),
        summary="" if by_runner else as_text(plan, Comparison(base="")),
        cluster=Cluster(
            kubeconfig=kubeconfig,
            context=config.get("context") or environ.get("AIPERF_CONTEXT"),
            identifier=config.get("clusterIdentifier") or environ.get("AIPERF_CLUSTER_IDENTIFIER"),
            provider_version=config.get("providerVersion") or PROVIDER_VERSION,
            render_to=environ.get("AIPERF_RENDER_TO"),
        ),
        secrets={
            name: {key: config.require_secret(key) for key in keys}
            for name, keys in plan.secret_keys.items()
        },
    )


def _project_folder() -> Path:
    """Return the folder of the project: Pulumi runs the program in it or in one below it."""
    here = Path.cwd()
    return next((each for each in (here, *here.parents) if (each / "Pulumi.yaml").is_file()), here)


def _plan(config: pulumi.Config, environ: Mapping[str, str]) -> StackPlan:
    """Return the plan that the runner has made; without a runner, make it."""
    if PLAN in environ:
        return read_plan(Path(environ[PLAN]))
    benchmark = parse_benchmark(config.require_object("benchmark"), "aiperf:benchmark")
    settings = StackSettings(
        stack=pulumi.get_stack(),
        version=aiperf_svc.__version__,
        generation=config.get_int("generation") or 1,
        image=environ.get("AIPERF_IMAGE", ""),
        workload_image=environ.get("AIPERF_WORKLOAD_IMAGE", ""),
        render=functools.partial(render_release, base=_project_folder(), environ=environ),
    )
    target, shape = config.get("target") or "", config.get_int("shape") or 1
    return plan_stack(chosen_target(benchmark, target), settings, shape=shape)


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
