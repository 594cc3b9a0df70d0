"""`aiperf-svc index`: what a pod of a Job executes beside its server."""

import argparse

DESCRIPTION = """Run the trials of one shape of an experiment beside the server in the same pod, and
send their results to the collector. The environment says which; a stack sets it
(experiment.fan_out)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None: the environment says all."""


def run(args: argparse.Namespace) -> int:
    """Run until the trials have ended."""
    from aiperf_svc.runner.fan_out.index import run_index

    return run_index()
