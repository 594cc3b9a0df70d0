"""Settings of the program: the stack's configuration and the cluster. Refuses a stack name that
another process or another state uses in the cluster."""

import asyncio
import functools
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi

import aiperf_svc
from aiperf_svc.adapters.cluster.api.connection import Refused, connect, retried
from aiperf_svc.adapters.cluster.ownership import (
    HOLDER,
    Users,
    other_state_text,
    owner_name,
    users_of,
)
from aiperf_svc.adapters.cluster.preflight.rights import made_types
from aiperf_svc.adapters.cluster.teardown.event_undo import POLL_S, RETRY_S
from aiperf_svc.adapters.cluster.teardown.inventory import (
    Inventory,
    list_cluster_scoped,
    refuse_taken_outside,
)
from aiperf_svc.adapters.cluster.teardown.leaks import refuse_unread
from aiperf_svc.adapters.pulumi.deployed import made_roots, namespaces_in
from aiperf_svc.adapters.pulumi.plan_file import PLAN, read_plan
from aiperf_svc.adapters.pulumi.rendering import render_release
from aiperf_svc.config.load_config import chosen_target
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.stack import StackPlan, StackSettings
from aiperf_svc.workloads.previews.changes import StackChanges
from aiperf_svc.workloads.previews.summary import as_text
from aiperf_svc.workloads.registry import parse_benchmark
from aiperf_svc.workloads.stacks import plan_stack

PROVIDER_VERSION = "4.18.1"
"""Version of Pulumi's Kubernetes provider that all cluster tests use."""
READ_STATE = "pulumi:pulumi:readStackResourceOutputs"
"""Function of the engine that returns the types and outputs of all resources in a stack's state.
The SDK for Node offers it as `listResourceOutputs`. A StackReference returns only the stack's
outputs, which are missing after a failed `up`."""

_COPY = (
    "the Kubernetes provider writes copies of the kubeconfig, with the client's key, to "
    "{folder}/kubeconfig<number> and leaves them there; it writes none if KUBECONFIG and "
    "aiperf:kubeconfig are not set and ~/.kube/config is used; docs/stacks.md has the command that "
    "removes them"
)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The cluster to use. The state contains a kubeconfig only if it is encrypted."""

    kubeconfig: pulumi.Input[str] | None
    """Path of the kubeconfig, or its content as a secret Output. None: `KUBECONFIG` or default."""
    context: str | None
    identifier: str | None
    """Identifier of the cluster. The program refuses another cluster with this stack's state."""
    provider_version: str
    """Version of the provider's plugin, which the CLI downloads if it is missing."""
    render_to: str | None
    """Folder for manifests, which are written there instead of contacting a cluster."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the components."""

    plan: StackPlan
    owner: str
    """Owner of the stack: `user@host`, or the value of AIPERF_OWNER."""
    cluster: Cluster
    secrets: Mapping[str, Mapping[str, pulumi.Output[str]]]
    """Maps the name of a Secret to the required values of the stack's configuration."""
    warnings: tuple[str, ...] = ()
    summary: str = ""
    """Summary of the plan for a reviewer; empty if the runner has shown it."""


