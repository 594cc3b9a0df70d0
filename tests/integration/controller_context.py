"""The context of a system controller whose bus is within the test's loop."""

from pathlib import Path
from typing import Any

from aiperf_svc.adapters.messaging.bus import Addresses
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.plan.topology import Facts, plan
from aiperf_svc.services.context import RunContext


def controller_context(content: dict[str, Any], folder: Path, *, run_id: str) -> RunContext:
    """The context for a config, with its folders below `folder`."""
    config = parse_config(content, "test")
    facts = Facts(where="local", cores=2, fd_limit=20_000, worker_requests_per_s=1000.0)
    return RunContext(
        run_id=run_id,
        instance="system-controller",
        config=config,
        topology=plan(config, facts),
        # One of its own: sockets have short paths only.
        addresses=Addresses(f"inproc://{folder.name}"),
        artifacts=folder / "artifacts",
        state=folder / "state",
    )
