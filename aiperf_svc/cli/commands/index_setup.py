"""`aiperf-svc index-setup`: what a pod of a Job executes before its server."""

import argparse

DESCRIPTION = """Write how the server of this index is started, and its launcher. The environment
says which; a stack sets it (experiment.fan_out)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None: the environment says all."""


def run(args: argparse.Namespace) -> int:
    """Write the files."""
    import os
    from pathlib import Path

    from aiperf_svc.adapters.jobs.server_files import write_server
    from aiperf_svc.domain.exit_codes import ExitCode
    from aiperf_svc.plan.index_pods import LAUNCH_DIR, server_of
    from aiperf_svc.runner.fan_out.shape_choice import choose_shape

    config = choose_shape(os.environ).configs[0]
    write_server(Path(os.environ.get("AIPERF_SERVER", LAUNCH_DIR)), server_of(config))
    return int(ExitCode.OK)
