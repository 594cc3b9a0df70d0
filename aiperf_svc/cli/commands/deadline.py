"""`aiperf-svc deadline`: what the pod executes that ends a stack when its time is over."""

import argparse

DESCRIPTION = """Delete this pod's stack when its time to live is over.

Runs in a pod of a stack, whose environment says what is deleted, and when."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments: a pod is described by its environment."""


def run(args: argparse.Namespace) -> int:
    """Run until the pod is told to stop."""
    from aiperf_svc.adapters.ttl.deadline import run_deadline

    return run_deadline()
