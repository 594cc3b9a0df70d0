"""What a stack's file would change, without a cluster."""

import asyncio
from dataclasses import replace

from aiperf_svc.config.models import BenchmarkConfig
from aiperf_svc.domain.errors import AiperfError, ConfigError
from aiperf_svc.runner.stack import bring_up, terminal
from aiperf_svc.runner.stack.changes import Change, changes
from aiperf_svc.runner.stack.request import StackRequest, open_project
from aiperf_svc.runner.stack.state_home import StateHome


def compare_with(request: StackRequest, before: BenchmarkConfig) -> tuple[Change, ...]:
    """What is different from another version of the stack. Raises ConfigError."""
    old = replace(request, config=before).plan.config
    return changes(
        old.model_dump(mode="json", exclude_defaults=True),
        request.plan.config.model_dump(mode="json", exclude_defaults=True),
    )


def compare_with_deployed(request: StackRequest) -> tuple[Change, ...] | None:
    """What is different from the state's; None when nothing is deployed, or no state can be
    opened: a review needs neither."""
    home = StateHome(request.environ)
    project = open_project(request.stack, request.file_content(), home, request.environ)
    try:
        with project as cli:
            return asyncio.run(bring_up.compare(request, cli))
    except ConfigError:
        return None
    except AiperfError as error:
        terminal.say(f"note: not compared with what is deployed: {error}")
        return None
