"""Access to a stack that is up, for `status`, `results` and `cancel`."""

import contextlib
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from aiperf_svc.adapters.cluster.api.connection import Cluster, connect
from aiperf_svc.adapters.cluster.ownership import owner_name
from aiperf_svc.adapters.cluster.results_access import find_results, open_results
from aiperf_svc.adapters.pulumi import deployed
from aiperf_svc.adapters.pulumi.state_home import StateHome
from aiperf_svc.adapters.results_api.client import ResultsClient
from aiperf_svc.adapters.storage import folders
from aiperf_svc.adapters.terminal.output import Say
from aiperf_svc.config.paths import value_at
from aiperf_svc.config.target import Target
from aiperf_svc.domain.errors import AiperfError, ConfigError, EnvironmentProblem
from aiperf_svc.plan.identity import check_stack_name
from aiperf_svc.runner.outcome import RunEnd, RunOutcome
from aiperf_svc.runner.stack.request import find_context, open_project
from aiperf_svc.workloads.registry import parse_benchmark
from aiperf_svc.workloads.shapes import Shape, index_shapes


@dataclass(frozen=True, kw_only=True)
class Attached:
    """Open access to a stack's run."""

    stack: str
    client: ResultsClient
    outputs: Mapping[str, Any]
    cluster: Cluster


@contextlib.asynccontextmanager
async def attach(
    stack: str,
    *,
    environ: Mapping[str, str],
    kubeconfig: str | None = None,
    context: str | None = None,
) -> AsyncIterator[Attached]:
    """Connect to the results API of a stack that is up: the one in the state, else one of the same
    owner that another program has created. Raises ConfigError, EnvironmentProblem."""
    check_stack_name(stack)
    home = StateHome(environ)
    is_ephemeral = stack in home.ephemeral_stacks()
    with open_project(stack, None, environ, is_ephemeral=is_ephemeral) as cli:
        outputs = await cli.outputs()
        state = await cli.export() if outputs else {}
    is_in_state = "resultsToken" in outputs
    if not is_in_state and (busy := home.holder(stack)):
        raise EnvironmentProblem(
            f"stack {stack} has no run: process {busy} is creating or removing it"
        )
    kubeconfig, context = find_context(stack, environ, kubeconfig=kubeconfig, context=context)
    async with connect(kubeconfig=kubeconfig, context=context) as cluster:
        # Without the right to read kube-system, only its address identifies the cluster.
        if cluster.identity != cluster.server:
            deployed.check_cluster(state, stack=stack, identity=cluster.identity)
        if not is_in_state:
            outputs = await find_results(cluster, stack, owner_name(environ))
        async with (
            open_results(cluster, outputs=outputs) as url,
            ResultsClient(url, token=str(outputs["resultsToken"])) as client,
        ):
            yield Attached(stack=stack, client=client, outputs=outputs, cluster=cluster)


async def fetch(attached: Attached, *, parent: Path, name: str = "") -> RunOutcome:
    """Download every result file into `parent/name`; without a name, into the folder of an
    interrupted download or a new one. Raises EnvironmentProblem if the run is not over."""
    status = await attached.client.status()
    if not status.is_settled:
        raise EnvironmentProblem(
            f"the run is in state {status.state}; wait for its results with `aiperf-svc status "
            f"{attached.stack} --wait`"
        )
    results, folder = None, None
    run_id = str(attached.outputs["runId"])
    if status.results_ready:
        if name:
            folder = folders.make_folder(parent / name)
        else:
            folder = folders.unfinished(parent, run_id)
            folder = folder or folders.make_dated_folder(parent, attached.stack)
        with folders.collecting(folder, run_id):
            results = await attached.client.results()
            await attached.client.download_all(folder)
            await add_facts(
                attached.cluster,
                folder,
                namespace=str(attached.outputs["namespace"]),
                stack=attached.stack,
                target=_target_of(results.config),
                indexes=_indexes_of(results.config),
                say=partial(print, file=sys.stderr),
            )
    return RunEnd(
        run_id=run_id,
        status=status,
        results=results,
        artifacts=folder,
        more={"stack": attached.stack},
    ).outcome()


def _target_of(config: Mapping[str, Any]) -> Target:
    """Return the target of a finished run; the default if its config is of another version."""
    try:
        return Target.model_validate(value_at(config, ("deployment", "target")) or {})
    except ValueError:
        return Target()


def _indexes_of(config: Mapping[str, Any]) -> tuple[Shape, ...]:
    """Return the shapes of a finished run that ran in Jobs; none if its config is of another
    version."""
    try:
        return index_shapes(parse_benchmark(dict(config), ""))
    except ConfigError:
        return ()


async def add_facts(
    cluster: Cluster,
    folder: Path,
    *,
    namespace: str,
    stack: str,
    target: Target,
    indexes: Sequence[Shape],
    client: Mapping[str, str] | None = None,
    say: Say,
) -> None:
    """Add facts about pods and nodes from the cluster to the results in a folder. Missing facts do
    not fail the run."""
    # Most commands on a running stack do not need this import.
    from aiperf_svc.adapters.cluster.provenance import add_cluster_facts

    try:
        await add_cluster_facts(
            cluster,
            folder,
            namespace=namespace,
            stack=stack,
            target=target,
            indexes=indexes,
            client=client or {},
        )
    except (AiperfError, OSError) as error:
        say(f"not in provenance.json: pods and nodes: {error}")