def read_settings(config: pulumi.Config, environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings of this stack. Raises RunError with one message and no traceback.

    `AIPERF_IMAGE`, `AIPERF_WORKLOAD_IMAGE`, `AIPERF_CONTEXT`, `AIPERF_CLUSTER_IDENTIFIER`,
    `AIPERF_OWNER` and `AIPERF_RENDER_TO` belong to a machine or a build rather than to a committed
    file, so the environment may set them.
    """
    if pulumi.runtime.is_config_secret(f"{config.name}:benchmark"):
        raise pulumi.RunError(
            "aiperf:benchmark contains a `secure:` value, which would be shown in plain text; keep "
            "the target's key under its own name: pulumi config set --secret aiperf:targetApiKey"
        )
    kubeconfig = config.get("kubeconfig")
    check_is_path(kubeconfig, "aiperf:kubeconfig")
    if config.get("clusters"):
        raise pulumi.RunError(
            "aiperf:clusters names several clusters, and `pulumi` makes one stack in one of them; "
            "`aiperf-svc run` makes a stack in each"
        )
    try:
        plan = _plan(config, environ)
    except (ConfigError, EnvironmentProblem) as error:
        raise pulumi.RunError(str(error)) from error
    # The runner has shown the plan.
    return Settings(
        plan=plan,
        owner=owner_name(environ),
        warnings=copy_warnings(kubeconfig, environ),
        summary="" if HOLDER in environ else _summary(plan),
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


def _summary(plan: StackPlan) -> str:
    command = f"aiperf-svc preview {plan.identity.stack} --objects"
    return f"{as_text(plan, StackChanges(base=''))}\n  `{command}` lists the objects for a review"


def _project_folder() -> Path:
    """Return the folder of the project: Pulumi runs the program in it or in a subfolder."""
    folder = Path.cwd()
    return next(
        (each for each in (folder, *folder.parents) if (each / "Pulumi.yaml").is_file()), folder
    )


def check_is_path(kubeconfig: pulumi.Input[str] | None, name: str) -> None:
    """Raise RunError if the content of a kubeconfig is given instead of its path."""
    if isinstance(kubeconfig, str) and "\n" in kubeconfig:
        raise pulumi.RunError(
            f"{name} holds the file's content, which would be kept in the state in plain text; "
            "expected its path"
        )


def copy_warnings(
    kubeconfig: pulumi.Input[str] | None, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the warning about the provider's copies; the runner removes them."""
    has_copy = HOLDER not in environ and bool(kubeconfig is not None or environ.get("KUBECONFIG"))
    return (_COPY.format(folder=tempfile.gettempdir()),) if has_copy else ()


def _plan(config: pulumi.Config, environ: Mapping[str, str]) -> StackPlan:
    """Return the runner's plan, or create one if there is no runner."""
    if PLAN in environ:
        return read_plan(Path(environ[PLAN]))
    return make_plan(
        config.require_object("benchmark"),
        "aiperf:benchmark",
        stack=pulumi.get_stack(),
        generation=config.get_int("generation"),
        target=config.get("target"),
        shape=config.get_int("shape"),
        environ=environ,
    )


def make_plan(
    benchmark: Any,
    source: str,
    *,
    stack: str,
    generation: int | None,
    target: str | None,
    shape: int | None,
    environ: Mapping[str, str],
) -> StackPlan:
    """Create the plan of a benchmark; `source` names it in errors. Raises ConfigError."""
    settings = StackSettings(
        stack=stack,
        version=aiperf_svc.__version__,
        generation=generation or 1,
        image=environ.get("AIPERF_IMAGE", ""),
        workload_image=environ.get("AIPERF_WORKLOAD_IMAGE", ""),
        render=functools.partial(render_release, base=_project_folder(), environ=environ),
    )
    config = chosen_target(parse_benchmark(benchmark, source), target or "")
    return plan_stack(config, settings, shape=shape or 1)


def refuse_if_used(plan: StackPlan, cluster: Cluster) -> None:
    """Raise RunError if a process works on a stack of this name, if another state has created one
    that is within its time to live, if the names of its release's cluster-scoped objects are taken,
    or if this is unknown because the API server fails. If the cluster does not respond, the
    provider reports it. `aiperf-svc run` has already checked this before it calls Pulumi."""
    kubeconfig, stack = cluster.kubeconfig, plan.identity.stack
    if HOLDER in os.environ or cluster.render_to or pulumi.runtime.is_dry_run():
        return
    if kubeconfig is not None and not isinstance(kubeconfig, str):
        return  # the cluster may not exist yet
    wanted = plan.config.deployment.namespace
    namespace = wanted.name if wanted.mode == "existing" else None
    makes_outside = plan.release is not None and plan.release.cluster_scoped

    async def read_cluster() -> tuple[Users, Inventory | None]:
        async with connect(kubeconfig=kubeconfig, context=cluster.context) as api:
            finding = functools.partial(users_of, api, stack, namespace=namespace)
            users = await retried(finding, within_s=RETRY_S, pause_s=POLL_S)
            return users, await list_cluster_scoped(api) if makes_outside else None

    try:
        # In a thread, because Pulumi's own event loop runs in this one.
        with ThreadPoolExecutor(1) as thread:
            users, outside = thread.submit(asyncio.run, read_cluster()).result()
    except Refused as error:
        raise pulumi.RunError(
            f"whether stack {stack} is in use is unknown: {error}. Nothing was changed"
        ) from error
    except EnvironmentProblem:
        return
    if users.holder:
        raise pulumi.RunError(f"{users.holder}; wait for it. Nothing was changed")
    try:
        if outside is not None:
            refuse_unread(outside, made_types([plan]))
            refuse_taken_outside(outside, stack=stack, plans=[plan])
    except EnvironmentProblem as error:
        raise pulumi.RunError(f"{error}. Nothing was changed") from error
    if not users.alive and not users.unfinished:
        return
    try:
        state = read_state()
    except EnvironmentProblem as error:
        places = ", ".join(f"{each.namespace} (of {each.owner})" for each in users.alive.values())
        if places:
            pulumi.log.warn(
                f"stack {stack} is up in namespace {places}, and whether this state has made it is "
                f"unknown: {error}. If another one has, both will measure at the same time"
            )
        return
    own = made_roots(state)
    others = [lease for uid, lease in users.alive.items() if uid not in own]
    if others:
        text = other_state_text(
            stack, [each.namespace for each in others], [each.owner for each in others]
        )
        raise pulumi.RunError(f"{text}. Nothing was changed")
    used = {wanted.name, *namespaces_in(state)}
    for uid, namespace in users.unfinished.items():
        if uid not in own and namespace in used:
            raise pulumi.RunError(
                f"namespace {namespace} has the beginning of stack {stack}, from an `up` that was "
                f"killed or has just begun; if none has, remove it: aiperf-svc gc {stack}. Nothing "
                "was changed"
            )


def read_state() -> list[Json]:
    """Return the types and outputs of the resources in this state. Raises EnvironmentProblem if it
    cannot be read."""
    name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{pulumi.get_stack()}"
    root = pulumi.runtime.get_root_resource()
    # The engine writes the root into the state, and then nothing until the program creates a
    # resource.
    after_root: pulumi.Input[str] = name if root is None else root.urn.apply(lambda _: name)
    try:
        found: Json = pulumi.runtime.invoke(READ_STATE, {"stackName": after_root}).value
    except Exception as error:
        # The SDK raises no narrower type.
        raise EnvironmentProblem(str(error)) from error
    return list(found["outputs"].values())
