"""Places the parts of a session on clusters: each is a stack, from its plan to the leak check."""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from aiperf_svc.adapters.cluster.api.connection import Cluster, connect
from aiperf_svc.adapters.cluster.ownership import this_process
from aiperf_svc.adapters.cluster.preflight.capacity import Placed, fits_beside, read_placed, rooms
from aiperf_svc.adapters.cluster.preflight.quotas import Quotas, read_quotas
from aiperf_svc.adapters.cluster.teardown.leaks import uid_of_namespace
from aiperf_svc.adapters.pulumi.state_home import StateHome
from aiperf_svc.adapters.storage import resuming
from aiperf_svc.adapters.storage.shape_trials import experiment_of
from aiperf_svc.adapters.terminal import output
from aiperf_svc.config.clusters import NamedCluster
from aiperf_svc.config.deployment import Namespace
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.service_pods import upload_keys
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner import signals
from aiperf_svc.runner.ending import post_errors
from aiperf_svc.runner.options import StackOptions
from aiperf_svc.runner.outcome import NOTHING_CREATED, RunOutcome
from aiperf_svc.runner.parts import Expansion, Member, PartContext, Placement, Work
from aiperf_svc.runner.session import Session
from aiperf_svc.runner.stack import preview
from aiperf_svc.runner.stack.discovery import with_api_server, with_gpu_exporters, with_target_pods
from aiperf_svc.runner.stack.launch import Launch
from aiperf_svc.runner.stack.members import (
    expand_requests,
    member_requests,
    part_request,
    several_lines,
    total_footprint,
)
from aiperf_svc.runner.stack.request import StackRequest, open_project
from aiperf_svc.runner.start_gate import LEAD_S
from aiperf_svc.workloads.previews import summary
from aiperf_svc.workloads.previews.changes import StackChanges
from aiperf_svc.workloads.shapes import Where, max_parallel

KubeContext = tuple[str | None, str | None]
"""Kubeconfig and context of a cluster."""


def run_stacks(
    request: StackRequest, options: StackOptions, clusters: Sequence[NamedCluster] = ()
) -> ExitCode:
    """Run the stacks of a request and print the results. Raises AiperfError if the run cannot
    start; after that, it ends with an exit code."""
    with post_errors(request.config):
        requests = member_requests(request, clusters)
        expansion = expand_requests(requests)
        placement = StackPlacement(requests, expansion, options)
    with output.ignore_closed_stderr():
        return Session(expansion, placement, options.run, timeout_s=options.timeout_s).run()


def run_in_namespace(
    request: StackRequest, options: StackOptions, namespace: str | None
) -> ExitCode:
    """Run a stack without a file in a namespace; None: one with a generated name. An existing
    namespace is kept, a new one is removed. Raises AiperfError as `run_stacks` does.

    The namespace is looked up once, and the result is stored in the stack's config. A program that
    looked it up each time would mistake its own namespace for an existing one.
    """
    # Errors of the request are reported before the cluster is contacted.
    request.check_prerequisites()
    if namespace is not None:
        resume = options.run.resume
        mode = resuming.namespace_mode(resume) if resume else signals.run(_mode(request, namespace))
        namespace_text = (
            "exists and is kept" if mode == "existing" else "is created, and removed at the end"
        )
        output.say(f"namespace {namespace} {namespace_text}")
        wanted = Namespace.model_validate({"name": namespace, "mode": mode})
        deployment = request.config.deployment.model_copy(update={"namespace": wanted})
        config = request.config.model_copy(update={"deployment": deployment})
        request = replace(request, config=config)
    return run_stacks(request, options)


async def _mode(request: StackRequest, namespace: str) -> str:
    async with connect(kubeconfig=request.used_kubeconfig, context=request.used_context) as cluster:
        return "existing" if await uid_of_namespace(cluster, namespace) else "create"


