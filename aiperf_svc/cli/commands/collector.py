"""`aiperf-svc collector`: what the pod with the results of Jobs executes."""

import argparse

DESCRIPTION = """Run the Jobs of an experiment, receive what their indexes have measured, and serve
the results. The environment says which; a stack sets it (experiment.fan_out)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None: the environment says all."""


def run(args: argparse.Namespace) -> int:
    """Run until the pod ends."""
    from aiperf_svc.runner.fan_out.collector import run_collector

    return run_collector()
