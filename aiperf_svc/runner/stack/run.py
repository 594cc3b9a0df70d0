"""`run`: a stack from its file to its results and to nothing."""

import asyncio

from aiperf_svc.adapters.cluster.connection import connect
from aiperf_svc.domain.errors import AiperfError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner import manifests, printing
from aiperf_svc.runner.outcome import Outcome
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack import terminal
from aiperf_svc.runner.stack.launch import Launch
from aiperf_svc.runner.stack.options import StackOptions
from aiperf_svc.runner.stack.request import StackRequest, open_project
from aiperf_svc.runner.stack.state_home import StateHome


def run_stack(request: StackRequest, options: StackOptions) -> ExitCode:
    """Run the stack and print its results. Raises AiperfError for what prevents it before anything
    was made; what happens later is told by the exit code."""
    request.check_secrets()
    try:
        with terminal.heard_or_not():
            outcome = asyncio.run(_run(request, options))
    except AiperfError as error:
        if options.run.json:
            printing.print_failure(request.plan.identity.run_id, error)
        raise
    if outcome.artifacts is not None:
        manifests.refresh(outcome.artifacts)
    printing.print_outcome(outcome, options.run)
    return outcome.exit_code


async def _run(request: StackRequest, options: StackOptions) -> Outcome:
    home = StateHome(request.environ)
    with Interrupts() as interrupts, home.hold(request.stack):
        connecting = connect(kubeconfig=request.used_kubeconfig, context=request.used_context)
        async with connecting as cluster:
            project = open_project(
                request.stack,
                request.file_content(),
                home,
                request.environ,
                identity=cluster.identity,
                is_ephemeral=request.is_ephemeral,
            )
            with project as cli:
                if cli.notice:
                    terminal.say(f"note: {cli.notice}")
                launch = Launch(request, options, home, cluster, cli, interrupts)
                outcome = await launch.run()
            if request.is_ephemeral and home.load(request.stack) is None:
                home.forget_ephemeral(request.stack)
            return outcome
