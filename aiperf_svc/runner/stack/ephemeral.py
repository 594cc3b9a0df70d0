"""Runs a stack that has no file: made for one run, and removed with its state.

Whether the namespace exists is checked once, here, and written into the stack's config. A program
that checked each time would mistake its own namespace for an existing one.
"""

from dataclasses import replace

from aiperf_svc.adapters.cluster.api.connection import connect
from aiperf_svc.adapters.cluster.teardown.leaks import uid_of_namespace
from aiperf_svc.config.deployment import Namespace
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner import signals
from aiperf_svc.runner.stack import terminal
from aiperf_svc.runner.stack.options import StackOptions
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.runner.stack.run import run_stack
from aiperf_svc.runner.stack.shape_stacks import needs_stacks, run_shape_stacks


def run_ephemeral(
    request: StackRequest, options: StackOptions, *, namespace: str | None
) -> ExitCode:
    """Run the stack in `namespace`, which is kept if it exists and removed if it does not; None: in
    a namespace with a generated name. Raises AiperfError as `run_stack` does."""
    # Errors of the request are reported before the cluster is contacted.
    request.check_prerequisites()
    if namespace is not None:
        resumed = request.resumed
        mode = resumed.namespace_mode if resumed else signals.run(_mode(request, namespace))
        what = (
            "is there and stays"
            if mode == "existing"
            else "will be created, and removed afterwards"
        )
        terminal.say(f"namespace {namespace} {what}")
        request = _placed(request, namespace, mode)
    if needs_stacks(request):
        return run_shape_stacks(request, options)
    return run_stack(request, options)


async def _mode(request: StackRequest, namespace: str) -> str:
    async with connect(kubeconfig=request.used_kubeconfig, context=request.used_context) as cluster:
        return "existing" if await uid_of_namespace(cluster, namespace) else "create"


def _placed(request: StackRequest, namespace: str, mode: str) -> StackRequest:
    where = {"name": namespace, "mode": mode}
    deployment = request.config.deployment.model_copy(
        update={"namespace": Namespace.model_validate(where)}
    )
    config = request.config.model_copy(update={"deployment": deployment})
    return replace(request, config=config)
