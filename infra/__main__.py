"""The Pulumi program: the stack's configuration becomes one component, its outputs the stack's.

Decisions are made by `aiperf_svc.plan`, which knows nothing of Pulumi; `components/` translate
them into Kubernetes objects.
"""

import pulumi

from aiperf_svc.stack.benchmark import Benchmark, BenchmarkArgs
from aiperf_svc.stack.settings import read_settings, refuse_if_held

settings = read_settings(pulumi.Config("aiperf"))
refuse_if_held(settings.plan, settings.cluster)
for line in settings.warnings:
    pulumi.log.warn(line)
if settings.summary:
    pulumi.log.info(settings.summary)
benchmark = Benchmark(
    "benchmark",
    BenchmarkArgs(
        plan=settings.plan,
        owner=settings.owner,
        cluster=settings.cluster,
        secrets=settings.secrets,
    ),
)
for name, value in benchmark.outputs.items():
    pulumi.export(name, value)
