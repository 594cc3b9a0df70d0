"""`run`: makes a stack, measures, collects the results, and removes the stack."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from aiperf_svc.adapters.cluster.api.connection import Cluster, connect
from aiperf_svc.adapters.cluster.ownership import this_process
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner import signals
from aiperf_svc.runner.common_start import GiveStart
from aiperf_svc.runner.ending import errors_of, finish
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack import terminal
from aiperf_svc.runner.stack.api_server import with_api_server
from aiperf_svc.runner.stack.gpu_exporters import with_gpu_exporters
from aiperf_svc.runner.stack.launch import Launch
from aiperf_svc.runner.stack.options import StackOptions
from aiperf_svc.runner.stack.request import StackRequest, open_project
from aiperf_svc.runner.stack.screen import Screen, WholeScreen
from aiperf_svc.runner.stack.state_home import StateHome
from aiperf_svc.runner.stack.target_pods import with_target_pods


def run_stack(request: StackRequest, options: StackOptions) -> ExitCode:
    """Run the stack and print its results. Raises AiperfError for errors before anything was made;
    later ones are reported by the exit code."""
    request.check_prerequisites()
    with (
        errors_of(request.plan.identity.run_id),
        terminal.ignore_closed_stderr(),
    ):
        screen = WholeScreen(options.run)
        outcome = signals.run(run_one(request, options, screen, counting=Interrupts))
    return finish(outcome, request.config.artifacts, options.run)


async def run_one(
    request: StackRequest,
    options: StackOptions,
    screen: Screen,
    *,
    counting: Callable[[], AbstractContextManager[Interrupts]],
    give_start: GiveStart | None = None,
) -> RunOutcome:
    """Run one stack. Raises AiperfError when nothing was created.

    `counting` is entered when the cluster is connected: from then on interrupts are counted, and
    before they cancel this call. `give_start` starts a stack that is held.
    """
    home = StateHome(request.environ)
    connecting = connect(kubeconfig=request.used_kubeconfig, context=request.used_context)
    await home.wait_for_killed(request.stack, screen.say)
    with home.hold(request.stack) as held:
        async with connecting as cluster:
            request = await with_target_pods(request, cluster, say=screen.say)
            request = await with_gpu_exporters(request, cluster, say=screen.say)
            request = await with_api_server(request, cluster, say=screen.say)
            with counting() as interrupts:
                return await _launched(
                    request,
                    options,
                    home,
                    cluster,
                    interrupts,
                    screen,
                    held=held,
                    give_start=give_start,
                )


async def _launched(
    request: StackRequest,
    options: StackOptions,
    home: StateHome,
    cluster: Cluster,
    interrupts: Interrupts,
    screen: Screen,
    *,
    held: int,
    give_start: GiveStart | None = None,
) -> RunOutcome:
    me = this_process(request.environ)
    project = open_project(
        request.stack,
        request.file_content(),
        home,
        request.environ,
        identity=cluster.identity,
        holder=me.identity,
        is_ephemeral=request.is_ephemeral,
        held=held,
        say=screen.say,
    )
    try:
        with project as cli:
            if cli.notice:
                screen.say(f"note: {cli.notice}")
            launch = Launch(
                request,
                options,
                home,
                cluster,
                cli,
                interrupts,
                screen,
                me=me,
                give_start=give_start,
            )
            return await launch.run()
    finally:
        if request.is_ephemeral and home.load(request.stack) is None:
            home.forget_ephemeral(request.stack)
