"""Shows what a stack's file would change, without a cluster."""

from dataclasses import replace
from pathlib import Path

from aiperf_svc.domain.errors import AiperfError, ConfigError
from aiperf_svc.plan.stack import non_defaults
from aiperf_svc.runner import signals
from aiperf_svc.runner.stack import bring_up
from aiperf_svc.runner.stack.changes import Comparison, changes
from aiperf_svc.runner.stack.project import read_settings
from aiperf_svc.runner.stack.request import StackRequest, open_project
from aiperf_svc.runner.stack.state_home import StateHome
from aiperf_svc.workloads.loading import load_any


def compare_with(request: StackRequest, file: Path) -> Comparison:
    """Compare with another version of the stack's file. Raises ConfigError."""
    config = load_any(file)
    try:
        settings = read_settings(file)
    except ConfigError:
        # A plain config holds only the benchmark.
        settings = dict(request.settings)
    before = replace(request, config=config, settings=settings).plan
    return Comparison(
        base=f"`{file}`",
        changed=changes(non_defaults(before.config), non_defaults(request.plan.config)),
        is_new_run=before.identity.run_id != request.plan.identity.run_id,
    )


def compare_with_deployed(request: StackRequest) -> Comparison:
    """Compare with the deployed state. A review needs no state, so one that cannot be opened is
    only reported."""
    try:
        home = StateHome(request.environ)
        project = open_project(request.stack, request.file_content(), home, request.environ)
        with project as cli:
            return signals.run(bring_up.compare(request, cli))
    except AiperfError as error:
        return Comparison(base=bring_up.DEPLOYED, not_compared=str(error))
