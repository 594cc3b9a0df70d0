"""`run`: makes a stack, measures, collects the results, and removes the stack."""

from aiperf_svc.adapters.cluster.api.connection import Cluster, connect
from aiperf_svc.domain.errors import AiperfError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner import manifests, printing, signals
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack import terminal
from aiperf_svc.runner.stack.launch import Launch
from aiperf_svc.runner.stack.options import StackOptions
from aiperf_svc.runner.stack.request import StackRequest, open_project
from aiperf_svc.runner.stack.state_home import StateHome
from aiperf_svc.runner.stack.target_pods import with_target_pods


def run_stack(request: StackRequest, options: StackOptions) -> ExitCode:
    """Run the stack and print its results. Raises AiperfError for errors before anything was made;
    later ones are reported by the exit code."""
    request.check_secrets()
    try:
        with terminal.ignore_closed_stderr():
            outcome = signals.run(_run(request, options))
    except AiperfError as error:
        if options.run.json:
            printing.print_failure(request.plan.identity.run_id, error)
        raise
    if outcome.artifacts is not None:
        manifests.refresh(outcome.artifacts)
    printing.print_outcome(outcome, options.run)
    return outcome.exit_code


async def _run(request: StackRequest, options: StackOptions) -> RunOutcome:
    home = StateHome(request.environ)
    connecting = connect(kubeconfig=request.used_kubeconfig, context=request.used_context)
    # Until the cluster is connected, Ctrl-C ends the program at once.
    await home.wait_for_killed(request.stack, terminal.say)
    with home.hold(request.stack) as held:
        async with connecting as cluster:
            request = await with_target_pods(request, cluster, say=terminal.say)
            with Interrupts() as interrupts:
                return await _launched(request, options, home, cluster, interrupts, held=held)


async def _launched(
    request: StackRequest,
    options: StackOptions,
    home: StateHome,
    cluster: Cluster,
    interrupts: Interrupts,
    *,
    held: int,
) -> RunOutcome:
    project = open_project(
        request.stack,
        request.file_content(),
        home,
        request.environ,
        identity=cluster.identity,
        is_ephemeral=request.is_ephemeral,
        held=held,
    )
    try:
        with project as cli:
            if cli.notice:
                terminal.say(f"note: {cli.notice}")
            return await Launch(request, options, home, cluster, cli, interrupts).run()
    finally:
        if request.is_ephemeral and home.load(request.stack) is None:
            home.forget_ephemeral(request.stack)
