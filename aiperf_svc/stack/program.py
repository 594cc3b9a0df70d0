"""The program of a Pulumi project whose stacks are stack files."""

import pulumi

from aiperf_svc.stack.benchmark import BenchmarkStack, BenchmarkStackArgs
from aiperf_svc.stack.settings import read_settings, refuse_if_held


def declare_stack() -> None:
    """Make one component of the stack's configuration (`aiperf:benchmark` and the other keys of a
    stack file); its outputs become the stack's. Raises pulumi.RunError."""
    settings = read_settings(pulumi.Config("aiperf"))
    refuse_if_held(settings.plan, settings.cluster)
    for line in settings.warnings:
        pulumi.log.warn(line)
    if settings.summary:
        pulumi.log.info(settings.summary)
    benchmark = BenchmarkStack(
        "benchmark",
        BenchmarkStackArgs(
            plan=settings.plan,
            owner=settings.owner,
            cluster=settings.cluster,
            secrets=settings.secrets,
        ),
    )
    for name, value in benchmark.outputs.items():
        pulumi.export(name, value)
