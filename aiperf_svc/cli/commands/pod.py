"""Commands that only the pods of a stack execute. Their settings come from the environment
variables that the stack sets, and the user's help does not list them."""

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from aiperf_svc.cli.arguments import Parser


class PodCommand(NamedTuple):
    """One of these commands."""

    description: str
    entry: str
    """Module and function. The module is imported when the command is executed, so each pod loads
    only what it needs."""
    choices: tuple[str, ...] = ()
    """Allowed values of its argument; empty if it has none."""


POD_COMMANDS = {
    "deadline": PodCommand(
        "Delete the stack of this pod when its time to live has expired.",
        "aiperf_svc.adapters.cluster.teardown.deadline:run_deadline",
    ),
    "readiness": PodCommand(
        "Wait until the target of this stack, a release, is ready.",
        "aiperf_svc.adapters.cluster.watching.readiness:run_readiness",
    ),
    "rank-setup": PodCommand(
        "Prepare the pod of a rank: create the folder that it shares with its courier, or set the\n"
        "MTU of its interface.",
        "aiperf_svc.cli.commands.pod:prepare_rank",
        choices=("folder", "mtu"),
    ),
    "netem": PodCommand(
        "Check that the kernel can delay and lose packets, or wait for events that do so.",
        "aiperf_svc.adapters.events.netem:run_container",
        choices=("check", "wait"),
    ),
    "collector": PodCommand(
        "Run the Jobs of an experiment (experiment.fan_out), receive their results and serve them.",
        "aiperf_svc.services.fan_out.collector:run_collector",
    ),
    "index": PodCommand(
        "Run the trials of one shape of an experiment in the pod of the server, and send\n"
        "their results to the collector.",
        "aiperf_svc.runner.job_index:run_index",
    ),
    "index-setup": PodCommand(
        "Write the launcher and the command of the server in the pod of an index.",
        "aiperf_svc.cli.commands.pod:prepare_index",
    ),
}


def run_pod_command(name: str, arguments: Sequence[str]) -> int:
    """Execute a command; return the exit code."""
    command = POD_COMMANDS[name]
    parser = Parser(name, command.description)
    if command.choices:
        parser.add_argument("what", choices=command.choices, help="What to prepare.")
    args = parser.parse(arguments)
    module, _, function = command.entry.partition(":")
    run: Callable[..., int] = getattr(import_module(module), function)
    return run(args.what) if command.choices else run()


def prepare_rank(action: str) -> int:
    """Prepare the pod of a rank; return the exit code."""
    from aiperf_svc.adapters.ranks import pod_setup

    if action == "folder":
        pod_setup.make_rank_folder()
    else:
        pod_setup.set_mtu()
    return 0


def prepare_index() -> int:
    """Write the files that start the server of an index; return the exit code."""
    from aiperf_svc.adapters.jobs.index_pod import choose_shape, write_server
    from aiperf_svc.plan.index_pods import LAUNCH_DIR, server_of

    config = choose_shape(os.environ).configs[0]
    write_server(Path(os.environ.get("AIPERF_SERVER", LAUNCH_DIR)), server_of(config))
    return 0