class StackPlacement(Placement):
    """Stacks, in one cluster or several."""

    where: Where = "cluster"
    lead_s = LEAD_S

    def __init__(
        self, requests: Mapping[str, StackRequest], expansion: Expansion, options: StackOptions
    ) -> None:
        self._requests, self._expansion, self._options = requests, expansion, options
        self._first = requests[expansion.first.name]
        self._is_auto = self._first.at_once == "auto"
        self.run_id = self._first.plan.identity.run_id
        self._home = StateHome(self._first.environ)
        self._clusters: dict[KubeContext, Cluster] = {}
        self._shared: Launch | None = None
        """The stack that all parts share."""

    @property
    def limit(self) -> int:
        if self._expansion.is_in_turn or self._expansion.is_driven:
            return 1
        return max_parallel(self._first.at_once)

    def prepare(self) -> bool:
        if self._options.keep and self.limit > 1:
            raise ConfigError(
                "--keep: kept stacks take the resources that later ones need "
                "(experiment.parallel); --keep-on-failure keeps one that failed"
            )
        for request in self._requests.values():
            request.check_prerequisites()
        total_footprint(self._requests, self._expansion)
        if self._expansion.is_single:
            return True  # The launch asks the user, after the preflight checks.
        for text in self._previews():
            output.say(text)
        is_agreed = self._options.yes or not output.can_ask()
        if is_agreed or signals.run(output.ask("Create these stacks?")):
            return True
        output.say(NOTHING_CREATED)
        return False

    def _previews(self) -> list[str]:
        request, is_joint = self._first, len(self._requests) > 1
        texts = []
        if is_joint:
            texts.append(summary.as_text(request.plan, StackChanges(base="nothing")))
            texts.append(f"  {several_lines(self._expansion, self._requests)}")
        if self._expansion.is_driven or len(self._expansion.rounds) > 1:
            compared = preview.compare(request)
            texts.append(preview.of_shapes(request, compared, is_markdown=False))
        return texts

    @contextlib.asynccontextmanager
    async def _launch(self, request: StackRequest, context: PartContext) -> AsyncIterator[Launch]:
        """Open a stack in a project of its own, and remove it at the end."""
        home, say, me = self._home, context.screen.say, this_process(request.environ)
        options = self._options if self._expansion.is_single else replace(self._options, yes=True)
        request.check_secrets()
        connecting = connect(kubeconfig=request.used_kubeconfig, context=request.used_context)
        await home.wait_for_killed(request.stack, say)
        with home.hold(request.stack) as held:
            async with connecting as cluster:
                for add_facts in (with_target_pods, with_gpu_exporters, with_api_server):
                    request = await add_facts(request, cluster, say=say)
                context.is_counting.set()
                project = open_project(
                    request.stack,
                    request.file_content(),
                    request.environ,
                    cluster=cluster,
                    holder=me.identity,
                    is_ephemeral=request.is_ephemeral,
                    held=held,
                    say=say,
                )
                try:
                    with project as cli:
                        if cli.notice:
                            say(f"note: {cli.notice}")
                        stack = Launch(request, options, home, cluster, cli, context, me=me)
                        try:
                            yield stack
                        finally:
                            await stack.end()
                finally:
                    if request.is_ephemeral and home.load(request.stack) is None:
                        home.forget_ephemeral(request.stack)

    @contextlib.asynccontextmanager
    async def opened(
        self, context: PartContext, shared_parts: Sequence[Work] | None
    ) -> AsyncIterator[Sequence[int] | None]:
        if shared_parts is not None:
            async with self._launch(self._shared_request(shared_parts), context) as stack:
                self._shared, self.run_id = stack, stack.run_id
                yield await stack.begin(shared_parts)
            return
        async with contextlib.AsyncExitStack() as connections:
            if self.limit > 1:
                for kube_context in dict.fromkeys(map(_cluster_of, self._requests.values())):
                    connecting = connect(kubeconfig=kube_context[0], context=kube_context[1])
                    cluster = await connections.enter_async_context(connecting)
                    await read_placed(cluster, is_auto=self._is_auto)
                    self._clusters[kube_context] = cluster
            context.is_counting.set()
            yield None

    async def find_room(
        self, running: Sequence[Work], waiting: Sequence[Sequence[Work]]
    ) -> int | None:
        space = self._first.config.deployment.namespace
        found = []
        for kube_context, cluster in self._clusters.items():
            placed = await read_placed(cluster, is_auto=self._is_auto)
            plans = self._plans(running, kube_context)
            nodes = rooms(placed.nodes, (), stack="") if placed is not None else ()
            quotas = await read_quotas(cluster, space, plans, nodes)
            found.append((kube_context, placed, plans, quotas))
        for number, parts in enumerate(waiting):
            if all(self._fits(parts, *room) for room in found):
                return number
        return None

    def _fits(
        self,
        parts: Sequence[Work],
        kube_context: KubeContext,
        placed: Placed | None,
        running: Sequence[StackPlan],
        quotas: Quotas,
    ) -> bool:
        """Return whether these parts fit into a cluster in addition to its running stacks."""
        plans = list(running)
        for plan in self._plans(parts, kube_context):
            if placed is not None and not fits_beside(plans, plan, *placed):
                return False
            if not quotas.has_room(plan, plans[len(running) :]):
                return False
            plans.append(plan)
        return True

    def _plans(self, works: Sequence[Work], kube_context: KubeContext) -> list[StackPlan]:
        requests = [self.request_of(work) for work in works]
        return [each.plan for each in requests if _cluster_of(each) == kube_context]

    def request_of(self, work: Work) -> StackRequest:
        """Return the request for the stack of a part."""
        return part_request(self._requests[work.member.name], self._expansion, work)

    def image(self, member: Member) -> str | None:
        return self._requests[member.name].plan.config.deployment.image.name

    def _shared_request(self, parts: Sequence[Work]) -> StackRequest:
        """Return the request for the stack that all parts share. Its folder is that of the
        experiment."""
        resume = self._options.run.resume
        request = self.request_of(parts[0]) if parts else self._first
        folder = resume or experiment_of(parts[0].folder)[0]
        return replace(request, folder=folder, is_resumed=resume is not None)

    def more(self, work: Work) -> dict[str, Any]:
        if self._shared is not None:
            return self._shared.more
        return {"stack": self.request_of(work).stack}

    def completed(
        self, member: Member, outcome: RunOutcome, parts: Sequence[RunOutcome]
    ) -> RunOutcome:
        if (stack := self._shared) is not None:
            reason = outcome.reason or str(stack.failure or "")
            if outcome.artifact_error and outcome.results is None:
                # The run has results, but they could not be fetched.
                outcome = replace(outcome, failure=ExitCode.ERROR)
            return replace(stack.completed(outcome), reason=reason)
        if parts and not self._expansion.is_split and not self._expansion.is_driven:
            return replace(outcome, more=parts[0].more)
        more = {
            "stack": self._requests[member.name].stack,
            "left": list(outcome.left),
            "stacks": [{"state": each.state, "reason": each.reason, **each.more} for each in parts],
        }
        return replace(outcome, more=more)

    async def upload_keys(self, member: Member) -> dict[str, str]:
        """Return the credentials of the upload by environment variable, from the secrets of the
        request, else from the stack's file."""
        request = self._requests[member.name]
        sources, secrets = upload_keys(request.config), request.secrets
        if secrets.keys() >= {*sources.values()}:
            return {variable: secrets[key] for variable, key in sources.items()}
        content = request.file_content()
        with open_project(request.stack, content, request.environ) as cli:
            found = await cli.values([key for key in sources.values() if not secrets.get(key)])
        return {variable: secrets.get(key) or found[key] for variable, key in sources.items()}

    async def run(self, work: Work, context: PartContext) -> RunOutcome:
        if self._shared is not None:
            context.is_counting.set()
            return (await self._shared.run_part(work, context)).outcome()
        async with self._launch(self.request_of(work), context) as stack:
            rounds = await stack.begin([work])
            end = await stack.run_part(work, context) if rounds else None
        if end is not None:
            return replace(stack.completed(end), error=stack.failure).outcome()
        nothing = RunOutcome(state=RunState.CANCELLED, reason=NOTHING_CREATED, was_interrupted=True)
        return stack.completed(nothing)


def _cluster_of(request: StackRequest) -> KubeContext:
    return request.used_kubeconfig, request.used_context
