"""A stack without a file of its own: made for one run, removed with its state.

Who owns the namespace is found out once, here, and written into the stack's config: a program that
looked each time would take its own namespace for somebody else's.
"""

import copy
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


def run_ephemeral(
    request: StackRequest, options: StackOptions, *, namespace: str | None
) -> ExitCode:
    """Run it in `namespace`, which is kept if it is there and removed if it is not; None: in one
    of a name of its own. Raises AiperfError as `run_stack` does."""
    # What is wrong with the request is said before a cluster is asked.
    request.check_secrets()
    if namespace is not None:
        mode = signals.run(_mode(request, namespace))
        what = (
            "is there and stays"
            if mode == "existing"
            else "will be created, and removed afterwards"
        )
        terminal.say(f"namespace {namespace} {what}")
        request = _placed(request, namespace, mode)
    return run_stack(request, options)


async def _mode(request: StackRequest, namespace: str) -> str:
    async with connect(kubeconfig=request.used_kubeconfig, context=request.used_context) as cluster:
        return "existing" if await uid_of_namespace(cluster, namespace) else "create"


def _placed(request: StackRequest, namespace: str, mode: str) -> StackRequest:
    where = {"name": namespace, "mode": mode}
    benchmark = copy.deepcopy(dict(request.benchmark))
    benchmark["deployment"] = {**(benchmark.get("deployment") or {}), "namespace": where}
    deployment = request.config.deployment.model_copy(
        update={"namespace": Namespace.model_validate(where)}
    )
    config = request.config.model_copy(update={"deployment": deployment})
    return replace(request, benchmark=benchmark, config=config)
